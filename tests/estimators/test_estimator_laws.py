"""Laws of the other estimators: unbiasedness by enumeration, identities, degenerate cases."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.evaluation.value import Terms, value
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.policies import TabularPolicy
from tiny_world import TinyWorld
from worlds import small_log

seeds = st.integers(0, 10_000)


class TabularRewards:
    """q̂ from a table over the tiny world's contexts."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def rewards(self, contexts: FeatureTable) -> Tensor:
        return self.table[torch.from_numpy(np.array(contexts["context"].codes)).long()]  # type: ignore[union-attr]


def estimate(name: str, log: LoggedData, world: TinyWorld, rewards: Tensor | None = None, **hyper: float) -> float:
    target, logging = world.policies()
    model = TabularRewards(rewards) if rewards is not None else None
    inputs = weight_inputs(INPUTS, log, target, logging, reward_model=model)
    weight, normaliser = ESTIMATORS[name].terms(inputs, **hyper)
    if model is None:
        return value(Terms.without_reward_model(weight, normaliser, inputs["reward"]))
    return value(Terms(weight, normaliser, inputs["reward"], inputs["imputed"], inputs["baseline"]))


@settings(max_examples=10)
@given(seeds)
def test_ips_is_unbiased_by_full_enumeration_of_logs(seed: int) -> None:
    world = TinyWorld.draw(seed, n_contexts=2, n_actions=2)
    expected = sum(prob * estimate("ips", log, world) for log, prob in world.logs(rows=2))
    assert expected == pytest.approx(world.value, rel=1e-9)


@settings(max_examples=10)
@given(seeds)
def test_dr_is_unbiased_whatever_the_reward_model(seed: int) -> None:
    world = TinyWorld.draw(seed, n_contexts=2, n_actions=2)
    wrong = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = sum(prob * estimate("dr", log, world, wrong) for log, prob in world.logs(rows=2))
    assert expected == pytest.approx(world.value, rel=1e-9)


@given(seeds)
def test_bias_and_variance_of_ips_with_wrong_propensities(seed: int) -> None:
    """The paper's proposition: bias E_π[r(u − 1)], N·variance = Var_π(ur) + E_π[(π/β* − 1)u²r²], u = β*/β̂."""
    world = TinyWorld.draw(seed)
    log, prob = world.outcomes()
    target = world.policies()[0]
    wrong = TinyWorld.draw(seed + 1).logging
    inputs = weight_inputs(["log_ratio"], log, target, TabularPolicy("context", wrong))
    score = inputs["log_ratio"].exp() * inputs["reward"]
    mean = float((prob * score).sum())
    variance = float((prob * score**2).sum()) - mean**2
    u, pi_mass = world.logging / wrong, world.context_prob[:, None] * world.target
    q = world.reward_mean  # = E[r²|x,a] for binary rewards
    assert mean - world.value == pytest.approx(float((pi_mass * q * (u - 1)).sum()), abs=1e-12)
    under_target = float((pi_mass * u**2 * q).sum()) - float((pi_mass * u * q).sum()) ** 2
    extra = float((pi_mass * (world.target / world.logging - 1) * u**2 * q).sum())
    assert variance == pytest.approx(under_target + extra, rel=1e-9)


@given(seeds)
def test_dr_without_a_reward_model_is_ips_and_dm_is_the_model(seed: int) -> None:
    world = TinyWorld.draw(seed)
    log = small_log(seed).log
    zero = torch.zeros_like(world.reward_mean)
    for with_model, plain in (("dr", "ips"), ("sndr", "snips"), ("shrinkage_dr", "shrinkage"), ("minvar_dr", "minvar")):
        assert estimate(with_model, log, world, zero) == pytest.approx(estimate(plain, log, world), rel=1e-12)
    baseline = (world.target * world.reward_mean).sum(1)
    assert estimate("dm", log, world, world.reward_mean) == pytest.approx(
        float(baseline[torch.from_numpy(np.array(log.context_index)).long()].mean())
    )
    switched = estimate("switch_dr", log, world, world.reward_mean, threshold=1e-30)
    assert switched == pytest.approx(estimate("dm", log, world, world.reward_mean))


@given(seeds, st.floats(0, 1))
def test_a_constant_reward_model_moves_dr_by_what_the_weights_lack(seed: int, c: float) -> None:
    world = TinyWorld.draw(seed)
    sample = small_log(seed)
    constant = torch.full_like(world.reward_mean, c)
    lacking = 1 - float(sample.inputs["log_ratio"].exp().mean())
    shift = estimate("dr", sample.log, world, constant) - estimate("ips", sample.log, world)
    assert shift == pytest.approx(c * lacking, abs=1e-9)


@given(seeds)
def test_with_the_true_rewards_dr_varies_only_through_contexts_and_reward_noise(seed: int) -> None:
    world = TinyWorld.draw(seed)
    log, prob = world.outcomes()
    target, logging = world.policies()
    inputs = weight_inputs(["log_ratio"], log, target, logging, reward_model=TabularRewards(world.reward_mean))
    score = inputs["baseline"] + inputs["log_ratio"].exp() * (inputs["reward"] - inputs["imputed"])
    variance = float((prob * score**2).sum() - (prob * score).sum() ** 2)
    q = world.reward_mean
    value_of_context = (world.target * q).sum(1)
    mean = (world.context_prob * value_of_context).sum()
    between = (world.context_prob * value_of_context**2).sum() - mean**2
    noise = (world.context_prob[:, None] * world.target**2 / world.logging * q * (1 - q)).sum()
    assert variance == pytest.approx(float(between + noise), rel=1e-9)


@given(seeds, st.floats(-1, 1))
def test_snips_follows_a_translation_of_the_rewards(seed: int, shift: float) -> None:
    inputs = small_log(seed).inputs
    weight, normaliser = ESTIMATORS["snips"].terms(inputs)
    one, other = (value(Terms.without_reward_model(weight, normaliser, inputs["reward"] + c)) for c in (0, shift))
    assert other == pytest.approx(one + shift, abs=1e-9)


def test_a_target_outside_the_log_is_flagged_not_nan() -> None:
    weight, normaliser = ESTIMATORS["snips"].terms({"log_ratio": torch.full((3,), -math.inf)})
    result = value(Terms.without_reward_model(weight, normaliser, torch.ones(3)))
    assert result == 0


@given(seeds)
def test_poxm_over_all_actions_is_ips_and_its_weights_average_to_one_on_the_selection(seed: int) -> None:
    world = TinyWorld.draw(seed)
    log, prob = world.outcomes()
    target, logging = world.policies()
    for top_p in (1.0, 2.0, 4.0):
        inputs = weight_inputs(INPUTS, log, target, logging, top_p=top_p)
        weight, _ = ESTIMATORS["poxm"].terms(inputs, top_p=top_p)
        expected = (world.context_prob * logging.probs.topk(int(top_p), 1).values.sum(1)).sum()
        # E[w·1{a∈Φ}] per context is β̂(Φ|x): the selective weight integrates to the selected mass.
        assert float((prob * weight).sum()) == pytest.approx(float(expected), rel=1e-9)
    torch.testing.assert_close(weight, inputs["log_ratio"].exp(), rtol=1e-9, atol=0)


@given(seeds)
def test_dice_s_sums_the_observed_actions_of_each_context(seed: int) -> None:
    sample = small_log(seed, rows=20)
    world = TinyWorld.draw(seed)
    log = sample.log
    total = 0.0
    for x, a in {*zip(log.context_index.tolist(), log.action.tolist(), strict=True)}:
        rows = (log.context_index == x) & (log.action == a)
        share_of_context = (log.context_index == x).mean()
        total += share_of_context * float(world.target[x, a]) * log.reward[rows].mean()
    assert estimate("dice_s", log, world, cap=math.inf) == pytest.approx(total, rel=1e-9)


def test_the_papers_minvar_answers_zero_and_the_original_does_not() -> None:
    """ε-greedy target over the rewarded actions: normalising over actions puts all weight where π is smallest."""
    n_actions, epsilon = 2000, 0.05
    random = np.random.default_rng(0)
    rewarded = torch.zeros(n_actions, dtype=torch.float64)
    rewarded[:19] = 1.0
    target = (1 - epsilon) * rewarded / 19 + epsilon / n_actions
    logging = torch.from_numpy(random.dirichlet(np.ones(n_actions))) * 0.5
    logging[:19] += 0.5 / 19
    world = TinyWorld(torch.ones(1, dtype=torch.float64), logging[None], target[None], rewarded[None])
    draws = random.choice(n_actions, size=4000, p=logging.numpy() / logging.sum().item())
    log = LoggedData.from_arrays(
        contexts=world.outcomes()[0].contexts,
        context_index=np.zeros(4000, np.int32),
        action=draws,
        reward=rewarded.numpy()[draws],
        actions=n_actions,
    )
    for name in ("minvar_paper", "stablevar_paper"):
        assert estimate(name, log, world) == pytest.approx(0.0, abs=1e-3)
    for name in ("minvar", "stablevar"):
        assert estimate(name, log, world) == pytest.approx(world.value, rel=0.1)


@given(seeds, st.floats(0, 1))
def test_ips_un_is_the_worst_case_over_every_corner(seed: int, alpha: float) -> None:
    inputs = small_log(seed, rows=8).inputs
    weight, normaliser = ESTIMATORS["ips_un"].terms(inputs, alpha=alpha)
    ours = value(Terms.without_reward_model(weight, normaliser, inputs["reward"]))
    ratio, reward = inputs["log_ratio"].exp().numpy(), inputs["reward"].numpy()
    corners = np.array(list(itertools.product([math.exp(-alpha), math.exp(alpha)], repeat=len(ratio))))
    values = (corners * ratio * reward).sum(1) / (corners * ratio).sum(1)
    assert ours == pytest.approx(values.min(), rel=1e-9)


@given(seeds, st.floats(0.05, 1))
def test_ips_un_on_the_simplex_is_the_worst_feasible_logging_policy(seed: int, alpha: float) -> None:
    sample = small_log(seed, rows=8)
    inputs = sample.inputs
    weight, _ = ESTIMATORS["ips_un_simplex"].terms(inputs, alpha=alpha)
    ours = float((weight * inputs["reward"]).sum())
    assert ours == pytest.approx(sum(worst_by_solver(sample.arrays, x, alpha) for x in range(3)), rel=1e-4)


def worst_by_solver(world: dict[str, np.ndarray], context: int, alpha: float) -> float:
    """min over logging policies b of one context (box and simplex) of Σ πr/b on its rows, by a general solver."""
    rows = np.flatnonzero(world["context"] == context)
    if not len(rows):
        return 0.0
    beta, action = world["beta"][rows[0]], world["action"][rows]
    gain = world["pi"][rows[0]][action] * world["reward"][rows]
    solution = minimize(
        lambda b: (gain / b[action]).sum(),
        beta,
        bounds=[(p * math.exp(-alpha), min(p * math.exp(alpha), 1)) for p in beta],
        constraints={"type": "eq", "fun": lambda b: b.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return float(solution.fun)
