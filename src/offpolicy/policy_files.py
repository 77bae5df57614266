"""The files of a saved policy, found and checked against their checksums; what serves a policy needs no more of them.

A saved policy is a folder with an atomic current version, which holds `policy.safetensors`, `policy.json` and
`checksums.json`. Folders that hold these files directly are read as well.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offpolicy.atomic import current_version
from offpolicy.errors import ArtifactError, OffPolicyError

WEIGHTS, DOCUMENT, CHECKSUMS = "policy.safetensors", "policy.json", "checksums.json"
FILES = (WEIGHTS, DOCUMENT, CHECKSUMS)


class Checksums(BaseModel):
    """`checksums.json`: the SHA-256 of each other file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    sha256: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


@dataclass(frozen=True)
class PolicyFiles:
    """The content of one version of a saved policy, undamaged."""

    folder: Path
    weights: bytes
    document: bytes

    @property
    def digest(self) -> str:
        """What names this very policy, wherever it is copied: a hash of its weights and its document."""
        return hashlib.sha256((sha256(self.weights) + sha256(self.document)).encode()).hexdigest()[:32]


Loaded = TypeVar("Loaded")
Parsed = TypeVar("Parsed", bound=BaseModel)


def policy_folder(path: str | Path) -> Path:
    """The folder of a saved policy: the one named, or `policy` inside the folder of a run."""
    folder = Path(path).expanduser()
    return folder / "policy" if (folder / "policy").is_dir() else folder


def from_current_version(path: str | Path, load: Callable[[Path], Loaded]) -> Loaded:
    """What `load` makes of the current version of a policy's folder, tried again if a newer one was saved meanwhile."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise ArtifactError(f"{folder} {problem}, but a saved policy is a folder. Name the folder it was saved in.")
    while True:
        version = _current(folder)
        try:
            return load(version)
        except ArtifactError:
            if _current(folder) == version:
                raise  # else it was removed while it was read, because newer ones were saved


def read_version(folder: Path) -> PolicyFiles:
    """The files in a folder, each equal to its checksum."""
    content = {name: _content(folder / name) for name in FILES}
    sums = parsed(Checksums, content.pop(CHECKSUMS), folder / CHECKSUMS).sha256
    for name, data in content.items():
        if name not in sums:
            raise ArtifactError(f"{folder / CHECKSUMS} has no entry for {name}. Save the policy again.")
        if sums[name] != sha256(data):
            raise ArtifactError(
                f"{folder / name} does not match its checksum: it was damaged, cut short or changed after it was "
                "saved. Copy the folder again in full, or save the policy again."
            )
    return PolicyFiles(folder, content[WEIGHTS], content[DOCUMENT])


def parsed(model: type[Parsed], content: bytes, file: Path) -> Parsed:
    """The content of a JSON file, or an error that names the file and the first thing wrong with it."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"{where}: {first['msg']}" if where else first["msg"]
    except RecursionError:
        problem = "it is nested too deeply"
    raise ArtifactError(f"{file} does not hold what it should ({problem}). Save the policy again, or copy it in full.")


def sha256(content: bytes) -> str:
    """The checksum of a file."""
    return hashlib.sha256(content).hexdigest()


def _current(folder: Path) -> Path:
    try:
        return current_version(folder)
    except OffPolicyError as error:
        raise ArtifactError(str(error)) from None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(
            f"{file.parent} is not a saved policy, or not all of it: {file.name} is missing. A saved policy holds "
            f"{', '.join(FILES)}; name another folder or copy this one again in full."
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArtifactError(
            f"{file} cannot be read: {reason}. Check the file and your permission to read it."
        ) from None
