"""The evaluation experiment of the paper: its world, its truth, its controls, on a small synthetic set."""

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
from offpolicy.paper.studies.ope import Ope
from offpolicy.paper.studies.ope_protocol import one_seed, prepare
from offpolicy.paper.studies.ope_worlds import QUICK, OpeSplits, epsilon_greedy, synthetic_splits, xmc_splits
from offpolicy.policies import UniformPolicy
from shared_data import shared_data

SHAPE = ExtremeShape(200, 30, 6, 3.0, topics=6)


@pytest.fixture(scope="module")
def splits() -> OpeSplits:
    return synthetic_splits(SHAPE)


@pytest.fixture(scope="module")
def rows(splits: OpeSplits) -> list[dict[str, Any]]:
    fitted = prepare(splits, 1.0, QUICK)
    return [row for seed in range(2) for row in one_seed(fitted, seed)]


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
    assert _found(rows, "constant 0", "none") == [0.0, 0.0]
    errors = np.array(_found(rows, "minvar_paper", "none")) - truth
    assert float((errors**2).mean()) == pytest.approx(truth**2, rel=0.01)


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


def test_the_study_tells_of_the_estimate_to_rely_on_whether_it_covers_and_answers() -> None:
    made = Ope(world="synthetic", redraw="policy")
    (row,) = made.measure("auto", {}, 1)
    assert {row["coverage"], row["answered"]} <= {0.0, 1.0}
    assert row["MSE"] == pytest.approx((row["estimate"] - row["truth"]) ** 2)
    assert "coverage" not in made.measure("uips", {}, 1)[0]


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


@pytest.mark.slow
def test_delicious_has_the_known_value() -> None:
    data = load_xmc("delicious", shared_data("delicious"))
    _, value = epsilon_greedy(xmc_splits(data, replace(QUICK, validation=3_000, embedding_epochs=1)).test, 0.05)
    assert value == pytest.approx(0.951, abs=0.001)
