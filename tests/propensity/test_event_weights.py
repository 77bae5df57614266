"""A row of weight 3 counts as three rows: in every model of β̂, its quality and its uncertainty."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.models import linear_scorer
from offpolicy.policies import CountsPolicy
from offpolicy.propensity import FitConfig, fit_logging_policy
from offpolicy.propensity.whole_batch import WholeBatch
from offpolicy.uncertainty import FORMS, Form, row_uncertainty, rows, uncertainty_of

ACTIONS = 4
WORLD = LinearSoftmaxWorld.draw(1, n_actions=ACTIONS, dimensions=3)
PLAIN = WORLD.log(1, 120, rows_per_context=2).without_propensities()
WEIGHT = np.random.default_rng(0).integers(1, 5, PLAIN.n_rows)
WEIGHTED = PLAIN.weighted(WEIGHT.astype(np.float64))
REPEATED = PLAIN.take(np.repeat(np.arange(PLAIN.n_rows), WEIGHT))
FRESH = WORLD.log(9, 30)

MODELS: list[Any] = ["popularity", "counts", "linear", "quadratic", "two_tower", LogisticRegression(C=0.5, tol=1e-8)]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_weighted_fit_is_that_of_repeated_rows(model: Any) -> None:
    config = FitConfig(epochs=6, learning_rate=0.01, ridge=2.0)
    weighted, repeated, plain = (
        fit_logging_policy(log, model, config=config, seed=3) for log in (WEIGHTED, REPEATED, PLAIN)
    )
    tolerance = 1e-4 if isinstance(model, str) else 2e-3
    found = [fitted.log_probs(FRESH.contexts).double() for fitted in (weighted, repeated, plain)]
    if model == "counts":  # fresh contexts have popularity alone
        found = [fitted.log_probs(PLAIN.contexts).double() for fitted in (weighted, repeated, plain)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=tolerance)
    assert float((found[0] - found[2]).abs().max()) > 0.02
    quality = [fitted.quality for fitted in (weighted, repeated, plain)]
    for figure in ("log_likelihood", "popularity_log_likelihood", "calibration_error", "mean_weight"):
        one, other, without = (getattr(one, figure) for one in quality)
        assert one == pytest.approx(other, abs=2e-3 if figure == "calibration_error" else tolerance)
        assert one != pytest.approx(without, abs=1e-5)
    assert quality[0].rows == quality[2].rows


def test_the_ridge_of_a_converged_fit_is_relative_to_events() -> None:
    scorers = [linear_scorer(PLAIN) for _ in range(3)]
    for scorer, log in zip(scorers, (WEIGHTED, REPEATED, PLAIN), strict=True):
        assert WholeBatch(scorer, log).maximise(scorer, 5.0, 1e-12, 500)
    torch.testing.assert_close(scorers[0].weights, scorers[1].weights, rtol=0, atol=1e-3)
    torch.testing.assert_close(scorers[0].bias, scorers[1].bias, rtol=0, atol=1e-3)
    assert float((scorers[0].weights - scorers[2].weights).detach().abs().max()) > 0.02


@pytest.mark.parametrize("prior", [0.0, 1.0, 3.0])
def test_weighted_counts_are_counts_of_events(prior: float) -> None:
    with np.errstate(divide="ignore"):
        found = CountsPolicy(WEIGHTED, prior).log_probs(PLAIN.contexts).exp().numpy()
    popular = np.bincount(PLAIN.action, WEIGHT, ACTIONS) / WEIGHT.sum()
    for x in range(PLAIN.n_contexts):
        own = PLAIN.context_index == x
        count = np.bincount(PLAIN.action[own], WEIGHT[own], ACTIONS)
        np.testing.assert_allclose(found[x], (count + prior * popular) / (WEIGHT[own].sum() + prior), rtol=1e-9)


def test_the_error_of_the_mean_weight_takes_rows_for_independent() -> None:
    quality = fit_logging_policy(WEIGHTED, "uniform", held_out=0.4, seed=1).quality
    train, valid = WEIGHTED.split((0.6, 0.4), seed=1)
    assert valid.row_weight is not None
    smooth = (train.action_weight + 1) / (train.n_events + ACTIONS)
    weight = smooth[valid.action] * ACTIONS
    mean = np.average(weight, weights=valid.row_weight)
    assert quality.mean_weight == pytest.approx(mean, rel=1e-9)
    error = np.sqrt(((valid.row_weight * (weight - mean)) ** 2).sum()) / valid.row_weight.sum()
    assert quality.mean_weight_error == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("model", ["linear", "two_tower"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("blocks", [False, True])
def test_the_uncertainty_of_other_rows_is_that_of_repeated_rows(
    model: str, form: Form, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        monkeypatch.setattr(rows, "EXACT_LIMIT", 1)
    fitted = fit_logging_policy(PLAIN, model, config=FitConfig(epochs=2, ridge=0.7)).whole
    found = [uncertainty_of(fitted, log, FRESH, form) for log in (WEIGHTED, REPEATED, PLAIN)]
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0)
    assert bool((found[0] < found[2] * (1 - 1e-3)).any())


@pytest.mark.parametrize("model", ["popularity", "counts"])
def test_the_uncertainty_of_frequencies_counts_events(model: str) -> None:
    weighted, repeated = (row_uncertainty(fit_logging_policy(log, model)) for log in (WEIGHTED, REPEATED))
    torch.testing.assert_close(weighted.numpy().repeat(WEIGHT), repeated.numpy(), rtol=1e-9, atol=0)


def test_a_weighted_row_leaves_its_own_uncertainty_with_all_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against explicit inverses without the row, in all forms that leave rows out."""
    fitted = fit_logging_policy(WEIGHTED, "linear", config=FitConfig(ridge=0.7))
    scorer = fitted.whole.scorer
    assert scorer is not None
    x = scorer.states(PLAIN.contexts).detach().double().numpy()[PLAIN.context_index]
    x = np.column_stack([x, np.ones(len(x))])
    other = 1 - fitted.row_log_prob.exp().numpy()
    monkeypatch.setattr(rows, "EXACT_LIMIT", 1)
    found = {form: row_uncertainty(fitted, form).numpy() for form in FORMS}
    for n in range(0, PLAIN.n_rows, 13):
        away = np.arange(PLAIN.n_rows) != n
        same = away & (PLAIN.action == PLAIN.action[n])
        kept: dict[Form, Any] = {
            "shared": (away, WEIGHT),
            "per_action": (same, WEIGHT),
            "gauss_newton": (same, WEIGHT * other),
        }
        for form, (keep, weight) in kept.items():
            matrix = 0.7 * np.eye(4) + (x[keep] * weight[keep, None]).T @ x[keep]
            expected = np.sqrt(x[n] @ np.linalg.inv(matrix) @ x[n]) * (other[n] if form == "gauss_newton" else 1.0)
            assert found[form][n] == pytest.approx(expected, rel=1e-6)
