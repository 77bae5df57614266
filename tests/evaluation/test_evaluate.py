"""`evaluate` on worlds with known truth, its verdicts, and what it refuses."""

import json

import numpy as np
import pytest
import torch

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.evaluation import evaluate
from offpolicy.evaluation.comparison import holm
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.policies import EpsilonGreedyPolicy, UniformPolicy, as_policy, logged_log_prob
from offpolicy.propensity import fit_logging_policy
from offpolicy.rewards import PooledRewardModel

WORLD = LinearSoftmaxWorld.draw(0, n_actions=8, dimensions=3, temperature=1.5)
RECORDED = WORLD.log(0, n_contexts=2500)
LOG = RECORDED.without_propensities()
TARGET = WORLD.target_policy(1.0)
BETA = fit_logging_policy(LOG, "linear")


def test_every_way_to_give_a_policy_gives_the_same_value() -> None:
    probs = TARGET.log_probs(LOG.contexts).exp()
    column = probs.numpy()[LOG.context_index, LOG.action]
    found = evaluate(
        LOG,
        {"policy": TARGET, "function": lambda contexts: TARGET.log_probs(contexts).exp().numpy(), "column": column},
        BETA,
        estimators=("ips", "snips", "dr"),
    )
    for name in ("function", "column"):
        for ours, theirs in zip(found[name].estimates, found["policy"].estimates, strict=False):
            assert ours.value == pytest.approx(theirs.value, rel=1e-9)
    assert found["function"].value == pytest.approx(found["policy"].value, rel=1e-9)
    assert "dr" in found["column"].left_out
    assert set(found["policy"].left_out) == set()


def test_value_and_interval_hold_the_truth_and_the_better_policy_is_found() -> None:
    found = evaluate(LOG, {"target": TARGET, "uniform": "uniform"}, BETA)
    truth = WORLD.value(TARGET, WORLD.contexts(9, 20_000))
    interval = found["target"].interval
    assert interval.low <= truth <= interval.high
    assert interval.sampling > 0
    assert interval.propensity > 0
    assert found["target"].preflight.verdict.answerable
    assert found.best == "target"
    by_name = {c.candidate: c for c in found.comparisons}
    assert (by_name["target"].probability_of_improvement or 0.0) > 0.99
    assert (by_name["uniform"].probability_of_improvement or 0.0) < 0.01
    assert (found["target"].sensitivity.flips_at or 0.0) > 1.1
    assert found.logging.value == pytest.approx(LOG.reward.mean())
    json.dumps(found.to_json())


def test_results_are_on_the_users_scale() -> None:
    def scaled(low: float, high: float) -> LoggedData:
        return LoggedData.from_arrays(
            contexts=LOG.contexts,
            context_index=LOG.context_index,
            action=LOG.action,
            reward=low + LOG.reward * (high - low),
            actions=LOG.n_actions,
            reward_range=(low, high),
        )

    plain, wide = (
        evaluate(scaled(*r), TARGET, "popularity", estimators=("snips",)) for r in ((0.0, 1.0), (-10.0, 30.0))
    )
    one, other = plain.to_json()["policies"]["policy"], wide.to_json()["policies"]["policy"]
    assert other["value"] == pytest.approx(-10 + 40 * one["value"])
    assert other["interval"]["sampling"] == pytest.approx(40 * one["interval"]["sampling"])
    assert wide.to_json()["logging"]["value"] == pytest.approx(-10 + 40 * LOG.reward.mean())
    assert other["estimates"][0]["standard_error"] == pytest.approx(40 * one["estimates"][0]["standard_error"])


def test_recorded_propensities_leave_no_propensity_error_from_uncertainty() -> None:
    found = evaluate(RECORDED, TARGET, "recorded", estimators=("ips", "snips"))
    assert found.logging.model == "recorded"
    assert found["policy"].interval.low <= WORLD.value(TARGET, LOG.contexts) <= found["policy"].interval.high


def test_a_deterministic_logger_is_refused() -> None:
    sharp = LinearSoftmaxWorld.draw(1, n_actions=8, dimensions=3, temperature=0.02)
    log = sharp.log(0, n_contexts=1500).without_propensities()
    found = evaluate(log, "uniform", "linear", estimators=("snips",))
    verdict = found["policy"].preflight.verdict
    assert verdict.answer == "run an experiment"
    assert verdict.reasons
    assert "experiment" in verdict.advice
    assert np.isfinite(found["policy"].value)


def test_one_cluster_is_stated_not_nan() -> None:
    log = LoggedData.from_arrays(
        contexts=LOG.contexts,
        context_index=LOG.context_index,
        action=LOG.action,
        reward=LOG.reward,
        actions=LOG.n_actions,
        cluster=np.zeros(LOG.n_rows, dtype=int),
    )
    found = evaluate(log, TARGET, "popularity", estimators=("snips",))["policy"]
    assert found.interval.vacuous
    assert "cluster" in found.interval.note
    assert not found.preflight.verdict.answerable


def test_bad_policies_and_logs_are_refused_by_name() -> None:
    with pytest.raises(ParameterError, match=r"sum to 1.*number 0"):
        evaluate(LOG, lambda contexts: np.full((contexts.n_rows, 8), 0.2), BETA)
    with pytest.raises(ParameterError, match="not in the log's table: 8"):
        evaluate(LOG, UniformPolicy(9), BETA)
    with pytest.raises(ParameterError, match=r"row 4 .counted from 1. holds 1.5"):
        evaluate(LOG, np.where(np.arange(LOG.n_rows) == 3, 1.5, 0.5), BETA)
    with pytest.raises(ParameterError, match="one probability for each"):
        evaluate(LOG, np.ones((LOG.n_rows, 8)), BETA)
    with pytest.raises(ParameterError, match="no such action"):
        evaluate(LOG, {"lists": [[99]] * LOG.n_contexts}, BETA)
    constant = LoggedData.from_arrays(contexts=LOG.contexts, action=LOG.action, reward=np.ones(LOG.n_rows), actions=8)
    with pytest.raises(ParameterError, match="Every reward in this log is 1"):
        evaluate(constant, TARGET)
    with pytest.raises(ParameterError, match="level"):
        evaluate(LOG, TARGET, BETA, level=1.5)


def test_lists_and_epsilon_greedy_are_distributions() -> None:
    lists = [[int(a) for a in np.random.default_rng(x).permutation(8)[: 1 + x % 3]] for x in range(LOG.n_contexts)]
    top = as_policy({"lists": lists, "residual": 0.2}, LOG)
    greedy = EpsilonGreedyPolicy(TARGET, 0.1)
    for policy in (top, greedy):
        probs = policy.log_probs(LOG.contexts).exp()
        torch.testing.assert_close(probs.sum(1), torch.ones(LOG.n_contexts, dtype=torch.float64))
        on_rows = probs.numpy()[LOG.context_index, LOG.action]
        np.testing.assert_allclose(logged_log_prob(policy, LOG).exp().numpy(), on_rows, rtol=1e-9)
    assert probs[0, lists[0][0]] >= 0.1 / 8
    assert float(top.log_probs(LOG.contexts).exp()[0, lists[0][0]]) == pytest.approx(0.8 / len(lists[0]) + 0.2 / 8)


def test_pooled_reward_model_leaves_each_row_out_exactly() -> None:
    small = LOG.take(np.arange(120))
    model = PooledRewardModel.fit(small)
    x = np.column_stack([model.design.encode(small.contexts).numpy()[small.context_index], np.ones(120)]).astype(float)
    residual = small.reward - x @ model.pooled.numpy()
    for row in (0, 7, 63):
        others = (small.action == small.action[row]) & (np.arange(120) != row)
        a = x[others]
        own = np.linalg.solve(a.T @ a + model.ridge * np.eye(x.shape[1]), a.T @ residual[others])
        expected = np.clip(x[row] @ (model.pooled.numpy() + own), 0, 1)
        assert float(model.imputed[row]) == pytest.approx(expected, abs=1e-9)


def test_rows_in_chunks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate(LOG, TARGET, BETA)
    monkeypatch.setattr("offpolicy.log.batches.ROW_BYTES", 97 * 64 * 8)  # 97 rows at a time
    chunked = evaluate(LOG, TARGET, BETA)
    assert chunked["policy"].value == pytest.approx(whole["policy"].value, rel=1e-12)
    for ours, theirs in zip(chunked["policy"].estimates, whole["policy"].estimates, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-12)
        assert ours.standard_error == pytest.approx(theirs.standard_error, rel=1e-9)


def test_holm_is_the_step_down_correction() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9]) == [0.9]


def test_no_table_of_contexts_is_ever_dense_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy function never sees more contexts at once than a tile holds."""
    monkeypatch.setattr("offpolicy.log.batches.BATCH_BYTES", 50 * 8 * 8)
    largest = 0

    def function(contexts: FeatureTable) -> np.ndarray:
        nonlocal largest
        largest = max(largest, contexts.n_rows)
        return TARGET.log_probs(contexts).exp().numpy()

    evaluate(LOG, function, BETA, estimators=("dr", "minvar"))
    assert largest <= 50
