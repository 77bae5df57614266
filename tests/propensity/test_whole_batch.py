"""The linear softmax fit: free intercepts, both precisions, subsampled search, the grid's ends, row multipliers."""

from typing import Any

import numpy as np
import pytest
import torch

import offpolicy.propensity.likelihood as likelihood
from offpolicy.log import LoggedData
from offpolicy.models import linear_scorer
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FitConfig, fit_logging_policy, whole_batch
from offpolicy.propensity.config import RIDGES
from offpolicy.propensity.likelihood import fit_softmax, softmax_policy
from offpolicy.propensity.whole_batch import WholeBatch


def normal_log(rows: int, actions: int, scale: float, seed: int = 0, popularity: float = 1.0) -> LoggedData:
    """One row a context, normal features, popularity falling like a power of the rank."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)) + 3.0  # far from centred
    logits = (x - 3.0) @ random.normal(size=(actions, 4)).T * scale / 2
    logits += -popularity * np.log1p(random.permutation(actions)) + random.gumbel(size=logits.shape)
    return LoggedData.from_arrays(x, logits.argmax(1), random.random(rows), actions=actions)


@pytest.mark.parametrize("by_batches", [False, True])
def test_a_strong_ridge_leaves_exactly_the_popularity(by_batches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = normal_log(3000, 6, 1.0, popularity=2.0)
    if by_batches:
        monkeypatch.setattr(likelihood, "WHOLE_NUMBERS", 0)
    scorer = linear_scorer(log)
    step = FitConfig(ridge=1e9, epochs=20, learning_rate=1e-3)
    fit_softmax(scorer, log, None, step)
    share = log.action_count / log.n_rows
    probs = softmax_policy(scorer, log).log_probs(log.contexts).exp().numpy()
    np.testing.assert_allclose(probs, np.tile(share, (log.n_contexts, 1)), rtol=0.05 if by_batches else 1e-4)


def test_mild_logs_keep_their_features() -> None:
    """A skewed logger that follows its features a little: linear beats popularity, whatever the intercepts are."""
    log = normal_log(20_000, 30, 0.15, popularity=1.5)
    linear, popular = (fit_logging_policy(log, model).quality.log_likelihood for model in ("linear", "popularity"))
    assert linear > popular + 0.003


def test_fitted_probabilities_match_the_counts_of_every_action() -> None:
    """With free intercepts Σ_x β̂(a|x) = n_a at the maximum, at any ridge."""
    log = normal_log(2000, 12, 1.0)
    for ridge in (0.1, 50.0):
        scorer = linear_scorer(log)
        assert WholeBatch(scorer, log).maximise(scorer, ridge, 1e-13, 500)
        total = softmax_policy(scorer, log).log_probs(log.contexts).double().exp().numpy()[log.context_index].sum(0)
        np.testing.assert_allclose(total, log.action_count, rtol=1e-4, atol=0.02)


@pytest.mark.parametrize(("rows", "actions", "scale"), [(4000, 20, 1.0), (3000, 150, 1.0), (3000, 20, 5.0)])
def test_single_precision_and_the_loose_tolerance_reach_the_converged_likelihood(
    rows: int, actions: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = normal_log(rows, actions, scale)
    train, valid = log.split((0.8, 0.2), seed=1)
    scores = []
    for numbers in (1 << 40, 0):
        monkeypatch.setattr(whole_batch, "FLOAT64_NUMBERS", numbers)
        scorer = linear_scorer(train)
        outcome = fit_softmax(scorer, train, None, FitConfig(ridge=1.0))
        assert outcome.converged
        scores.append(float(logged_log_prob(softmax_policy(scorer, train), valid).mean()))
    assert scores[1] == pytest.approx(scores[0], rel=1e-3)


def test_the_search_on_some_contexts_chooses_a_ridge_as_good_and_fits_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    log = normal_log(6000, 40, 0.5)
    everything = fit_logging_policy(log, "linear")
    monkeypatch.setattr(likelihood, "SEARCH_NUMBERS", 40 * 1500)
    some = fit_logging_policy(log, "linear")
    assert some.quality.log_likelihood == pytest.approx(everything.quality.log_likelihood, rel=2e-3)
    same = fit_logging_policy(log, "linear", config=FitConfig(ridge=some.whole.ridge))
    torch.testing.assert_close(some.row_log_prob, same.row_log_prob, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("kind", "end"), [("noise", RIDGES[-1]), ("linear", None), ("certain", RIDGES[0])])
def test_an_end_of_the_grid_is_told(kind: str, end: float | None) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(600, 3))
    action: Any = random.integers(0, 3, 600)
    if kind == "linear":
        action = (x @ random.normal(size=(3, 3)) + random.gumbel(size=(600, 3))).argmax(1)
    if kind == "certain":
        action = np.digitize(x[:, 0], [-0.5, 0.5])
        x[:, 0] += np.array([-3, 0, 3])[action]  # a gap between the actions
    log = LoggedData.from_arrays(x, action, np.zeros(600), actions=3)
    chosen = fit_logging_policy(log, "linear").chosen
    assert chosen.at_grid_end == (end is not None)
    assert (chosen.grid_note != "") == chosen.at_grid_end
    if end is not None:
        assert chosen.ridge == end
    given = fit_logging_policy(log, "linear", config=FitConfig(ridge=RIDGES[0])).chosen
    assert not given.at_grid_end


def test_a_fit_that_is_stopped_says_so() -> None:
    log = normal_log(1000, 10, 3.0)
    assert not fit_softmax(linear_scorer(log), log, None, FitConfig(epochs=1)).converged
    assert fit_softmax(linear_scorer(log), log, None, FitConfig(epochs=100)).converged
