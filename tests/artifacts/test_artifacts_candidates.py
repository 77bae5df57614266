"""ONNX among candidates: the exported policy says what the library says, features of candidates and all."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from offpolicy.artifacts import export_onnx, load_policy, save_policy
from offpolicy.learning import learn_policy
from offpolicy.log import read_log
from offpolicy.policies import choice_log_probs

onnxruntime = pytest.importorskip("onnxruntime")
ROLES: dict[str, Any] = {"context": ["x"], "action": "item", "reward": "buy", "candidates": "offered"}


def shop(n: int = 120) -> pl.DataFrame:
    random = np.random.default_rng(0)
    rows = []
    for _ in range(n):
        names = [f"i{o}" for o in random.choice(6, int(random.integers(1, 5)), replace=False)]
        price = random.random(len(names)).tolist()
        badge = [["new", "old"][int(random.integers(2))] for _ in names]
        rows.append((float(random.normal()), names[0], float(random.integers(2)), names, price, badge))
    return pl.DataFrame(rows, schema=["x", "item", "buy", "offered", "price", "badge"], orient="row")


@pytest.mark.parametrize("features", [(), ("price", "badge")])
def test_the_export_chooses_among_candidates(tmp_path: Path, features: tuple[str, ...]) -> None:
    frame = shop()
    log = read_log(frame, **ROLES, candidate_features=features)
    learned = learn_policy(log, "ce", epochs=3)
    if features:
        with torch.no_grad():
            learned.policy.scorer.candidate_weights.normal_()  # type: ignore[attr-defined]
    save_policy(learned, log, tmp_path / "policy")
    saved = load_policy(tmp_path / "policy")
    export_onnx(saved, tmp_path / "policy.onnx", candidates=True)
    session = onnxruntime.InferenceSession((tmp_path / "policy.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    width = int(frame["offered"].list.len().max())  # type: ignore[arg-type]

    def matrix(name: str, padding: Any, kind: Any) -> Any:
        return np.array([[*row, *[padding] * (width - len(row))] for row in frame[name].to_list()], dtype=kind)

    inputs = {
        "x": frame["x"].to_numpy(),
        "candidates": matrix("offered", "anything", object),
        "candidates.length": frame["offered"].list.len().cast(pl.Int64).to_numpy(),
    }
    if features:
        inputs |= {"price": matrix("price", 9.0, np.float64), "badge": matrix("badge", "", object)}
    inputs["candidates"][0, 0] = "unheard of"
    found = session.run(["candidate_log_probabilities"], inputs)[0]
    names = frame["offered"].to_list()
    expected = choice_log_probs(saved, log.contexts).double().numpy()
    assert log.candidates is not None
    codes = log.candidates.padded()
    ids = log.actions.vocabulary.to_list()
    for row in range(1, log.n_rows):
        context = log.context_index[row]
        own = {ids[code]: expected[context, j] for j, code in enumerate(codes[context]) if code >= 0}
        np.testing.assert_allclose(found[row, : len(names[row])], [own[name] for name in names[row]], atol=1e-4)
        assert np.isneginf(found[row, len(names[row]) :]).all()
    assert not found[0, 0] > -np.inf
