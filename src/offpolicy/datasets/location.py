"""Where the files of a data set are, and whether they are the published ones."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offpolicy.errors import LogError

VARIABLE = "OFFPOLICY_DATA"


@dataclass(frozen=True)
class Home:
    """The folders a data set unpacks to, and where to get it."""

    folders: tuple[str, ...]
    source: str


HOMES = {
    "Coat": Home(("coat",), "https://www.cs.cornell.edu/~schnabts/mnar/"),
    "Yahoo! R3": Home(
        ("yahoo_r3", "ydata-ymusic-rating-study-v1_0"),
        "https://webscope.sandbox.yahoo.com (data set R3; its owner asks for a signed agreement)",
    ),
    "KuaiRec": Home(("kuairec/data", "KuaiRec 2.0/data", "KuaiRec/data", "kuairec", "data"), "https://kuairec.com"),
    "Open Bandit data": Home(("obd", "open_bandit_dataset"), "https://research.zozo.com/data.html"),
    "Jester": Home(("jester",), "https://eigentaste.berkeley.edu/dataset/ (the users who rated all 100 jokes)"),
}
EXTREME = "http://manikvarma.org/downloads/XC/XMLRepository.html"


def find_data(name: str, files: Sequence[str | tuple[str, ...]], data: str | Path | None = None) -> tuple[Path, ...]:
    """The paths of a data set's files, in the order asked for; a tuple lists alternative names of one file.

    They are looked for under `data`, or else under the folder that OFFPOLICY_DATA names: in the folder the data set
    unpacks to, then in that folder itself.
    """
    home = HOMES.get(name) or Home((name.lower(), name), EXTREME)
    how = f"Get the data from {home.source} and name the folder that holds them with --data DIR or {VARIABLE}."
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        raise LogError(f"{name}: no folder to look for the data in was given. {how}")
    root = Path(given).expanduser()
    folders = [root / folder for folder in home.folders] + [root]
    wanted = [(entry,) if isinstance(entry, str) else entry for entry in files]
    found = [[_first_file(folder, names) for names in wanted] for folder in folders]
    fullest = max(range(len(folders)), key=lambda number: sum(path is not None for path in found[number]))
    paths = tuple(path for path in found[fullest] if path is not None)
    if len(paths) == len(wanted):
        return paths
    missing = " or ".join(wanted[found[fullest].index(None)])
    looked = [folders[fullest]] if paths else folders
    raise LogError(f"{name}: the file {missing} was not found in {', '.join(map(str, looked))}. {how}")


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def check_known_counts(path: Path, found: Mapping[str, int], *known: Mapping[str, int]) -> None:
    """Refuse a file whose counts are those of no known edition; `known` names the same counts as `found`."""
    if any(found == counts for counts in known):
        return
    told = ", ".join(f"{number:,} {what}" for what, number in found.items())
    expected = " or ".join(", ".join(f"{number:,} {what}" for what, number in counts.items()) for counts in known)
    raise LogError(
        f"{path} holds {told}, but the published data have {expected}. Fetch the file again, or pass "
        "check_counts=False if it is meant to differ."
    )
