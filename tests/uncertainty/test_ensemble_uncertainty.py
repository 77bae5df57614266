"""U of an ensemble: the formula by hand, one member, time, and exploration that teaches nothing about the scores."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from logger_worlds import drifting, greedy_linear, greedy_tree, softmax_linear
from offpolicy.log import LoggedData
from offpolicy.policies import MixturePolicy, logged_log_prob
from offpolicy.propensity import FAMILIES, FitConfig, FittedModel, LoggingPolicy, ensemble, fit_logging_policy
from offpolicy.uncertainty import FORMS, row_uncertainty, uncertainty_of

CONFIG = FitConfig(epochs=6)


def forced(log: LoggedData, monkeypatch: pytest.MonkeyPatch, *names: str) -> LoggingPolicy:
    monkeypatch.setattr(ensemble, "families_for", lambda log: list(names))
    monkeypatch.setattr(ensemble, "WORTH", -1.0)
    return fit_logging_policy(log, "auto", config=CONFIG)


def by_hand(model: FittedModel, data: LoggedData, rows: LoggedData, form: Any) -> Any:
    """√((Σ r U)² + Σ r (ℓ − ℓ̄)²), r = w p/Σ w p, row by row."""
    policy = model.policy
    assert isinstance(policy, MixturePolicy)
    weight = policy.weights.numpy()
    ell = np.stack([logged_log_prob(one.policy, rows).numpy() for one in model.members], 1)
    own = np.stack([uncertainty_of(one, data, rows, form).numpy() for one in model.members], 1)
    result = []
    for n in range(rows.n_rows):
        share = weight * np.exp(ell[n])
        share /= share.sum()
        centre = share @ ell[n]
        result.append(np.sqrt((share @ own[n]) ** 2 + share @ (ell[n] - centre) ** 2))
    return np.array(result)


@pytest.mark.parametrize("form", FORMS)
def test_u_of_an_ensemble_is_the_formula(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = greedy_tree(400).log, greedy_tree(100, seed=3).log
    beta = forced(log, monkeypatch, "popularity", "linear", "greedy_linear", "trees")
    assert len(beta.whole.members) == 3 + ensemble.FOLDS
    found = row_uncertainty(beta, form)
    np.testing.assert_allclose(found.numpy(), by_hand(beta.whole, log, log, form), rtol=1e-6, atol=1e-9)
    fresh = uncertainty_of(beta.whole, log, other, form)
    np.testing.assert_allclose(fresh.numpy(), by_hand(beta.whole, log, other, form), rtol=1e-6, atol=1e-9)
    assert float(found.min()) >= 0


@pytest.mark.parametrize("name", ["popularity", "linear", "greedy_linear", "top_k"])
@pytest.mark.parametrize("form", FORMS)
def test_an_ensemble_of_one_has_the_u_of_its_member(name: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = softmax_linear(300).log
    beta = forced(log, monkeypatch, name)
    (only,) = beta.whole.members
    torch.testing.assert_close(row_uncertainty(beta, form), uncertainty_of(only, log, log, form), rtol=1e-7, atol=1e-7)


def test_popularity_in_an_ensemble_has_the_error_of_a_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    log = softmax_linear(300).log
    found = row_uncertainty(forced(log, monkeypatch, "popularity")).numpy()
    share = (np.bincount(log.action, minlength=5) / 300)[log.action]
    np.testing.assert_allclose(found, np.sqrt((1 - share) / (300 * share)), rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_with_time_u_is_that_of_the_log_as_seen_in_time(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = drifting(400).log, drifting(90, seed=2).log
    beta = forced(log, monkeypatch, "popularity", "linear")
    view, inner = beta.whole.view, beta.whole.members[0]
    assert view is not None
    seen = view.seen(log)
    np.testing.assert_allclose(row_uncertainty(beta, form).numpy(), by_hand(inner, seen, seen, form), rtol=1e-6)
    for rows in (other, replace(other, timestamp=None)):
        found = uncertainty_of(beta.whole, log, rows, form).numpy()
        np.testing.assert_allclose(found, by_hand(inner, seen, view.seen(rows), form), rtol=1e-6)


def test_rows_that_came_from_exploration_say_nothing_of_the_scores_error() -> None:
    world = greedy_linear(1500, epsilon=0.2)
    train, valid = world.log.split((0.8, 0.2))
    model, _ = FAMILIES["greedy_linear"].fit(train, valid, None, FitConfig())
    share = model.softmax_share(world.log)
    assert share is not None
    favourite = world.probs.argmax(1) == world.log.action
    u = uncertainty_of(model, world.log, world.log, "per_action").numpy()
    base = model.base
    assert isinstance(base, MixturePolicy)
    alone = uncertainty_of(
        FittedModel(base.members[0], model.scorer, model.ridge), world.log, world.log, "per_action"
    ).numpy()
    np.testing.assert_allclose(u, alone * share.numpy(), rtol=1e-6)
    sure = ~favourite & (share.numpy() < 0.05)
    assert sure.sum() > 0.6 * (~favourite).sum()  # the rest lie near a border between favourites
    assert np.median(u[~favourite]) < 0.1 * np.median(alone[~favourite])
    assert np.median(share.numpy()[favourite]) > 0.9
