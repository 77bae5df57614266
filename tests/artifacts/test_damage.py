"""Whatever happens to the files of a policy, loading it gives the policy or an error of ours, never anything else."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.artifacts import ArtifactError, SavedPolicy, load_policy, save_policy
from offpolicy.atomic import CURRENT, current_version
from offpolicy.errors import OffPolicyError
from offpolicy.policy_files import DOCUMENT, FILES, WEIGHTS, sha256
from policy_worlds import a_linear, a_log, a_two_tower, frame

LOG = a_log(60)
CONTEXTS = frame(5, 1, strangers=True)
SCORERS: dict[str, Callable[[Any], Any]] = {"linear": lambda log: a_linear(log, 4), "two_tower": a_two_tower}
Damage = Callable[[Path, st.DataObject], bool]

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, 2**63, 2**70, 10**400])
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["linear", "two_tower", "categorical", "bag", "numbers", "numeric", "embedding"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("policies")
    metadata = {"method": "uips", "hyper": {"lam": 1.0}, "metrics": {"value": [0.5]}, "seed": 1}
    return {kind: save_policy(make(LOG), LOG, root / kind, metadata=metadata) for kind, make in SCORERS.items()}


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place) / "policy"))


def with_true_checksums(folder: Path) -> None:
    sums = {name: sha256((folder / name).read_bytes()) for name in (WEIGHTS, DOCUMENT)}
    (folder / "checksums.json").write_text(json.dumps({"sha256": sums}))


def damage_bytes(folder: Path, data: st.DataObject) -> bool:
    """Flip, cut, add, empty or delete; the checksums are as they were, so nothing but a whole policy may pass."""
    file = folder / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    where = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "add", "noise", "delete", "folder"]))
    if how == "flip":
        content[where] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del content[where:]
    elif how == "add":
        content[where:where] = data.draw(st.binary(min_size=1, max_size=20))
    elif how == "noise":
        content = bytearray(data.draw(st.binary(max_size=200)))
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how != "delete":
        file.write_bytes(content)
    return True


def damage_header(folder: Path, data: st.DataObject) -> bool:
    """Bytes of the weights' file, with matching checksums."""
    file = folder / WEIGHTS
    content = bytearray(file.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with_true_checksums(folder)
    return False


def damage_document(folder: Path, data: st.DataObject) -> bool:
    """Values of `policy.json` replaced, removed or added, with matching checksums."""
    file = folder / DOCUMENT
    document = json.loads(file.read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        edit(document, data)
    file.write_text(json.dumps(document))
    with_true_checksums(folder)
    return False


def edit(document: Any, data: st.DataObject) -> None:
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not data.draw(st.integers(0, 4)):
            break
        place = place[key]
    how = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if how == "remove":
        del place[key]
    elif how == "replace":
        place[key] = data.draw(ANYTHING)
    elif isinstance(place, dict):
        place[data.draw(st.text(max_size=4))] = data.draw(ANYTHING)
    else:
        place.insert(key, data.draw(st.sampled_from(place) | ANYTHING))


def damage_tensors(folder: Path, data: st.DataObject) -> bool:
    """Tensors cast, cut, renamed, dropped, added or filled with odd numbers, with matching checksums."""
    file = folder / WEIGHTS
    tensors = safetensors.torch.load(file.read_bytes())
    name = data.draw(st.sampled_from(sorted(tensors)))
    how = data.draw(st.sampled_from(["cast", "shape", "rename", "drop", "add", "fill"]))
    values = tensors.pop(name)
    if how == "cast":
        tensors[name] = values.to(data.draw(st.sampled_from([torch.float16, torch.float64, torch.int32, torch.bool])))
    elif how == "shape":
        tensors[name] = values.flatten()[: data.draw(st.integers(0, values.numel()))].clone()
    elif how == "rename":
        tensors[name + data.draw(st.sampled_from(["x", ".0", "s"]))] = values
    elif how == "add":
        tensors |= {
            name: values,
            data.draw(st.sampled_from(["scorer.more", "action_features.9.values", "x"])): values.clone(),
        }
    elif how == "fill":
        odd = data.draw(st.sampled_from([float("nan"), float("inf"), -1.0, 1e30, 77.0]))
        tensors[name] = values.clone()
        if values.is_floating_point() or abs(odd) < 100:
            tensors[name].view(-1)[: 1 + data.draw(st.integers(0, values.numel()))] = odd
    file.write_bytes(safetensors.torch.save(tensors))
    with_true_checksums(folder)
    return False


def check(folder: Path, damage: Damage, data: st.DataObject) -> None:
    with copied(folder) as copy:
        exact = damage(current_version(copy), data)
        named = True
        saved: SavedPolicy | None
        try:
            saved = load_policy(copy)
        except ArtifactError as error:
            named = str(copy) in str(error)
            saved = None
        if saved is None:
            assert named
            return
        if exact:
            assert torch.equal(saved.log_probs(LOG.contexts), load_policy(folder).log_probs(LOG.contexts))
            return
        try:
            found = saved.recommend(CONTEXTS, 3)
        except OffPolicyError:
            return
        assert found["row"].n_unique() == len(CONTEXTS)


def damage_pointer(folder: Path, data: st.DataObject) -> bool:
    """Anything in `CURRENT` but the name of the version."""
    pointer = folder.parents[1] / CURRENT
    pointer.unlink()
    how = data.draw(st.sampled_from(["delete", "folder", "noise", "text"]))
    if how == "folder":
        pointer.mkdir()
    elif how != "delete":
        other = st.from_regex(rb"[0-9a-f]{8}", fullmatch=True)
        pointer.write_bytes(data.draw(st.binary(max_size=20) if how == "noise" else other))
    return True


DAMAGES: dict[str, Damage] = {
    "bytes": damage_bytes,
    "header": damage_header,
    "document": damage_document,
    "tensors": damage_tensors,
    "pointer": damage_pointer,
}
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("kind", SCORERS)
@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=60, suppress_health_check=QUIET)
@given(data=st.data())
def test_damage(folders: dict[str, Path], kind: str, damage: str, data: st.DataObject) -> None:
    check(folders[kind], DAMAGES[damage], data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SCORERS)
@pytest.mark.parametrize("damage", DAMAGES)
@settings(max_examples=1250, derandomize=False, suppress_health_check=QUIET)
@given(data=st.data())
def test_ten_thousand_damages(folders: dict[str, Path], kind: str, damage: str, data: st.DataObject) -> None:
    check(folders[kind], DAMAGES[damage], data)
