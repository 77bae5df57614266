"""Propensity-aware intervals, other models of β̂ and the audit, on worlds with known propensities."""

import numpy as np
import pytest

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.evaluation import evaluate
from offpolicy.evaluation.propensities import audit, compare_propensity_models
from offpolicy.log import LoggedData
from offpolicy.propensity import fit_logging_policy

WORLD = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=3, temperature=1.5)
RECORDED = WORLD.log(0, n_contexts=1500)
LOG = RECORDED.without_propensities()
TARGET = WORLD.target_policy(1.0)


def with_propensities(probs: np.ndarray) -> LoggedData:
    return LoggedData.from_arrays(
        contexts=LOG.contexts,
        context_index=LOG.context_index,
        action=LOG.action,
        reward=LOG.reward,
        actions=LOG.n_actions,
        logging_prob=probs,
    )


def test_propensity_aware_intervals_hold_the_estimate_and_grow_with_gamma() -> None:
    beta = fit_logging_policy(LOG, "linear")
    narrow, wide = (
        evaluate(LOG, TARGET, beta, estimators=("snips",), gamma=g, refits=12)["policy"].propensity_intervals
        for g in (0.5, 3.0)
    )
    assert wide["worst_case"].low < narrow["worst_case"].low < narrow["worst_case"].high < wide["worst_case"].high
    truth = WORLD.value(TARGET, LOG.contexts)
    assert narrow["refit_bootstrap"].low <= truth <= narrow["refit_bootstrap"].high
    assert narrow["refit_bootstrap"] == wide["refit_bootstrap"]
    assert 0.01 < narrow["refit_bootstrap"].high - narrow["refit_bootstrap"].low < 0.3


def test_gamma_may_be_calibrated() -> None:
    beta = fit_logging_policy(LOG, "linear")
    found = evaluate(LOG, TARGET, beta, estimators=("uips",), gamma="calibrated")["policy"].estimates[0]
    assert 0.5 < float(found.hyper["gamma"]) < 5.0
    with pytest.raises(ParameterError, match="calibrated"):
        evaluate(LOG, TARGET, beta, gamma="guessed")


def test_richer_propensity_models_predict_better_and_end_near_the_truth() -> None:
    found = {one.model: one for one in compare_propensity_models(LOG, TARGET, ("uniform", "popularity", "linear"))}
    fits = [found[name].log_likelihood or 0.0 for name in ("linear", "popularity", "uniform")]
    assert fits == sorted(fits, reverse=True)
    truth = WORLD.value(TARGET, LOG.contexts)
    error = {name: abs((one.value or 0.0) - truth) for name, one in found.items()}
    off = {name: abs((one.mean_weight or 0.0) - 1) for name, one in found.items()}
    assert error["linear"] < error["uniform"]
    assert off["linear"] < off["uniform"]


def test_refits_work_for_columns_and_lists_too() -> None:
    beta = fit_logging_policy(LOG, "linear")
    column = TARGET.log_probs(LOG.contexts).exp().numpy()[LOG.context_index, LOG.action]
    lists = TARGET.log_probs(LOG.contexts).topk(2).indices.tolist()
    policies = {"column": column, "top two": {"lists": lists}, "policy": TARGET}
    found = evaluate(LOG, policies, beta, estimators=("snips",), refits=6)
    bootstrap = {name: found[name].propensity_intervals["refit_bootstrap"] for name in policies}
    assert all(0.01 < one.high - one.low < 0.4 for one in bootstrap.values())
    assert bootstrap["column"].centre == pytest.approx(found["column"].value, abs=1e-9)


def test_the_audit_accepts_true_propensities_and_rejects_false_ones() -> None:
    assert RECORDED.logging_prob is not None
    honest = audit(RECORDED)
    assert honest.consistent
    assert honest.suspicious_actions == ()
    halved = audit(with_propensities(RECORDED.logging_prob / 2))
    assert not halved.consistent
    assert halved.mean_weight > 1.5
    shuffled = audit(with_propensities(np.random.default_rng(0).permutation(RECORDED.logging_prob)))
    assert not shuffled.consistent
    one_wrong = np.where(LOG.action == 2, RECORDED.logging_prob * 0.3, RECORDED.logging_prob)
    assert 2 in dict(audit(with_propensities(one_wrong)).suspicious_actions)
    with pytest.raises(ParameterError, match="nothing to audit"):
        audit(LOG)
