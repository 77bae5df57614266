"""One pass over the log: every policy's probabilities are computed once a context, and give what slow NumPy gives."""

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.evaluation import Asked, Evaluator, Options, evaluate, weight_inputs
from offpolicy.evaluation.inputs import policy_inputs
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, UniformPolicy
from offpolicy.propensity import fit_logging_policy

Array = npt.NDArray[np.float64]
CONTEXTS, ACTIONS, ROWS = 40, 5, 130
RANDOM = np.random.default_rng(0)
CONTEXT = np.concatenate([np.arange(CONTEXTS), RANDOM.integers(0, CONTEXTS, ROWS - CONTEXTS)])
ACTION = RANDOM.integers(0, ACTIONS, ROWS)
REWARD = RANDOM.random(ROWS)
EVENTS = RANDOM.integers(1, 4, ROWS).astype(np.float64)


def a_log(**given: Any) -> LoggedData:
    return LoggedData.from_arrays(
        contexts=np.arange(CONTEXTS, dtype=np.float64)[:, None],
        context_index=CONTEXT,
        action=ACTION,
        reward=REWARD,
        actions=ACTIONS,
        **given,
    )


def table(seed: int) -> Array:
    """A distribution over actions for every context."""
    found: Array = np.random.default_rng(seed).dirichlet(np.ones(ACTIONS), CONTEXTS)
    return found


class Counted:
    """A policy given by a table, that counts how often each context was asked for."""

    def __init__(self, probs: Array) -> None:
        self.actions, self.probs, self.asked = ActionTable.numbered(ACTIONS), probs, Counter[int]()

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        (column,) = contexts.values()
        place = np.asarray(column.values).reshape(-1).round().astype(int)  # type: ignore[union-attr]
        self.asked.update(place.tolist())
        return torch.from_numpy(self.probs[place]).log()


class Rows(Counted):
    """The same, which also knows logged rows without looking at the other actions."""

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        return torch.from_numpy(self.probs[log.context_index, log.action]).log()


class Rewards:
    """q̂ by a table, that counts too."""

    def __init__(self, values: Array) -> None:
        self.values, self.asked = values, Counter[int]()

    def rewards(self, contexts: FeatureTable) -> Tensor:
        (column,) = contexts.values()
        place = np.asarray(column.values).reshape(-1).round().astype(int)  # type: ignore[union-attr]
        self.asked.update(place.tolist())
        return torch.from_numpy(self.values[place])


BETA, FIRST, SECOND = table(1), table(2), table(3)
Q = np.random.default_rng(4).random((CONTEXTS, ACTIONS))
ONCE = dict.fromkeys(range(CONTEXTS), 1)
MANY = ("ips", "snips", "dm", "dr", "minvar", "stablevar", "poxm")


def judged(policies: Any, beta: Policy, rewards: Rewards | None = None, **given: Any) -> Evaluator:
    nuisances = Nuisances(a_log(), logging_policy=beta, reward_model=rewards)
    return Evaluator(nuisances, policies, given.pop("references", {}), Options(given.pop("estimators", MANY)))


@pytest.mark.parametrize("batch", [7, 10_000])
def test_each_policy_and_beta_are_asked_once_a_context(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr("offpolicy.log.batches.BATCH_BYTES", batch * ACTIONS * 8)
    first, second, third, beta, rewards = Counted(FIRST), Counted(SECOND), Rows(FIRST), Rows(BETA), Rewards(Q)
    column = SECOND[CONTEXT, ACTION]
    found = judged(
        {"first": first, "second": second, "column": column}, beta, rewards, references={"third": third}
    ).evaluation
    assert list(found.policies) == ["first", "second", "column", "third"]
    for policy in (first, second, third, beta):
        assert policy.asked == ONCE
    assert max(rewards.asked.values()) <= 2, "once for the policies, once for the logged rows"


def test_a_beta_that_does_not_know_rows_is_asked_for_them_once_more_whatever_the_number_of_policies() -> None:
    beta = Counted(BETA)
    _ = judged({str(seed): Counted(table(seed)) for seed in range(5)}, beta, Rewards(Q)).evaluation
    assert set(beta.asked) == set(ONCE)
    assert max(beta.asked.values()) <= 2


def test_columns_need_no_probabilities_of_all_actions() -> None:
    beta, rewards = Rows(BETA), Rewards(Q)
    found = judged({"column": FIRST[CONTEXT, ACTION]}, beta, rewards).evaluation
    assert beta.asked == {}
    assert rewards.asked == {}
    assert {"dr", "dm", "minvar"} <= set(found["column"].left_out)
    assert [one.name for one in found["column"].estimates] == ["ips", "snips"]
    ratio = FIRST[CONTEXT, ACTION] / BETA[CONTEXT, ACTION]
    assert found["column"].estimates[0].value == pytest.approx((ratio * REWARD).mean(), rel=1e-9)
    assert "target mass without support" not in {check.name for check in found["column"].preflight.checks}


def test_a_beta_known_by_its_rows_alone_leaves_out_sums_over_actions() -> None:
    log = a_log(logging_prob=BETA[CONTEXT, ACTION])
    found = evaluate(log, Counted(FIRST), "recorded", estimators=("ips", "dr"), reward_model=Rewards(Q))["policy"]
    assert [one.name for one in found.estimates] == ["ips", "dr"]
    assert "target mass without support" not in {check.name for check in found.preflight.checks}


def test_policies_that_share_a_pass_get_what_each_gets_alone() -> None:
    policies = {"first": Counted(FIRST), "second": Counted(SECOND), "column": FIRST[CONTEXT, ACTION]}
    shared = judged(policies, Rows(BETA), Rewards(Q)).evaluation
    for name, policy in policies.items():
        alone = judged({name: policy}, Rows(BETA), Rewards(Q)).evaluation
        assert alone[name].model_dump() == shared[name].model_dump()
        ours, theirs = (next(c for c in e.comparisons if c.candidate == name) for e in (shared, alone))
        assert (ours.difference, ours.low, ours.p_value) == (theirs.difference, theirs.low, theirs.p_value)
    first = shared["first"].value
    assert abs(first - shared["second"].value) > 1e-3
    assert shared.best in policies


def test_estimates_are_those_of_slow_numpy() -> None:
    found = judged({"first": Counted(FIRST)}, Rows(BETA), Rewards(Q)).evaluation["first"]
    values = {one.name: one.value for one in found.estimates}
    rho = FIRST[CONTEXT, ACTION] / BETA[CONTEXT, ACTION]
    q = Q[CONTEXT, ACTION]
    model = (FIRST * Q).sum(1)[CONTEXT]
    assert values["ips"] == pytest.approx((rho * REWARD).mean(), rel=1e-9)
    assert values["snips"] == pytest.approx((rho * REWARD).sum() / rho.sum(), rel=1e-9)
    assert values["dm"] == pytest.approx(model.mean(), rel=1e-9)
    assert values["dr"] == pytest.approx((model + rho * (REWARD - q)).mean(), rel=1e-9)
    assert found.left_out == {}


def test_inputs_of_rows_are_those_of_slow_numpy() -> None:
    log = a_log(logging_prob=BETA[CONTEXT, ACTION] / 2, row_weight=EVENTS)
    names = (
        *("log_target", "log_logging", "log_ratio", "log_count_prob", "recorded_log_ratio", "sample_size", "action"),
        *("log_second_moment", "log_minvar_mass", "log_stablevar_mass", "context_index", "uncertainty"),
        *("logging_rank", "log_target_top", "log_logging_top"),
    )
    u = torch.from_numpy(RANDOM.random(ROWS))
    found = weight_inputs(names, log, Counted(FIRST), Rows(BETA), uncertainty=u, reward_model=Rewards(Q), top_p=2)
    pi, beta = FIRST[CONTEXT, ACTION], BETA[CONTEXT, ACTION]
    order = np.argsort(-BETA, axis=1)
    top = order[:, :2]
    rank = np.array([int(np.flatnonzero(order[x] == a)[0]) for x, a in zip(CONTEXT, ACTION, strict=True)])
    same = [(x == CONTEXT) & (a == ACTION) for x, a in zip(CONTEXT, ACTION, strict=True)]
    expected = {
        "log_target": np.log(pi),
        "log_logging": np.log(beta),
        "log_ratio": np.log(pi / beta),
        "recorded_log_ratio": np.log(pi / (beta / 2)),
        "log_count_prob": np.log(
            [EVENTS[cell].sum() / EVENTS[x == CONTEXT].sum() for x, cell in zip(CONTEXT, same, strict=True)]
        ),
        "sample_size": np.array(float(CONTEXTS)),
        "action": ACTION,
        "context_index": CONTEXT,
        "uncertainty": u.numpy(),
        "log_second_moment": np.log((FIRST**2 / BETA).sum(1))[CONTEXT],
        "log_minvar_mass": np.log((BETA / FIRST**2).sum(1))[CONTEXT],
        "log_stablevar_mass": np.log((np.sqrt(BETA) / FIRST).sum(1))[CONTEXT],
        "logging_rank": rank,
        "log_target_top": np.log(np.take_along_axis(FIRST, top, 1).sum(1))[CONTEXT],
        "log_logging_top": np.log(np.take_along_axis(BETA, top, 1).sum(1))[CONTEXT],
        "reward": REWARD,
        "imputed": Q[CONTEXT, ACTION],
        "baseline": (FIRST * Q).sum(1)[CONTEXT],
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-9, atol=1e-12, err_msg=name)


def test_only_what_is_asked_for_is_kept() -> None:
    found = weight_inputs(("log_ratio",), a_log(), Counted(FIRST), Rows(BETA))
    assert set(found) == {"log_ratio", "reward"}


def test_an_action_with_less_than_a_two_hundredth_of_uniform_probability_has_no_support() -> None:
    """π's mass on it counts as unsupported; just above the limit it does not."""
    beta = np.full((CONTEXTS, ACTIONS), 0.2)
    beta[:, 0] = np.where(np.arange(CONTEXTS) < 15, 0.99, 1.01) * 0.005 / ACTIONS
    beta[:, 1] = 0.4 - beta[:, 0]
    found = policy_inputs(("log_ratio",), a_log(), {"first": Counted(FIRST)}, Rows(beta), support=True)["first"]
    assert found.unsupported is not None
    expected = np.where(np.arange(CONTEXTS) < 15, FIRST[:, 0], 0.0)
    np.testing.assert_allclose(found.unsupported.numpy(), expected, rtol=1e-9, atol=1e-15)
    without = policy_inputs(("log_ratio",), a_log(), {"first": Counted(FIRST)}, Rows(beta))["first"]
    assert without.unsupported is None
    evaluation = judged({"first": Counted(FIRST)}, Rows(beta), Rewards(Q)).evaluation
    (check,) = [c for c in evaluation["first"].preflight.checks if c.name == "target mass without support"]
    assert check.value == pytest.approx(expected[CONTEXT].mean(), rel=1e-9)


def test_a_policy_that_never_takes_an_action_has_no_ratio_there() -> None:
    """π = 0 gives ρ = 0 even where β̂ = 0 too."""
    target, beta = FIRST.copy(), BETA.copy()
    target[:, 0] = beta[:5, 0] = 0.0
    with np.errstate(divide="ignore"):
        ratio = weight_inputs(("log_ratio",), a_log(), Counted(target), Rows(beta))["log_ratio"]
    zero = ACTION == 0
    assert bool((ratio[torch.from_numpy(zero)] == -torch.inf).all())
    assert bool(ratio[torch.from_numpy(~zero)].isfinite().all())


def test_a_fitted_beta_takes_its_cross_fitted_rows_and_one_pass() -> None:
    log = a_log()
    beta = fit_logging_policy(log, "linear")
    policy = Counted(FIRST)
    found = evaluate(log, {"first": policy}, beta, estimators=("ips", "minvar"))
    assert policy.asked == ONCE
    ratio = FIRST[CONTEXT, ACTION] / beta.row_log_prob.exp().numpy()
    assert found["first"].estimates[0].value == pytest.approx((ratio * REWARD).mean(), rel=1e-6)
    assert found.logging.model == "linear"
    assert found.logging.quality == beta.quality


def test_names_stand_for_one_policy_each() -> None:
    with pytest.raises(ParameterError, match="'first' is both a policy and a reference"):
        judged({"first": Counted(FIRST)}, Rows(BETA), references={"first": Counted(SECOND)})
    with pytest.raises(ParameterError, match="policies is empty"):
        evaluate(a_log(), {}, "popularity")
    nuisances = Nuisances(a_log(), logging_policy=UniformPolicy(ACTIONS))
    refitted = Evaluator(nuisances, {"first": Counted(FIRST)}, {}, Options(("ips",), refits=2))
    with pytest.raises(ParameterError, match="refits needs a logging policy"):
        _ = refitted.evaluation


def test_gamma_given_reaches_the_weights_and_the_band() -> None:
    u = torch.from_numpy(np.random.default_rng(8).uniform(0.05, 0.3, ROWS))
    log = a_log()
    bands = []
    for gamma in (0.5, 2.0):
        nuisances = Nuisances(log, logging_policy=UniformPolicy(ACTIONS), uncertainty=u, reward_model=Rewards(Q))
        one = Evaluator(nuisances, {"first": Counted(FIRST)}, {}, Options(("uips", "ips"), gamma=gamma))
        found = one.evaluation["first"]
        assert found.estimates[0].hyper["gamma"] == gamma
        assert found.estimates[0].hyper["lam"] == pytest.approx(found.lam)
        assert one.rows["first"].clustered_all([one.damped("first")])[0].value == found.estimates[0].value
        bands.append(found.propensity_intervals["worst_case"])
    assert bands[1].low < bands[0].low
    assert bands[1].high > bands[0].high
    plain = Evaluator(
        Nuisances(log, logging_policy=UniformPolicy(ACTIONS)), {"first": Counted(FIRST)}, {}, Options(("ips",))
    )
    assert plain.damped("first") == Asked("ips")
    assert plain.evaluation["first"].propensity_intervals == {}


def test_events_count_in_the_logging_value_and_in_what_flips_the_conclusion() -> None:
    nuisances = Nuisances(a_log(row_weight=EVENTS), logging_policy=Rows(BETA))
    column = FIRST[CONTEXT, ACTION]
    found = Evaluator(nuisances, {"first": column}, {}, Options(("ips", "snips"))).evaluation
    mean = (EVENTS * REWARD).sum() / EVENTS.sum()
    assert found.logging.value == pytest.approx(mean, rel=1e-9)
    mass = EVENTS * column / BETA[CONTEXT, ACTION]
    values = [one.value for one in found["first"].estimates]
    assert values == pytest.approx([(mass * REWARD).sum() / EVENTS.sum(), (mass * REWARD).sum() / mass.sum()], rel=1e-9)
    gap = mass * (REWARD - mean)
    gains, losses = gap[gap > 0].sum(), -gap[gap < 0].sum()
    expected = np.sqrt(gains / losses if found["first"].value >= mean else losses / gains)
    assert found["first"].sensitivity.flips_at == pytest.approx(max(expected, 1.0), rel=1e-9)


def test_the_band_of_the_worst_case_has_the_level_asked_for() -> None:
    u = torch.full((ROWS,), 0.1, dtype=torch.float64)
    found = []
    for level in (0.5, 0.95):
        nuisances = Nuisances(a_log(), logging_policy=UniformPolicy(ACTIONS), uncertainty=u)
        column = FIRST[CONTEXT, ACTION]
        one = Evaluator(nuisances, {"first": column}, {}, Options(("ips",), level=level)).evaluation
        found.append(one["first"].propensity_intervals["worst_case"])
    assert [band.level for band in found] == [0.5, 0.95]
    assert found[1].low < found[0].low
    assert found[1].high > found[0].high


def test_other_models_of_beta_are_told_by_name_with_their_mean_weight() -> None:
    log = a_log()
    beta = fit_logging_policy(log, "popularity")
    nuisances = Nuisances(log, logging_policy=beta, reward_model=Rewards(Q))
    one = Evaluator(nuisances, {"first": Counted(FIRST)}, {}, Options(("ips",), level=0.9))
    told = one.propensity_models()
    found = {row.model: row for row in told}
    assert len(found) == len(told)
    assert told[0].model == "uniform"
    assert "popularity" in found
    pi = FIRST[CONTEXT, ACTION]
    assert found["uniform"].mean_weight == pytest.approx((pi * ACTIONS).mean(), rel=1e-9)
    assert found["uniform"].log_likelihood == pytest.approx(beta.quality.uniform_log_likelihood)
    assert found["uniform"].calibration_error is None
    own = found["popularity"]
    assert own.mean_weight == pytest.approx((pi / beta.row_log_prob.exp().numpy()).mean(), rel=1e-6)
    assert own.log_likelihood == pytest.approx(beta.quality.log_likelihood)
    assert own.value == pytest.approx(one.evaluation["first"].value, rel=1e-9)
    given = Evaluator(Nuisances(log, logging_policy=UniformPolicy(ACTIONS)), {"first": Counted(FIRST)})
    assert given.propensity_models() == []
