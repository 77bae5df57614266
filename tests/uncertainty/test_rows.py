"""U of the rows of a log: every form and model against loops, folds kept apart, and no NaN whatever the log."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import LogError, ParameterError
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.uncertainty import FORMS, Form, calibrate_gamma, row_uncertainty, rows, uncertainty_of

CONTEXTS, ACTIONS, D, RIDGE = 25, 4, 3, 0.7
WORLD = LinearSoftmaxWorld.draw(1, n_actions=ACTIONS, dimensions=D)
WITH_PROPENSITIES = WORLD.log(1, CONTEXTS, rows_per_context=2)
LOG = WITH_PROPENSITIES.without_propensities()
CONFIG = FitConfig(ridge=RIDGE, epochs=3)


def states_of(fitted: LoggingPolicy, intercept: bool) -> Tensor:
    scorer = fitted.whole.scorer
    assert scorer is not None
    found = scorer.states(LOG.contexts).detach().double()
    return torch.cat([found, torch.ones(len(found), 1, dtype=torch.float64)], 1) if intercept else found


def probabilities(fitted: LoggingPolicy) -> Tensor:
    return fitted.log_probs(LOG.contexts).double().exp()


def left_out(features: Tensor, alike: Any, weight: Tensor | None = None, ridge: float = RIDGE) -> Tensor:
    """√(gᵀ(κI + Σ w g'g'ᵀ)⁻¹g) over all other rows that `alike(row, other)` allows, by an explicit inverse."""
    result = []
    for n, g in enumerate(features):
        matrix = ridge * torch.eye(len(g), dtype=torch.float64)
        for m, other in enumerate(features):
            if m != n and alike(n, m):
                matrix += torch.outer(other, other) * (1.0 if weight is None else weight[m])
        result.append(float((g @ torch.linalg.inv(matrix) @ g).sqrt()))
    return torch.tensor(result, dtype=torch.float64)


def same_action(n: int, m: int) -> bool:
    return bool(LOG.action[n] == LOG.action[m])


def gauss_newton(gradients: Tensor, prob: Tensor) -> Tensor:
    """By loops over contexts and actions; gradients (contexts, actions, weights) of the logits."""
    size = gradients.shape[2]
    matrix = RIDGE * torch.eye(size, dtype=torch.float64)
    centred = gradients - (prob.unsqueeze(2) * gradients).sum(1, keepdim=True)
    for x in LOG.context_index:
        for a in range(ACTIONS):
            matrix += prob[x, a] * torch.outer(centred[x, a], centred[x, a])
    inverse = torch.linalg.inv(matrix)
    pairs = zip(LOG.context_index, LOG.action, strict=True)
    return torch.stack([(centred[x, a] @ inverse @ centred[x, a]).sqrt() for x, a in pairs])


def test_linear_forms_equal_loops() -> None:
    fitted = fit_logging_policy(LOG, "linear", config=CONFIG)
    assert fitted.whole.ridge == RIDGE
    x = states_of(fitted, intercept=True)
    features = x[torch.from_numpy(LOG.context_index).long()]
    torch.testing.assert_close(row_uncertainty(fitted, "shared"), left_out(features, lambda n, m: True))
    torch.testing.assert_close(row_uncertainty(fitted, "per_action"), left_out(features, same_action))
    blocks = torch.zeros(CONTEXTS, ACTIONS, ACTIONS * (D + 1), dtype=torch.float64)
    for a in range(ACTIONS):
        blocks[:, a, a * (D + 1) : (a + 1) * (D + 1)] = x
    expected = gauss_newton(blocks, probabilities(fitted))
    torch.testing.assert_close(row_uncertainty(fitted, "gauss_newton"), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("model", ["linear", "two_tower"])
def test_a_ridge_given_and_the_official_form_equal_loops(model: str) -> None:
    fitted = fit_logging_policy(LOG, model, config=CONFIG)
    scorer = fitted.whole.scorer
    assert scorer is not None
    context, action = torch.from_numpy(LOG.context_index).long(), torch.from_numpy(LOG.action).long()
    items = scorer.items()
    states = states_of(fitted, intercept=items is None)
    gradients = states[context] if items is None else states[context] * items.detach().double()[action]
    for ridge in (0.05, 3.0):  # raw gradients, whatever their length
        found = row_uncertainty(fitted, "shared", ridge=ridge)
        torch.testing.assert_close(found, left_out(gradients, lambda n, m: True, ridge=ridge), rtol=1e-6, atol=0)
        found = row_uncertainty(fitted, "per_action", ridge=ridge)
        torch.testing.assert_close(found, left_out(states[context], same_action, ridge=ridge), rtol=1e-6, atol=0)
    bare = states_of(fitted, intercept=False)  # the released code has no intercept
    gradients = bare[context] if items is None else bare[context] * items.detach().double()[action]
    unit = gradients / gradients.norm(dim=1, keepdim=True)
    found = row_uncertainty(fitted, "shared", normalisation="official")
    torch.testing.assert_close(found, left_out(unit, lambda n, m: True, ridge=float(unit.shape[1])), rtol=1e-6, atol=0)
    unit = bare[context] / bare[context].norm(dim=1, keepdim=True)
    found = row_uncertainty(fitted, "per_action", normalisation="official")
    torch.testing.assert_close(found, left_out(unit, same_action, ridge=float(unit.shape[1])), rtol=1e-6, atol=0)


def test_many_weights_fall_back_to_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "EXACT_LIMIT", 1)
    fitted = fit_logging_policy(LOG, "linear", config=CONFIG)
    features = states_of(fitted, intercept=True)[torch.from_numpy(LOG.context_index).long()]
    other = 1 - fitted.row_log_prob.exp()
    torch.testing.assert_close(
        row_uncertainty(fitted, "gauss_newton"), other * left_out(features, same_action, other), rtol=1e-6, atol=0
    )


def test_two_tower_forms_equal_loops() -> None:
    fitted = fit_logging_policy(LOG, "two_tower", config=CONFIG)
    scorer = fitted.whole.scorer
    assert scorer is not None
    items = scorer.items()
    assert items is not None
    items, x = items.detach().double(), states_of(fitted, intercept=False)
    context, action = torch.from_numpy(LOG.context_index).long(), torch.from_numpy(LOG.action).long()
    gradients = x.unsqueeze(1) * items
    expected = {
        "shared": left_out(gradients[context, action], lambda n, m: True),
        "per_action": left_out(x[context], same_action),
        "gauss_newton": gauss_newton(gradients, probabilities(fitted)),
    }
    for form in FORMS:
        found = row_uncertainty(fitted, form, ridge=RIDGE)
        torch.testing.assert_close(found, expected[form], rtol=1e-4, atol=1e-7)


def test_classifiers_have_the_forms_of_their_features() -> None:
    fitted = fit_logging_policy(LOG, LogisticRegression())
    linear = fit_logging_policy(LOG, "linear", config=FitConfig(ridge=1.0))
    for form in ("shared", "per_action"):
        torch.testing.assert_close(row_uncertainty(fitted, form), row_uncertainty(linear, form))
    torch.testing.assert_close(row_uncertainty(fitted, "gauss_newton"), row_uncertainty(fitted, "per_action"))


def test_known_propensities_have_no_uncertainty_and_counts_that_of_frequencies() -> None:
    assert not row_uncertainty(fit_logging_policy(WITH_PROPENSITIES, "recorded")).any()
    assert not row_uncertainty(fit_logging_policy(LOG, "uniform")).any()
    popular = row_uncertainty(fit_logging_policy(LOG, "popularity"))
    share = np.bincount(LOG.action, minlength=ACTIONS) / LOG.n_rows
    deviation = np.sqrt((1 - share) / (share * LOG.n_rows))  # of a log-frequency, by the delta method
    np.testing.assert_allclose(popular.numpy(), deviation[LOG.action], rtol=1e-9)
    counts = fit_logging_policy(LOG, "counts")
    prob = counts.row_log_prob.exp()
    torch.testing.assert_close(row_uncertainty(counts), ((1 - prob) / (2 * prob)).sqrt())


@pytest.mark.parametrize("form", FORMS)
def test_cross_fitted_uncertainty_comes_from_the_other_folds(form: Form) -> None:
    fitted = fit_logging_policy(LOG, "linear", config=CONFIG, folds=3)
    assert fitted.row_fold is not None
    found = row_uncertainty(fitted, form)
    for k in range(3):
        own, others = LOG.take(fitted.row_fold == k), LOG.take(fitted.row_fold != k)
        assert not set(own.contexts["x"].values[:, 0]) & set(others.contexts["x"].values[:, 0])  # type: ignore[union-attr]
        mine = torch.from_numpy(fitted.row_fold == k)
        torch.testing.assert_close(found[mine], uncertainty_of(fitted.folds[k], others, own, form))
        if form == "shared":
            matrix = RIDGE * torch.eye(D + 1, dtype=torch.float64)
            scorer = fitted.folds[k].scorer
            assert scorer is not None
            data, asked = (
                torch.cat([scorer.states(log.contexts).detach().double(), torch.ones(log.n_contexts, 1)], 1)[
                    torch.from_numpy(log.context_index).long()
                ]
                for log in (others, own)
            )
            matrix += data.T @ data
            slow = ((asked @ torch.linalg.inv(matrix)) * asked).sum(1).sqrt()
            torch.testing.assert_close(found[mine], slow)


def log_of(x: np.ndarray, context: np.ndarray, action: np.ndarray, n_actions: int) -> LoggedData:
    return LoggedData.from_arrays(
        contexts=FeatureTable({"x": EmbeddingColumn(x.astype(np.float32))}),
        context_index=context,
        action=action,
        reward=np.zeros(len(action)),
        actions=n_actions,
    )


RANDOM = np.random.default_rng(0)
HARD = {
    "identical contexts": log_of(np.ones((1, 3)), np.zeros(30, int), RANDOM.integers(0, 5, 30), 5),
    "one row per action": log_of(RANDOM.normal(size=(20, 3)), np.arange(20), np.arange(20), 20),
    "constant features": log_of(np.full((20, 3), 2.0), np.arange(20), RANDOM.integers(0, 4, 20), 4),
    "zero features": log_of(np.zeros((20, 3)), np.arange(20), RANDOM.integers(0, 4, 20), 4),
    "actions never logged": log_of(RANDOM.normal(size=(20, 3)), np.arange(20), RANDOM.integers(0, 3, 20), 9),
    "a single action logged": log_of(RANDOM.normal(size=(20, 3)), np.arange(20), np.zeros(20, int), 2),
    "huge features": log_of(1e4 * RANDOM.normal(size=(20, 3)), np.arange(20), RANDOM.integers(0, 3, 20), 3),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("model", ["popularity", "counts", "linear", "two_tower"])
def test_hard_logs_never_give_nan(name: str, model: str) -> None:
    log = HARD[name]
    fitted = fit_logging_policy(log, model, config=FitConfig(epochs=2))
    assert bool(torch.isfinite(fitted.row_log_prob).all())
    for form in FORMS:
        found = row_uncertainty(fitted, form)
        assert bool(torch.isfinite(found).all())
        assert bool((found >= 0).all())
        official = row_uncertainty(fitted, form, normalisation="official")
        assert bool(torch.isfinite(official).all())
    band = calibrate_gamma(fitted, draws=2)
    assert math.isfinite(band.gamma)
    assert math.isfinite(band.width)


def test_an_unseen_action_is_as_uncertain_as_its_context_is_long() -> None:
    log = HARD["actions never logged"]
    fitted = fit_logging_policy(log, "linear", config=CONFIG)
    asked = log_of(np.array([[3.0, 0.0, 4.0]]), np.array([0]), np.array([8]), 9)
    scorer = fitted.whole.scorer
    assert scorer is not None
    length = torch.linalg.vector_norm(torch.cat([scorer.states(asked.contexts).double(), torch.ones(1, 1)], 1))
    found = uncertainty_of(fitted.whole, log, asked, "per_action")
    torch.testing.assert_close(found, length.reshape(1) / RIDGE**0.5)
    for form in FORMS:
        assert bool(torch.isfinite(uncertainty_of(fitted.whole, log, asked, form)).all())


def test_actions_outside_the_vocabulary_and_unknown_forms_are_refused() -> None:
    with pytest.raises(LogError, match="action"):
        log_of(np.ones((2, 1)), np.arange(2), np.array([0, 5]), 3)
    with pytest.raises(ParameterError, match="per_action"):
        row_uncertainty(fit_logging_policy(LOG, "uniform"), "per_acton")  # type: ignore[arg-type]
