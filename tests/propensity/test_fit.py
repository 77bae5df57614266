"""Propensity models: each against an independent count or fit, and quality that tells them apart."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models.scorers import linear_scorer
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FitConfig, fit_logging_policy
from offpolicy.propensity.whole_batch import WholeBatch

WORLD = LinearSoftmaxWorld.draw(0, n_actions=8, dimensions=3)
LOG = WORLD.log(0, n_contexts=600, rows_per_context=3).without_propensities()


def gap_log() -> LoggedData:
    """Twelve actions, of which two were never logged and one exactly once."""
    action = np.where(LOG.action == 7, 9, LOG.action)
    action[0] = 11
    return LoggedData.from_arrays(
        contexts=LOG.contexts, context_index=LOG.context_index, action=action, reward=LOG.reward, actions=12
    )


MODELS: list[Any] = ["uniform", "popularity", "counts", "linear", "two_tower", LogisticRegression(max_iter=500)]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_every_rung_is_a_distribution_with_mass_on_actions_never_logged(model: Any) -> None:
    log = gap_log()
    fitted = fit_logging_policy(log, model, config=FitConfig(epochs=5))
    probs = fitted.log_probs(log.contexts).double().exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(log.n_contexts, dtype=torch.float64), rtol=1e-5, atol=0)
    assert bool((probs > 0).all())
    unseen = log.action_count == 0
    assert unseen.sum() == 3
    if model != "uniform":
        mass = probs[:, unseen].sum(1)
        torch.testing.assert_close(mass, torch.full_like(mass, 1 / (log.n_rows + 1)), rtol=1e-6, atol=0)
    on_rows = probs.numpy()[log.context_index, log.action]
    np.testing.assert_allclose(fitted.row_log_prob.exp().numpy(), on_rows, rtol=1e-4)
    assert np.isfinite(fitted.quality.log_likelihood)


def test_popularity_and_counts_are_counts() -> None:
    popular = fit_logging_policy(LOG, "popularity").log_probs(LOG.contexts).exp()
    np.testing.assert_allclose(popular[0].numpy(), np.bincount(LOG.action, minlength=8) / LOG.n_rows)
    counted = fit_logging_policy(LOG, "counts").log_probs(LOG.contexts).exp().numpy()
    for x in (0, 17, 599):
        rows = LOG.context_index == x
        count = np.bincount(LOG.action[rows], minlength=8)
        np.testing.assert_allclose(counted[x], (count + popular[0].numpy()) / (rows.sum() + 1))
    fresh = WORLD.contexts(5, 4)
    np.testing.assert_allclose(fit_logging_policy(LOG, "counts").log_probs(fresh).exp(), popular[:4])


def test_linear_fit_is_the_penalised_maximum_of_an_independent_solver() -> None:
    scorer = linear_scorer(LOG)
    assert WholeBatch(scorer, LOG).maximise(scorer, 2.0, 1e-12, 500)
    x = np.column_stack([scorer.states(LOG.contexts).numpy()[LOG.context_index], np.ones(LOG.n_rows)])
    onehot = np.eye(8)[LOG.action]

    def negative(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(8, 4)
        logits = x @ theta.T
        logits -= logits.max(1, keepdims=True)
        log_prob = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        value = -(onehot * log_prob).sum() + (theta[:, :3] ** 2).sum()
        return value, (-(onehot - np.exp(log_prob)).T @ x + 2 * theta * [1, 1, 1, 0]).ravel()

    solution = minimize(negative, np.zeros(32), jac=True, method="BFGS", options={"gtol": 1e-6})
    theirs = solution.x.reshape(8, 4)
    np.testing.assert_allclose(scorer.weights.detach().numpy(), theirs[:, :3], atol=1e-5)
    bias = scorer.bias.detach().numpy()  # known up to the same number for all actions
    np.testing.assert_allclose(bias - bias.mean(), theirs[:, 3] - theirs[:, 3].mean(), atol=1e-5)


def test_epochs_reach_the_converged_held_out_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    import offpolicy.propensity.likelihood as likelihood

    world = LinearSoftmaxWorld.draw(2, n_actions=40, dimensions=8)
    log = world.log(2, n_contexts=4000)
    same = FitConfig(ridge=1.0)
    converged = fit_logging_policy(log, "linear", config=same).quality.log_likelihood
    monkeypatch.setattr(likelihood, "WHOLE_NUMBERS", 0)
    by_epochs = fit_logging_policy(log, "linear", config=same).quality.log_likelihood
    assert by_epochs > converged - 0.005 * abs(converged)


def test_better_models_have_better_held_out_figures() -> None:
    log = WORLD.log(3, n_contexts=4000).without_propensities()
    quality = {m: fit_logging_policy(log, m).quality for m in ("uniform", "popularity", "linear", "two_tower")}
    truth = float(logged_log_prob(WORLD.logging_policy, log).mean())
    assert quality["linear"].log_likelihood > quality["popularity"].log_likelihood + 0.05
    assert quality["two_tower"].log_likelihood > quality["popularity"].log_likelihood + 0.05
    assert quality["linear"].log_likelihood == pytest.approx(truth, abs=0.08)
    assert quality["uniform"].log_likelihood == pytest.approx(-np.log(8))
    assert quality["linear"].calibration_error is not None
    assert quality["linear"].calibration_error < 0.08
    assert abs(quality["linear"].mean_weight - 1) < 4 * quality["linear"].mean_weight_error + 0.02
    assert abs(quality["uniform"].mean_weight - 1) > abs(quality["linear"].mean_weight - 1)


def test_recorded_propensities_are_used_as_they_are_and_only_where_known() -> None:
    log = WORLD.log(4, n_contexts=100)
    fitted = fit_logging_policy(log, "recorded")
    assert log.logging_prob is not None
    np.testing.assert_allclose(fitted.row_log_prob.exp().numpy(), log.logging_prob)
    with pytest.raises(ParameterError, match="logged actions only"):
        fitted.log_probs(log.contexts)
    with pytest.raises(ParameterError, match="records no propensities"):
        fit_logging_policy(log.without_propensities(), "recorded")


def test_classifier_columns_follow_its_classes_even_when_folds_lack_actions() -> None:
    log = gap_log()
    fitted = fit_logging_policy(log, RandomForestClassifier(n_estimators=20, random_state=0), folds=3)
    assert fitted.model == "RandomForestClassifier"
    assert bool(torch.isfinite(fitted.row_log_prob).all())
    # A forest that memorises its rows must prefer the logged action of a context it has seen.
    seen = fitted.whole.policy.log_probs(log.contexts).numpy()[log.context_index, log.action]
    assert np.exp(seen).mean() > 0.5


@pytest.mark.parametrize("model", ["popularity", "linear"])
def test_cross_fitted_rows_come_from_models_that_did_not_see_them(model: str) -> None:
    fitted = fit_logging_policy(LOG, model, folds=4, seed=1)
    assert fitted.row_fold is not None
    for k in range(4):
        rows = np.flatnonzero(fitted.row_fold == k)
        others = LOG.take(fitted.row_fold != k)
        alone = fitted.refit(others)
        expected = logged_log_prob(alone.policy, LOG.take(rows))
        torch.testing.assert_close(fitted.row_log_prob[rows], expected, rtol=1e-4, atol=1e-4)
    for x in range(0, LOG.n_contexts, 50):
        assert len(np.unique(fitted.row_fold[LOG.context_index == x])) == 1


def test_one_seed_fixes_a_fit() -> None:
    rows = [
        fit_logging_policy(LOG, "two_tower", seed=s, config=FitConfig(epochs=3, seed=s)).row_log_prob for s in (1, 1, 2)
    ]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def awkward(kind: str) -> LoggedData:
    random = np.random.default_rng(0)
    n = 60
    contexts: Any = random.normal(size=(n, 3))
    action = random.integers(0, 5, size=n)
    if kind == "identical contexts":
        contexts = np.ones((n, 3))
    if kind == "constant feature":
        contexts[:, 1] = 7.0
    if kind == "one row per action":
        action = np.arange(n)
    return LoggedData.from_arrays(contexts=contexts, action=action, reward=np.ones(n), actions=int(action.max()) + 1)


@pytest.mark.parametrize("model", ["popularity", "counts", "linear", "two_tower"])
@pytest.mark.parametrize("kind", ["identical contexts", "constant feature", "one row per action"])
def test_awkward_logs_give_a_result_never_nan(kind: str, model: str) -> None:
    fitted = fit_logging_policy(awkward(kind), model, config=FitConfig(epochs=5))
    assert bool(torch.isfinite(fitted.row_log_prob).all())
    assert np.isfinite(fitted.quality.log_likelihood)


def test_unknown_models_and_shares_are_refused() -> None:
    with pytest.raises(ParameterError, match="Did you mean 'linear'"):
        fit_logging_policy(LOG, "linaer")
    with pytest.raises(ParameterError, match="held_out"):
        fit_logging_policy(LOG, "linear", held_out=1.5)
    with pytest.raises(ParameterError, match="model must be one of"):
        fit_logging_policy(LOG, 3)
