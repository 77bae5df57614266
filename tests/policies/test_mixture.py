"""Mixtures, sharpened policies and the soft top-k against sums, powers and roots worked out one by one."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.models import IdColumn, linear_scorer
from offpolicy.policies import (
    MixturePolicy,
    NewIds,
    PopularityPolicy,
    RandomTopK,
    TabularPolicy,
    UniformPolicy,
    logged_log_prob,
    mixture,
    soft_top_k,
)
from policy_worlds import jolted

RANDOM = np.random.default_rng(0)
TABLES = [torch.from_numpy(RANDOM.dirichlet(np.ones(4), size=5)) for _ in range(2)]
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
OTHER = torch.tensor([0.0, 0.9, 0.1], dtype=torch.float64)


def five_users() -> LoggedData:
    """Each of five users twenty times."""
    user, action = np.repeat(np.arange(5), 20), RANDOM.integers(0, 4, 100)
    column = CategoricalColumn(np.arange(5, dtype=np.int32), Vocabulary([f"u{i}" for i in range(5)]))
    return LoggedData.from_arrays(
        FeatureTable({"user": column}), action, np.zeros(100), context_index=user.astype(np.int32), actions=4
    )


def members() -> list[TabularPolicy | UniformPolicy]:
    return [TabularPolicy("user", TABLES[0]), TabularPolicy("user", TABLES[1]), UniformPolicy(4)]


def by_hand(weights: Tensor) -> Tensor:
    return weights[0] * TABLES[0] + weights[1] * TABLES[1] + weights[2] / 4


def test_a_mixture_is_the_weighted_sum_for_all_actions_and_for_logged_rows() -> None:
    log = five_users()
    policy = MixturePolicy(members(), WEIGHTS)
    found = policy.log_probs(log.contexts)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.exp(), by_hand(WEIGHTS), rtol=1e-12, atol=0)
    rows = logged_log_prob(policy, log)
    expected = by_hand(WEIGHTS)[log.context_index.astype(int), log.action.astype(int)]
    torch.testing.assert_close(rows.exp(), expected, rtol=1e-12, atol=0)
    parts = policy.member_log_probs(log)
    torch.testing.assert_close(parts.exp().sum(1), expected, rtol=1e-12, atol=0)
    first = WEIGHTS[0] * TABLES[0][log.context_index.astype(int), log.action.astype(int)]
    torch.testing.assert_close(parts[:, 0].exp(), first, rtol=1e-12, atol=0)


def test_a_member_of_weight_zero_or_probability_zero_makes_no_nan() -> None:
    log = five_users()
    frequency = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).log()
    policy = MixturePolicy(
        [PopularityPolicy(log.actions, frequency), UniformPolicy(log.actions), UniformPolicy(log.actions)], OTHER
    )
    torch.testing.assert_close(policy.log_probs(log.contexts).exp(), torch.full((5, 4), 0.25, dtype=torch.float64))
    sure = MixturePolicy([PopularityPolicy(log.actions, frequency)], torch.ones(1))
    assert sure.log_probs(log.contexts)[0].tolist() == [0.0, -np.inf, -np.inf, -np.inf]
    assert not logged_log_prob(sure, log).isnan().any()


@pytest.mark.parametrize("weights", [[0.5, 0.5], [0.5, 0.6, -0.1], [0.5, 0.2, 0.2], [0.5, 0.4, float("nan")]])
def test_weights_that_are_no_distribution_over_members_are_refused(weights: list[float]) -> None:
    with pytest.raises(ParameterError, match="one weight a member"):
        MixturePolicy(members(), torch.tensor(weights))


def test_contexts_with_an_id_never_seen_get_the_other_weights() -> None:
    fitted = IdColumn.fit("user", CategoricalColumn(np.array([0, 1, 3]), Vocabulary([f"u{i}" for i in range(5)])))
    policy = MixturePolicy(members(), WEIGHTS, NewIds((fitted,), OTHER))
    log = five_users()
    expected = by_hand(WEIGHTS)
    expected[[2, 4]] = by_hand(OTHER)[[2, 4]]
    torch.testing.assert_close(policy.log_probs(log.contexts).exp(), expected, rtol=1e-12, atol=0)
    rows = expected[log.context_index.astype(int), log.action.astype(int)]
    torch.testing.assert_close(logged_log_prob(policy, log).exp(), rows, rtol=1e-12, atol=0)


def test_a_bag_is_new_if_one_of_its_ids_is_and_ids_are_matched_by_value() -> None:
    letters = Vocabulary(["a", "b", "c"])
    fitted = IdColumn.fit("seen", BagColumn(np.array([0, 2]), np.array([0, 1]), letters))  # a and b
    other = Vocabulary(["z", "b", "a"])
    bags = BagColumn(np.array([0, 1, 1, 3, 5]), np.array([0, 1, 2, 2, 0]), other)  # [z], [], [b, a], [a, z]
    new = NewIds((fitted,), OTHER).are_new(FeatureTable({"seen": bags}))
    assert new.tolist() == [True, False, False, True]


def scores(rows: int = 6, actions: int = 7, scale: float = 3.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(3).normal(size=(rows, actions)) * scale)


@pytest.mark.parametrize("k", [0.5, 1.0, 2.5, 3.0, 6.5])
def test_soft_top_k_is_the_root_that_scipy_finds(k: float) -> None:
    f = scores()
    found = soft_top_k(f, torch.tensor(k, dtype=torch.float64)).exp()
    torch.testing.assert_close(found.sum(1), torch.ones(6, dtype=torch.float64), rtol=1e-12, atol=0)
    for row, own in zip(f.numpy(), found.numpy(), strict=True):
        tau = brentq(lambda t, row=row: expit(row - t).sum() - k, row.min() - 20, row.max() + 20, xtol=1e-13)
        np.testing.assert_allclose(own, expit(row - tau) / k, atol=1e-6)


def test_soft_top_k_of_sharp_scores_is_one_of_the_k_best() -> None:
    f = scores().argsort(1).double()  # 0..6 in some order
    found = soft_top_k(100 * f, torch.tensor(3.0, dtype=torch.float64)).exp()
    torch.testing.assert_close(found, (f > 3).double() / 3, rtol=0, atol=1e-6)


def test_soft_top_k_goes_to_the_softmax_for_small_k_and_to_uniform_for_all() -> None:
    f = scores(scale=1.0)
    few = soft_top_k(f, torch.tensor(1e-3, dtype=torch.float64))
    torch.testing.assert_close(few, f.log_softmax(1), rtol=0, atol=5e-3)
    every = soft_top_k(f, torch.tensor(6.999, dtype=torch.float64)).exp()
    torch.testing.assert_close(every, torch.full_like(f, 1 / 7), rtol=0, atol=1e-3)


def test_gradients_of_soft_top_k_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "STEPS", 60)  # a threshold exact enough for differences of 1e-5
    f, k = scores(3, 5, 1.5).requires_grad_(), torch.tensor(2.2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(soft_top_k, (f, k), eps=1e-5, atol=1e-5)


def test_masked_actions_get_nothing_and_extreme_scores_make_no_nan() -> None:
    f = scores().masked_fill(torch.arange(7) >= 5, -torch.inf)
    k = torch.tensor(2.0, dtype=torch.float64)
    found = soft_top_k(f, k).exp()
    assert not found[:, 5:].any()
    torch.testing.assert_close(found[:, :5], soft_top_k(f[:, :5], k).exp(), rtol=1e-9, atol=1e-12)
    extreme = torch.tensor([[1e6, -1e6, 0.0, 3.0], [1e30, 0.0, 1.0, -1e30], [5.0, 5.0, 5.0, -torch.inf]])
    for size in (0.9, 1.0, 3.9, 10.0):
        own, count = extreme.clone().requires_grad_(), torch.tensor(size, requires_grad=True)
        log_prob = soft_top_k(own, count)
        torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(3))
        log_prob[:, :3].sum().backward()  # type: ignore[no-untyped-call]
        assert own.grad is not None
        assert count.grad is not None
        assert bool(own.grad.isfinite().all())
        assert bool(count.grad.isfinite())


def test_random_top_k_is_the_soft_top_k_of_the_scores_without_excluded_actions() -> None:
    x = RANDOM.normal(size=(30, 3))
    log = LoggedData.from_arrays({"x": x}, RANDOM.integers(0, 6, 30), np.zeros(30), actions=6)
    scorer = jolted(linear_scorer(log))
    excluded = torch.tensor([False, True, False, False, False, True])
    found = RandomTopK(scorer, 2.5, log.actions, excluded).log_probs(log.contexts).exp()
    weights, bias = scorer.actions()
    f = (scorer.states(log.contexts) @ weights.T + bias).detach().double().numpy()
    for row, own in zip(f, found.numpy(), strict=True):
        kept = row[~excluded.numpy()]
        tau = brentq(lambda t, kept=kept: expit(kept - t).sum() - 2.5, kept.min() - 20, kept.max() + 20)
        np.testing.assert_allclose(own[~excluded.numpy()], expit(kept - tau) / 2.5, atol=2e-5)
        assert not own[excluded.numpy()].any()
