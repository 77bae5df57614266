"""Learning on worlds with known values: methods improve, options do what they say, and bad input is told so."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.datasets.ranking_data import CandidateLists
from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import MissingExtraError, OffPolicyError, ParameterError
from offpolicy.estimators import ESTIMATORS, OFFICIAL
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.evaluation.ranking import ActionSets, RankingSums, rank_lists
from offpolicy.learning import METHODS, LearnedPolicy, LearnerConfig, learn_policy, prepare_training
from offpolicy.learning.monitors import BOUND, HeldOut
from offpolicy.learning.rows import batches_of
from offpolicy.log import LoggedData
from offpolicy.models.scorer import Scorer
from offpolicy.models.scorers import LinearScorer, TwoTowerScorer, linear_scorer
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, RowPolicy, ScorerPolicy, logged_log_prob
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards.cross_fitted import RewardFitConfig, fit_reward_model
from offpolicy.uncertainty import row_uncertainty

WORLD = LinearSoftmaxWorld.draw(0, n_actions=10, dimensions=3, alignment=0.2)
LOG = WORLD.log(1, 400, 3)
TEST = WORLD.contexts(7, 2000)
LOGGING = fit_logging_policy(LOG)
REWARDS = fit_reward_model(LOG, folds=2, config=RewardFitConfig(epochs=15))
QUICK: dict[str, Any] = {
    "epochs": 6,
    "learning_rate": 0.15,
    "batch_contexts": 100,
    "logging_policy": LOGGING,
    "reward_model": REWARDS,
}
SMALLER: dict[str, dict[str, Any]] = {"poxm": {"top_p": 6}}
TOWERS: dict[str, Any] = {"scorer": "two_tower", "scorer_options": {"dim": 8, "id_dim": 8}, "learning_rate": 0.02}


def value(policy: Policy) -> float:
    return WORLD.value(policy, TEST)


def weights(learned: LearnedPolicy) -> Tensor:
    return torch.cat([p.detach().flatten() for p in learned.scorer.parameters()])


@pytest.mark.parametrize("method", [name for name in METHODS if not name.endswith("_paper")])
def test_every_method_beats_the_logging_policy(method: str) -> None:
    learned = learn_policy(LOG, method, **QUICK, **SMALLER.get(method, {}))
    assert value(learned) > value(WORLD.logging_policy) + 0.03
    assert learned.label == METHODS[method].label
    assert len(learned.history) == 6
    assert learned.best_epoch == 5


@pytest.mark.parametrize("method", ["ce", "minvar", "stablevar", "poxm", "dr", "minvar_dr"])
@pytest.mark.parametrize("metric", [None, "value"])
def test_what_is_kept_by_context_changes_nothing(
    method: str, metric: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**QUICK, **SMALLER.get(method, {}), "epochs": 2, "metric": metric}
    kept = learn_policy(LOG, method, **changes)
    monkeypatch.setattr("offpolicy.learning.rows.KEPT_BYTES", 0)
    monkeypatch.setattr("offpolicy.models.scorers.KEPT_NUMBERS", 0)
    torch.testing.assert_close(weights(kept), weights(learn_policy(LOG, method, **changes)), rtol=1e-4, atol=1e-6)


def test_the_result_is_a_policy() -> None:
    learned = learn_policy(LOG, "ce", epochs=2)
    assert isinstance(learned, Policy)
    assert isinstance(learned, RowPolicy)
    probs = learned.log_probs(TEST).exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(2000), rtol=1e-5, atol=1e-6)
    expected = learned.log_probs(LOG.contexts).double()[LOG.context_index, LOG.action]
    torch.testing.assert_close(logged_log_prob(learned, LOG), expected, rtol=1e-5, atol=1e-5)


def test_what_is_missing_is_fitted() -> None:
    config = LearnerConfig(epochs=2, seed=3)
    alone = learn_policy(LOG.without_propensities(), "uips", config=config)
    logging = fit_logging_policy(LOG, "linear", seed=3)
    given = learn_policy(LOG, "uips", logging_policy=logging, config=config)
    assert torch.equal(weights(alone), weights(given))
    assert value(learn_policy(LOG, "dm", epochs=3, learning_rate=0.2)) > value(WORLD.logging_policy)


def test_one_seed_fixes_everything() -> None:
    first, again, other = (learn_policy(LOG, "uips", **QUICK, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))
    state = torch.get_rng_state()
    learn_policy(LOG, "uips", **QUICK)
    assert torch.equal(state, torch.get_rng_state())


def test_rows_without_reward_are_left_out_at_no_change() -> None:
    """A tiny baseline keeps every row and moves the result by as little."""
    left_out = learn_policy(LOG, "bips_cap", **QUICK | {"batch_contexts": 400})
    kept = learn_policy(LOG, "bips_cap", **QUICK | {"batch_contexts": 400}, reward_baseline=1e-12)
    torch.testing.assert_close(weights(left_out), weights(kept), rtol=1e-3, atol=1e-4)
    rewarded = len(np.unique(LOG.context_index[LOG.reward > 0]))
    assert rewarded < LOG.n_contexts
    batches = batches_of(LOG, LearnerConfig(batch_contexts=1), np.flatnonzero(LOG.reward > 0))
    assert len(batches) == rewarded


def test_batches_of_rows_learn_too() -> None:
    learned = learn_policy(LOG, "snips", **QUICK | {"batch_contexts": None}, batch_rows=64)
    assert value(learned) > value(WORLD.logging_policy)


def test_a_top_k_policy_spreads_its_mass() -> None:
    one = learn_policy(LOG, "bips_cap", **QUICK)
    many = learn_policy(LOG, "bips_cap", **QUICK, top_k=5)

    def entropy(policy: Policy) -> float:
        log_probs = policy.log_probs(TEST)
        return float(-(log_probs.exp() * log_probs).sum(1).mean())

    assert entropy(many) > entropy(one)


def test_uips_tight_takes_its_sample_size() -> None:
    few, many = (learn_policy(LOG, "uips_tight", **QUICK, sample_size=size) for size in (1.0, 1e6))
    assert few.history[-1]["largest_weight"] < many.history[-1]["largest_weight"]


@pytest.mark.parametrize("metric", ["value", "lower_bound"])
def test_stopping_on_held_out_rows(metric: str) -> None:
    learned = learn_policy(LOG, "uips", **QUICK | {"epochs": 60}, metric=metric, patience=3, held_out=0.2)
    scores = [epoch[metric] for epoch in learned.history]
    assert learned.metric == metric
    assert learned.best_epoch == int(np.argmax(scores))
    assert learned.best_metric == max(scores)
    assert len(scores) == 60 or len(scores) == learned.best_epoch + 4


@pytest.mark.parametrize("method", ["snips", "uips", "minvar", "poxm", "prune", "uips_dr", "dm", "ips_un", "ips_gt"])
def test_the_held_out_value_is_the_self_normalised_estimate(method: str) -> None:
    fixed: dict[str, Any] = {"lam": "paper"} if "lam" in METHODS[method].hyper else {}
    learned = learn_policy(LOG, method, **QUICK | {"epochs": 1}, metric="value", **fixed, **SMALLER.get(method, {}))
    rows, part = LOG.divide((0.9, 0.1), seed=0)[1]
    row = ESTIMATORS[METHODS[method].selection or METHODS[method].weight or ""]
    uncertainty = row_uncertainty(LOGGING)[torch.from_numpy(rows)] if METHODS[method].needs_uncertainty else None
    hyper = {name: learned.hyper[name] for name in row.hyper}
    inputs = weight_inputs(
        row.inputs, part, learned, LOGGING, uncertainty=uncertainty, top_p=float(hyper.get("top_p", 100))
    )
    weight = row.terms(inputs, **hyper)[0].double()
    reward = torch.from_numpy(part.reward.copy())
    baseline, imputed = torch.zeros(1), torch.zeros_like(reward)
    if METHODS[method].uses_reward_model:
        imputed = REWARDS.row_rewards(LOG)[torch.from_numpy(rows)]
        baseline = _baselines(learned)[torch.from_numpy(rows)]
    total = float(weight.sum())
    expected = float(baseline.mean()) + (float((weight * (reward - imputed)).sum()) / total if total else 0.0)
    assert learned.history[0]["value"] == pytest.approx(expected, rel=1e-4)


def _baselines(policy: Policy) -> Tensor:
    """Σ_a π(a|x_n) q̂(x_n, a) of each row, row by row, by the model that did not see the row."""
    assert REWARDS.row_fold is not None
    tables = [(policy.log_probs(LOG.contexts).exp() * model.rewards(LOG.contexts)).sum(1) for model in REWARDS.folds]
    return torch.stack([tables[k][x] for k, x in zip(REWARDS.row_fold, LOG.context_index, strict=True)])


def test_the_lower_bound_is_below_by_clustered_errors() -> None:
    """Five contexts in three clusters, the uniform policy: w = 1, 2 | 1, 2 | 1 and r = 1, 0 | 0, 1 | 1 by cluster.

    V = 4/7; the clusters' influences are −5/49, 2/49 and 3/49, so the error is √(3/2 · 38)/49 = √57/49.
    """
    log = LoggedData.from_arrays(
        np.arange(5.0)[:, None],
        [0, 1, 0, 1, 0],
        [1, 0, 0, 1, 1],
        actions=2,
        logging_prob=[0.5, 0.25, 0.5, 0.25, 0.5],
        cluster=["a", "a", "b", "b", "c"],
    )
    score = {}
    for metric in ("value", "lower_bound"):
        trainer = prepare_training(log, "ips_gt", validation=log, metric=metric)
        assert trainer.monitor is not None
        score[metric] = trainer.monitor.score(ScorerPolicy(trainer.scorer, log.actions))
    assert score["value"] == pytest.approx(4 / 7, rel=1e-6)
    assert score["lower_bound"] == pytest.approx(4 / 7 - BOUND * math.sqrt(57) / 49, rel=1e-6)


@pytest.mark.parametrize("unit_gradients", [False, True])
def test_the_uncertainty_of_alternation_is_exact(unit_gradients: bool) -> None:
    """U = √(gᵀM⁻¹g), M = κI + Σ g gᵀ over the rows, g = state · item; unit g and κ = d in the released code's form."""
    config = LearnerConfig(schedule="alternate", unit_gradients=unit_gradients, epochs=2, **TOWERS)
    trainer = prepare_training(LOG, "uips", config=config)
    assert trainer.alternation is not None
    trainer.alternation.begin(0)
    scorer = trainer.alternation.scorer
    g = (scorer.states(LOG.contexts)[LOG.context_index] * scorer.items()[LOG.action]).detach().double()
    g = g / g.norm(dim=1, keepdim=True) if unit_gradients else g
    matrix = (8.0 if unit_gradients else 1.0) * torch.eye(8, dtype=torch.float64) + g.T @ g
    expected = (g @ torch.linalg.inv(matrix) * g).sum(1).sqrt()
    torch.testing.assert_close(trainer.objective.rows.fixed["uncertainty"].double(), expected, rtol=1e-4, atol=1e-6)


def test_methods_may_share_their_nuisances() -> None:
    shared = Nuisances(LOG, model="linear", reward_model=REWARDS, seed=3)
    quick: dict[str, Any] = {"epochs": 2, "batch_contexts": 100}
    found = {name: learn_policy(LOG, name, nuisances=shared, **quick) for name in ("uips", "uips_dr", "ce")}
    beta = shared.logging_policy
    for name, learned in found.items():
        alone = learn_policy(LOG, name, logging_policy=beta, reward_model=REWARDS, **quick)
        assert torch.equal(weights(learned), weights(alone))
    assert torch.equal(shared.uncertainty(), row_uncertainty(fit_logging_policy(LOG, "linear", seed=3)))
    scored = learn_policy(LOG, "ce", nuisances=shared, metric="value", **quick)
    assert 0 < scored.history[0]["value"] < 1
    with pytest.raises(ParameterError, match="not both"):
        learn_policy(LOG, "uips", nuisances=shared, logging_policy=beta)
    with pytest.raises(ParameterError, match="another log"):
        learn_policy(WORLD.log(2, 20, 3), "uips", nuisances=shared)


def test_a_method_that_needs_no_logging_policy_fits_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Nuisances(LOG)
    monkeypatch.setattr(Nuisances, "logging_policy", property(lambda self: pytest.fail("β̂ was fitted")))
    assert len(learn_policy(LOG, "ce", nuisances=shared, epochs=1).history) == 1
    assert len(learn_policy(LOG, "dm", reward_model=REWARDS, epochs=1).history) == 1


@pytest.mark.parametrize("method", ["ce", "wll"])
def test_no_single_held_out_row_decides_when_likelihood_stops(method: str) -> None:
    """A rewarded row that β̂ calls all but impossible would take the score of an unbounded ratio to 1."""
    monitor = prepare_training(LOG, method, metric="value", logging_policy=LOGGING).monitor
    assert isinstance(monitor, HeldOut)
    known = monitor.objective.rows.fixed["log_logging"]
    row = int(monitor.objective.rows.fixed["reward"].argmax())
    uniform = ScorerPolicy(linear_scorer(LOG), LOG.actions)
    before = monitor.score(uniform)
    known[row] = -60.0
    assert abs(monitor.score(uniform) - before) < 0.1


def test_likelihood_is_scored_by_a_bounded_ratio_or_by_itself() -> None:
    alone = learn_policy(LOG, "ce", epochs=2, metric="value")
    assert alone.history[0]["value"] < 0
    scored = learn_policy(LOG, "ce", epochs=2, metric="value", logging_policy=LOGGING)
    assert 0 < scored.history[0]["value"] < 1


@pytest.mark.parametrize("method", ["uips", "ce", "dr", "minvar"])
def test_a_validation_log(method: str) -> None:
    other = WORLD.log(5, 100, 2)
    learned = learn_policy(LOG, method, **QUICK, validation=other)
    assert learned.metric == "value"
    assert all(math.isfinite(epoch["value"]) for epoch in learned.history)
    by_rows = learn_policy(LOG, "uips", **QUICK, validation=other, uncertainty=torch.ones(LOG.n_rows))
    assert by_rows.metric == "value"


def candidate_lists() -> CandidateLists:
    rewards = WORLD.rewards(TEST.take(slice(0, 50)))
    action = np.tile(np.arange(10), 50)
    offsets = np.arange(51) * 10
    label = (rewards > rewards.median(1, keepdim=True).values).flatten().numpy()
    return CandidateLists(TEST, np.arange(50, dtype=np.int32), offsets, action.astype(np.int32), label)


def test_stopping_on_rankings() -> None:
    lists = candidate_lists()
    learned = learn_policy(LOG, "bips_cap", **QUICK, validation=lists, metric="R@3")
    best = [epoch["R@3"] for epoch in learned.history]
    assert rank_lists(learned, lists, RankingSums(3)).recall == learned.best_metric == max(best)
    positives = ActionSets.from_rows(lists.owner[lists.label], lists.action[lists.label], 50)
    everything = learn_policy(LOG, "bips_cap", **QUICK, validation=(TEST.take(slice(0, 50)), positives), metric="R@3")
    assert [epoch["R@3"] for epoch in everything.history] == pytest.approx(best)


def test_stopping_on_the_callers_number() -> None:
    learned = learn_policy(LOG, "bips_cap", **QUICK | {"epochs": 40}, validation=value, patience=2)
    assert value(learned) == learned.best_metric
    assert learned.metric == "validation"


def test_a_policy_of_ones_own_architecture() -> None:
    def wide(log: LoggedData) -> Scorer:
        return linear_scorer(log, quadratic=True)

    learned = learn_policy(LOG, "bips_cap", **QUICK, scorer=wide)
    assert value(learned) > value(WORLD.logging_policy)
    spread = learn_policy(LOG, "ce", epochs=1, learning_rate=1e-9, initial_spread=0.3)
    assert float(weights(spread)[:30].std()) == pytest.approx(0.3, abs=0.1)


def test_alternation_refreshes_the_logging_policy() -> None:
    learned = learn_policy(LOG, "uips", schedule="alternate", epochs=8, **TOWERS)
    fit = [epoch["logging_log_likelihood"] for epoch in learned.history]
    assert fit[-1] > fit[0] > -math.log(10) - 0.2
    assert isinstance(learned.scorer, TwoTowerScorer)
    assert isinstance(learned.logging, Policy)
    assert value(learned) > value(WORLD.logging_policy)
    held = learn_policy(LOG, "uips", schedule="alternate", epochs=3, metric="value", **TOWERS)
    assert all(0 < epoch["value"] < 1 for epoch in held.history)
    summed = learn_policy(LOG, "minvar", schedule="alternate", epochs=2, **TOWERS)
    assert len(summed.history) == 2


@pytest.mark.parametrize("name", ["coat", "kuairec"])
def test_the_switches_of_the_released_code(name: str) -> None:
    config = LearnerConfig.official(name, epochs=3, batch_rows=128, **TOWERS)
    switches: dict[str, Any] = OFFICIAL[name].weight_switches()
    learned = learn_policy(LOG, "uips_official", config=config, **switches)
    assert config.in_batch
    assert config.unit_gradients
    assert learned.history[0]["largest_weight"] <= (OFFICIAL[name].first_epoch_cap or math.inf)
    assert learned.config.reward_baseline == OFFICIAL[name].reward_baseline
    assert "logging_log_likelihood" in learned.history[0]


def test_each_switch_alone() -> None:
    capped = learn_policy(LOG, "bips", **QUICK, first_epoch_cap=0.5)
    assert capped.history[0]["largest_weight"] <= 0.5 < capped.history[1]["largest_weight"]
    inside = learn_policy(LOG, "bips_cap", **QUICK | {"batch_contexts": None}, in_batch=True, batch_rows=64)
    assert value(inside) > value(WORLD.logging_policy)
    joint = learn_policy(LOG, "uips", schedule="alternate", first_epoch_cap=1.0, epochs=2, **TOWERS)
    assert joint.history[0]["largest_weight"] <= 1.0
    assert LearnerConfig.official("wiki").schedule == "pretrained"


def test_metrics_are_json_lines(tmp_path: Path) -> None:
    learned = learn_policy(LOG, "uips", **QUICK, directory=tmp_path, validation=value)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == learned.history
    assert [line["epoch"] for line in lines] == list(range(len(lines)))


def test_tensorboard_is_an_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"offpolicy\[tensorboard\]"):
        learn_policy(LOG, "ce", epochs=1, directory=tmp_path, tensorboard=True)
    with pytest.raises(ParameterError, match="directory"):
        learn_policy(LOG, "ce", epochs=1, tensorboard=True)


class Hopeless:
    """A logging policy that calls a logged row impossible."""

    actions = LOG.actions

    def log_probs(self, contexts: Any) -> Tensor:
        raise NotImplementedError

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        rows = LOGGING.logged_log_prob(log).clone()
        rows[log.reward.argmax()] = -1e5
        return rows


def test_a_loss_that_is_not_finite_names_the_batch_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(OffPolicyError, match=r"epoch 1, batch \d+\. A weight reached .* weight_cap"):
        learn_policy(LOG, "bips", epochs=3, logging_policy=Hopeless())
    good = learn_policy(LOG, "ce", epochs=2, directory=tmp_path)
    kept = (tmp_path / "checkpoint.safetensors").read_bytes()

    def poisoned(log: LoggedData) -> Scorer:
        scorer = linear_scorer(log)
        with torch.no_grad():
            scorer.weights.fill_(math.nan)
        return scorer

    with pytest.raises(OffPolicyError, match="own weights are not finite"):
        learn_policy(LOG, "ce", epochs=3, scorer=poisoned, directory=tmp_path / "other")
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == kept
    assert good.best_epoch == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"method": "uisp"}, "Did you mean 'uips'"),
    ({"method": "uips", "lambda_": 3}, "neither a field"),
    ({"method": "uips", "lam": -1.0}, "lam must lie in"),
    ({"method": "ce", "lam": 1.0}, "neither a field"),
    ({"method": "uips", "epochs": 0}, "epochs must lie in"),
    ({"method": "uips", "schedule": "daily"}, "schedule must be one of"),
    ({"method": "uips", "schedule": "alternate"}, "two-tower"),
    ({"method": "uips", "metric": "NDCG@5"}, "unbiased lists"),
    ({"method": "uips", "metric": "happiness"}, "must be one of value, lower_bound"),
    ({"method": "uips", "validation": 3}, "validation must be"),
    ({"method": "uips", "uncertainty": torch.ones(3)}, "one number for each"),
    ({"method": "uips", "uncertainty": -torch.ones(1200)}, "at least 0"),
    ({"method": "uips", "logging_policy": WORLD.logging_policy}, "pass `uncertainty`"),
    ({"method": "bips", "logging_policy": WORLD.logging_policy, "in_batch": True}, "needs a scorer"),
    ({"method": "ce", "gradient": "exact"}, "does not depend on π"),
    ({"method": "minvar", "gradient": "exact"}, "sums over all actions"),
    ({"method": "uips", "batch_rows": 8, "batch_contexts": 8}, "not both"),
    ({"method": "uips", "reward_baseline": "median"}, "reward_baseline must be one of"),
    ({"method": "uips", "scorer": "deep"}, "scorer must be one of"),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_told_so(given: dict[str, Any], message: str) -> None:
    given = {"logging_policy": LOGGING} | given
    with pytest.raises(ParameterError, match=message):
        learn_policy(LOG, **given)


def test_a_log_without_rewards_has_nothing_to_teach() -> None:
    empty = LoggedData.from_arrays(
        LOG.contexts, LOG.action, np.zeros(LOG.n_rows), context_index=LOG.context_index, actions=10
    )
    with pytest.raises(ParameterError, match="nothing tells actions apart"):
        learn_policy(empty, "bips", logging_policy="uniform")
    with pytest.raises(ParameterError, match="recorded propensities"):
        learn_policy(LOG.without_propensities(), "ips_gt")


def test_open_epochs_stop_on_held_out_rows_and_then_sharpen() -> None:
    """From the greedy policy of q̂ where there is one; the direct method ends where it starts."""
    log = WORLD.log(5, 1500)
    shared = Nuisances(log, model="linear")
    for method in ("ce", "bips_cap", "uips", "uips_dr", "wll", "ls_lin"):
        learned = learn_policy(log, method, nuisances=shared, learning_rate=0.1)
        assert len(learned.history) <= 50
        assert learned.metric == "value"
        assert value(learned) > value(WORLD.logging_policy)
        if method == "uips":
            assert learned.hyper["lam"] == learned.history[-1]["lam"] > 10
    direct = learn_policy(log, "dm", nuisances=shared)
    greedy = shared.cross_fitted_rewards("linear").rewards(TEST)
    best = float((torch.nn.functional.one_hot(greedy.argmax(1), 10) * WORLD.rewards(TEST)).sum(1).mean())
    assert value(direct) == pytest.approx(best, abs=0.01)
    assert len(direct.history) == 1


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_a_policy_is_sharpened_until_held_out_rows_object(direction: float) -> None:
    """From weak scores that prefer good actions as far as it helps; from scores that prefer bad ones not at all."""
    log = WORLD.log(5, 3000)
    trainer = prepare_training(log, "bips_cap", metric="value", logging_policy=WORLD.logging_policy, held_out=0.5)
    monitor, scorer = trainer.monitor, trainer.scorer
    assert isinstance(monitor, HeldOut)
    assert isinstance(scorer, LinearScorer)
    best = learn_policy(log, "dm").scorer
    with torch.no_grad():
        for own, good in zip(scorer.parameters(), best.parameters(), strict=True):
            own.copy_(direction * good / good.abs().max())
    trainer.best = trainer._kept(3)
    before, first = trainer.best.metric, value(ScorerPolicy(scorer, log.actions))
    trainer._sharpen()
    after = value(ScorerPolicy(scorer, log.actions))
    assert trainer.best.epoch == 3
    if direction > 0:
        assert after > first + 0.05
        assert trainer.best.metric != before
        assert trainer.best.metric == monitor.score(ScorerPolicy(scorer, log.actions))
    else:
        assert after == first
        assert trainer.best.metric == before


def test_types_of_what_may_be_given() -> None:
    rows: Callable[[LoggingPolicy], Tensor] = lambda policy: policy.row_log_prob.exp()  # noqa: E731
    learned = learn_policy(LOG, "UIPS-P", uncertainty=rows(LOGGING), logging_policy="linear", epochs=1, gamma=1.5)
    assert learned.method == "uips_p"
    assert learned.hyper == {"gamma": 1.5}
