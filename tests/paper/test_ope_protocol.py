"""The evaluation experiment of the paper: its world, its truth, its controls, on a small synthetic set."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from offpolicy.datasets.synthetic import ExtremeShape
from offpolicy.datasets.xmc import XmcData, load_xmc
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.paper import ope_protocol
from offpolicy.paper.ope_protocol import markdown, run_protocol, summarise
from offpolicy.paper.ope_worlds import QUICK, OpeSplits, epsilon_greedy, synthetic_splits, xmc_splits
from offpolicy.policies import UniformPolicy
from shared_data import shared_data

SHAPE = ExtremeShape(200, 30, 6, 3.0, topics=6)


@pytest.fixture(scope="module")
def splits() -> OpeSplits:
    return synthetic_splits(SHAPE)


@pytest.fixture(scope="module")
def rows(splits: OpeSplits) -> list[dict[str, Any]]:
    return [row for seed in run_protocol(splits, 1.0, 2, QUICK) for row in seed]


def _found(rows: list[dict[str, Any]], method: str, tuned_on: str) -> list[float]:
    return [row["value"] for row in rows if (row["method"], row["tuned_on"]) == (method, tuned_on)]


def test_splits_share_the_policy_and_nothing_else(splits: OpeSplits) -> None:
    worlds = (splits.train, splits.validation, splits.test)
    assert [world.contexts.n_rows for world in worlds] == [100, 50, 50]
    assert all(world.labels is splits.train.labels for world in worlds)
    assert all(world.positive_offsets[-1] == len(world.positive_actions) for world in worlds)


def test_the_target_is_a_distribution_with_the_stated_value(splits: OpeSplits) -> None:
    target, value = epsilon_greedy(splits.test, 0.05)
    probs = target.log_probs_at(slice(None)).exp()
    assert torch.allclose(probs.sum(1), torch.ones(50, dtype=torch.float64))
    context = torch.arange(50).repeat_interleave(30)
    label = splits.test.is_positive(context, torch.arange(30).repeat(50)).view(50, 30)
    assert float((probs * label).sum(1).mean()) == pytest.approx(value)
    assert value == pytest.approx(float(0.95 + 0.05 * label.double().mean()))


def test_the_constant_and_the_paper_form_of_minvar_answer_nothing(rows: list[dict[str, Any]]) -> None:
    truth = rows[0]["truth"]
    table = {(row["method"], row["tuned_on"]): row for row in summarise(rows)}
    assert table["constant 0", "none"]["mse"] == pytest.approx(truth**2)
    assert table["minvar_paper", "none"]["mse"] == pytest.approx(truth**2, rel=0.01)


def test_true_propensities_are_unbiased(splits: OpeSplits) -> None:
    target, truth = epsilon_greedy(splits.test, 0.05)
    world = replace(splits.test, temperature=2.0)
    values = []
    for seed in range(20):
        log = world.log(seed, 20)
        inputs = weight_inputs(["recorded_log_ratio"], log, target, UniformPolicy(log.n_actions))
        values.append(float((inputs["recorded_log_ratio"].exp() * inputs["reward"]).mean()))
    error = np.std(values, ddof=1) / len(values) ** 0.5
    assert abs(np.mean(values) - truth) < 4 * error


def test_controls_with_a_free_scale_are_scaled_estimates(rows: list[dict[str, Any]]) -> None:
    for scaled, (plain, tuned_on) in {"c·ips": ("ips", "none"), "c·shrinkage": ("shrinkage", "truth")}.items():
        ratio = np.divide(_found(rows, scaled, "truth"), _found(rows, plain, tuned_on))
        assert ratio[0] == pytest.approx(ratio[1])


def test_summary_separates_bias_and_variance(rows: list[dict[str, Any]]) -> None:
    for line in summarise(rows):
        assert line["seeds"] == 2
        # With the n − 1 of both variances: MSE = bias² + variance·(n − 1)/n.
        assert line["mse"] == pytest.approx(line["bias"] ** 2 + line["variance"] / 2, abs=1e-12)
        assert line["variance_of_squared_error"] == pytest.approx(line["sd"] ** 2)
    assert "coverage" in next(line for line in summarise(rows) if line["method"] == "auto")
    assert markdown(summarise(rows)).count("\n") == len(summarise(rows)) + 1


def test_finished_seeds_are_kept(
    splits: OpeSplits, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(ope_protocol, "prepare", refuse)
    assert list(run_protocol(splits, 1.0, 2, QUICK, done=rows)) == []


def test_documents_become_worlds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words, labels = random.random((120, 15)) < 0.3, random.random((120, 8)) < 0.3
    labels[[3, 110]] = False
    x, y = csr_matrix(words.astype(np.float32)), csr_matrix(labels.astype(np.float32))
    found = xmc_splits(XmcData(x[:100], y[:100], x[100:], y[100:]), replace(QUICK, validation=20))
    kept = int(labels[:100].any(1).sum())
    assert found.validation.contexts.n_rows == 20
    assert found.train.contexts.n_rows == kept - 20
    assert found.test.contexts.n_rows == int(labels[100:].any(1).sum())
    assert sorted(found.test.positive_actions) == sorted(np.nonzero(labels[100:])[1])


def test_the_command_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    command = ["--set", "synthetic", "--quick", "--tau", "2", "--out", str(out), "--seeds"]
    ope_protocol.main([*command, "1"])
    first = out.read_text()
    ope_protocol.main([*command, "1"])
    assert out.read_text() == first
    assert {json.loads(line)["seed"] for line in first.splitlines()} == {0}
    assert "| 2 | auto | log |" in capsys.readouterr().out


@pytest.mark.slow
def test_delicious_has_the_known_value() -> None:
    data = load_xmc("delicious", shared_data("delicious"))
    _, value = epsilon_greedy(xmc_splits(data, replace(QUICK, validation=3_000, embedding_epochs=1)).test, 0.05)
    assert value == pytest.approx(0.951, abs=0.001)
