"""Exported policies, run by onnxruntime on raw columns, against the library."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import polars as pl
import pytest
import torch

from offpolicy.artifacts import ArtifactError, SavedPolicy, check_parity, export_onnx, load_policy, save_policy
from offpolicy.artifacts.onnx_graph import NO_INTEGER
from offpolicy.datasets.obd import load_obd
from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.learning import learn_policy
from offpolicy.log import LoggedData
from offpolicy.models.scorers import linear_scorer, logging_two_tower, two_tower_scorer
from offpolicy.policies import ScorerPolicy
from policy_worlds import a_linear, a_log, a_two_tower, frame, jolted
from shared_data import shared_data

LOG = a_log()
Arrays = dict[str, npt.NDArray[Any]]


def scorer_of(kind: str) -> Any:
    two_tower = a_two_tower(LOG)
    kinds: dict[str, Callable[[], Any]] = {
        "linear": lambda: a_linear(LOG, 16),
        "linear without others": lambda: a_linear(LOG, 500),
        "quadratic": lambda: jolted(linear_scorer(LOG, 5, quadratic=True)),
        "two_tower": lambda: two_tower,
        "logging": lambda: jolted(logging_two_tower(two_tower, LOG, id_dim=4, feature_dim=3)),
        "plain": lambda: jolted(
            two_tower_scorer(LOG, dim=16, user={"columns": {"user": 4, "segment": 4, "history": 4}, "plain": True})
        ),
    }
    return kinds[kind]()


def saved_as(scorer: Any, log: LoggedData, tmp_path: Path) -> SavedPolicy:
    return load_policy(save_policy(scorer, log, tmp_path / "policy"))


def run(path: Path, inputs: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def raw(contexts: pl.DataFrame) -> Arrays:
    """The inputs as the documentation describes them, written out by hand."""
    bags = contexts["history"].to_list()
    most = max(map(len, bags))
    return {
        "user": np.array([name or "" for name in contexts["user"].to_list()], dtype=object),
        "segment": contexts["segment"].to_numpy(),
        "age": contexts["age"].to_numpy(),
        "taste": contexts["taste"].to_numpy(),
        "history": np.array([bag + ["padding"] * (most - len(bag)) for bag in bags], dtype=object),
        "history.length": np.array([len(bag) for bag in bags]),
    }


@pytest.mark.parametrize("kind", ["linear", "linear without others", "quadratic", "two_tower", "logging", "plain"])
def test_raw_columns_give_the_recommendations_of_the_library(tmp_path: Path, kind: str) -> None:
    saved = saved_as(scorer_of(kind), LOG, tmp_path)
    contexts = frame(1000, 7, strangers=True)
    parity = export_onnx(saved, tmp_path / "policy.onnx", contexts=contexts)
    assert parity is not None
    assert (parity.rows, parity.same_lists) == (1000, 1000)
    assert parity.largest_difference < 1e-5
    expected = saved.recommend(contexts, 10)
    found = run(tmp_path / "policy.onnx", raw(contexts))
    assert found["top_ids"].ravel().tolist() == expected["action"].to_list()
    np.testing.assert_allclose(found["probability"].ravel(), expected["probability"], rtol=1e-4)
    assert LOG.actions.vocabulary.decode(found["top_actions"]) == expected["action"].to_list()
    np.testing.assert_allclose(np.exp(found["log_probabilities"]).sum(1), 1.0, rtol=1e-5)
    shifted = found["scores"] - np.log(np.exp(found["scores"]).sum(1, keepdims=True))
    np.testing.assert_allclose(shifted, found["log_probabilities"], atol=1e-4)


def test_rows_without_any_ids_and_single_rows(tmp_path: Path) -> None:
    saved = saved_as(a_two_tower(LOG), LOG, tmp_path)
    contexts = frame(3).with_columns(history=pl.Series([[], [], []], dtype=pl.List(pl.String)))
    export_onnx(saved, tmp_path / "policy.onnx", contexts=contexts, k=100)
    found = run(tmp_path / "policy.onnx", raw(contexts.head(1)) | {"history": np.empty((1, 0), dtype=object)})
    assert found["top_ids"].shape == (1, 23)
    assert found["top_ids"][0].tolist() == saved.recommend(contexts.head(1), 23)["action"].to_list()


@pytest.mark.parametrize(
    ("ids", "actions"),
    [
        ([5, -7, None, 2**40], [10, 30]),
        ([True, False, True, None], ["x", "y", "z"]),
        (["a", None, "b", "é"], [True, False]),
        (["a", "", "b", "é"], [2**63 + 1, 7]),
    ],
)
def test_ids_of_every_type(tmp_path: Path, ids: list[Any], actions: list[Any]) -> None:
    n = len(ids)
    log = LoggedData.from_arrays({"who": ids, "x": np.arange(n) * 1e9}, [actions[0]] * n, np.ones(n), actions=actions)
    for scorer in (jolted(linear_scorer(log)), jolted(two_tower_scorer(log, dim=3, id_dim=2, feature_dim=2))):
        saved = saved_as(scorer, log, tmp_path)
        strangers = {5: 6, True: None, "a": "c"}[ids[0]]
        contexts = pl.DataFrame({"who": [*ids, strangers, None], "x": np.arange(n + 2) * 0.7e9})
        parity = export_onnx(saved, tmp_path / "policy.onnx", contexts=contexts)
        assert parity is not None
        assert parity.same_lists == n + 2
        if None in ids:
            key: Any = "" if isinstance(ids[0], str) else NO_INTEGER
            typed = np.array([key], dtype=object if key == "" else np.int64)
            found = run(tmp_path / "policy.onnx", {"who": typed, "x": np.array([3.0])})
            expected = saved.recommend({"who": pl.Series([None], dtype=pl.Null), "x": [3.0]}, 2)
            assert found["top_ids"][0, :2].tolist() == expected["action"].to_list()


def test_constant_columns_excluded_actions_and_ties(tmp_path: Path) -> None:
    log = LoggedData.from_arrays(
        {"same": np.ones(6), "both": np.stack([np.arange(6.0), np.zeros(6)], 1)},
        np.arange(6) % 5,
        np.ones(6),
        actions=5,
    )
    scorer = linear_scorer(log)
    mask = torch.tensor([False, True, False, False, False])
    saved = saved_as(ScorerPolicy(scorer, log.actions, mask), log, tmp_path)
    contexts = {"same": [1.0, 1e300], "both": np.array([[2.0, 5.0], [3e38, -3e38]], dtype=np.float32)}
    parity = export_onnx(saved, tmp_path / "policy.onnx", contexts=contexts)
    assert parity is not None
    found = run(tmp_path / "policy.onnx", {"same": np.array(contexts["same"]), "both": np.array(contexts["both"])})
    assert found["top_ids"].tolist() == [[0, 2, 3, 4]] * 2
    np.testing.assert_allclose(found["probability"], 0.25)


@pytest.mark.parametrize("kind", ["linear", "two_tower"])
def test_outliers_are_cut_as_the_library_cuts_them(tmp_path: Path, kind: str) -> None:
    saved = saved_as(scorer_of(kind), LOG, tmp_path)
    ages = [-1e12, -1e9, -1e7, 40.0, 1e7, 1e9, 1e300]
    contexts = frame(7).with_columns(
        age=pl.Series(ages),
        taste=pl.Series(np.array([[0, 0, 0], [3e38, 0, 0], [0, -1e9, 0]] * 2 + [[1e9] * 3], np.float32)),
    )
    parity = export_onnx(saved, tmp_path / "policy.onnx", contexts=contexts)
    assert parity is not None
    assert parity.same_lists == 7
    found = run(tmp_path / "policy.onnx", raw(contexts))
    (encoded, _), *_ = saved.encoded(contexts)
    expected = saved.log_probs(encoded.table).numpy()
    np.testing.assert_allclose(found["log_probabilities"], expected, rtol=1e-5, atol=1e-3)
    # Beyond the cut nothing changes: 1e9 and 1e12 are one and the same, 1e7 years are not.
    alone = frame(1)
    asked = pl.concat([alone.with_columns(age=pl.lit(age)) for age in (1e9, 1e12, 1e6, 2e6)])
    scores = run(tmp_path / "policy.onnx", raw(asked))["scores"]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.abs(scores[2] - scores[3]).max() > 1.0
    assert np.abs(scores[0]).max() < 1e8


def test_a_disagreement_writes_nothing(tmp_path: Path) -> None:
    saved = saved_as(a_linear(LOG), LOG, tmp_path)
    target = tmp_path / "policy.onnx"
    export_onnx(saved, target)
    before = target.read_bytes()
    other = a_linear(LOG)
    with torch.no_grad():
        other.bias[3] += 0.01
    changed = saved_as(other, LOG, tmp_path)
    with pytest.raises(ArtifactError, match="disagrees with the library"):
        check_parity(changed, target, frame(20))
    changed.policy.bias = changed.policy.bias + torch.eye(23)[2]  # what the graph is built from
    honest = SavedPolicy.log_probs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavedPolicy, "log_probs", lambda self, contexts: honest(saved, contexts))
        with pytest.raises(ArtifactError, match="Nothing was written"):
            export_onnx(changed, target, contexts=frame(20))
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy", "policy.onnx"]


def test_what_cannot_be_exported_or_checked(tmp_path: Path) -> None:
    saved = saved_as(a_linear(LOG), LOG, tmp_path)
    (tmp_path / "junk.onnx").write_bytes(b"not a model")
    with pytest.raises(ArtifactError, match="cannot be run as an ONNX model"):
        check_parity(saved, tmp_path / "junk.onnx", frame(2))
    with pytest.raises(ArtifactError, match="no context to compare"):
        export_onnx(saved, tmp_path / "policy.onnx", contexts=frame(0))
    with pytest.raises(ArtifactError, match="cannot be run"):
        check_parity(saved, tmp_path / "nowhere.onnx", frame(2))
    for ids in (["", None], [2**63 + 1, 4]):
        log = LoggedData.from_arrays({"who": ids}, [0, 1], [0, 1], actions=2)
        odd = saved_as(two_tower_scorer(log, dim=2, id_dim=2, feature_dim=2), log, tmp_path)
        with pytest.raises(ParameterError, match="The ids of column 'who' cannot be exported"):
            export_onnx(odd, tmp_path / "policy.onnx")
    log = LoggedData.from_arrays({"b": [["x"], ["y"]], "b.length": [1.0, 2.0]}, [0, 1], [0, 1], actions=2)
    with pytest.raises(ParameterError, match=r"would be called 'b\.length'"):
        export_onnx(saved_as(linear_scorer(log), log, tmp_path), tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_the_missing_extra_is_named(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = saved_as(a_linear(LOG), LOG, tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install offpolicy\[onnx\]"):
        export_onnx(saved, tmp_path / "policy.onnx")


@pytest.mark.parametrize("scorer", ["linear", "two_tower"])
def test_the_top_ten_of_a_thousand_real_contexts_are_the_librarys(tmp_path: Path, scorer: str) -> None:
    root = shared_data("obd")
    log = load_obd("bts", "men", root)
    learned = learn_policy(log, "ce", scorer=scorer, epochs=2)
    saved = saved_as(learned.policy, log, tmp_path)
    shown = pl.read_csv(root / "obd" / "random" / "men" / "men.csv").head(1000)  # visitors of the other policy
    export_onnx(saved, tmp_path / "policy.onnx", k=10)
    columns = [*(f"user_feature_{i}" for i in range(4)), "position"]
    inputs = {name: shown[name].to_numpy() for name in columns}
    found = run(
        tmp_path / "policy.onnx", {k: v.astype(object) if v.dtype.kind in "OU" else v for k, v in inputs.items()}
    )
    expected = saved.recommend(shown, 10)
    assert found["top_ids"].shape == (1000, 10)
    assert found["top_ids"].ravel().tolist() == expected["action"].to_list()
    np.testing.assert_allclose(found["probability"].ravel(), expected["probability"], rtol=1e-4)
    parity = check_parity(saved, tmp_path / "policy.onnx", shown)
    assert (parity.rows, parity.same_lists) == (1000, 1000)
