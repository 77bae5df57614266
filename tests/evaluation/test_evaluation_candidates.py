"""Evaluation among candidates: every sum runs over what was on offer, in estimators, verdict and audit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from offpolicy.datasets.request_worlds import KINDS, RequestWorld
from offpolicy.evaluation import audit, evaluate, weight_inputs
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.policies import EpsilonGreedyPolicy, UniformPolicy, choice_log_probs
from offpolicy.rewards import PooledRewardModel, choice_rewards, fit_reward_model

WORLD = RequestWorld.make("eligible", 0, n_actions=12)
LOG = WORLD.log(500, 1)
NAMES = ("log_ratio", "log_second_moment", "log_minvar_mass", "log_stablevar_mass", "log_group_ratio", "baseline")


def test_every_input_is_a_sum_over_the_candidates() -> None:
    model, groups = PooledRewardModel.fit(LOG), torch.arange(12) % 4
    found = weight_inputs(NAMES, LOG, WORLD.target, WORLD.logging, reward_model=model, groups=groups)
    assert LOG.candidates is not None
    pi, beta = (choice_log_probs(p, LOG.contexts).double().exp().numpy() for p in (WORLD.target, WORLD.logging))
    q, codes = choice_rewards(model, LOG.contexts).numpy(), LOG.candidates.padded()
    every_q = model.rewards(FeatureTable(dict(LOG.contexts))).numpy()
    for row in range(LOG.n_rows):
        x, place = LOG.context_index[row], LOG.row_place[row]
        real = codes[x] >= 0
        p, b, own = pi[x][real], beta[x][real], codes[x][real]
        np.testing.assert_allclose(q[x][real], every_q[x, own])
        assert float(found["log_ratio"][row]) == pytest.approx(np.log(p[place] / b[place]), abs=1e-6)
        assert float(found["log_second_moment"][row]) == pytest.approx(np.log((p**2 / b).sum()), abs=1e-6)
        assert float(found["log_minvar_mass"][row]) == pytest.approx(np.log((b / p**2).sum()), abs=1e-6)
        assert float(found["log_stablevar_mass"][row]) == pytest.approx(np.log((np.sqrt(b) / p).sum()), abs=1e-6)
        assert float(found["baseline"][row]) == pytest.approx(float((p * q[x][real]).sum()), abs=1e-9)
        alike = own % 4 == own[place] % 4
        expected = np.log(p[alike].sum() / b[alike].sum())
        assert float(found["log_group_ratio"][row]) == pytest.approx(expected, abs=1e-6)


def test_weights_average_to_one_over_all_choices() -> None:
    """E_β[π/β] = 1 in every context, by enumeration over its candidates."""
    pi, beta = (choice_log_probs(p, LOG.contexts).double().exp() for p in (WORLD.target, WORLD.logging))
    torch.testing.assert_close(pi.sum(1), torch.ones(LOG.n_contexts, dtype=torch.float64))
    torch.testing.assert_close(torch.where(beta > 0, pi / beta * beta, 0.0).sum(1), pi.sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_covers_and_without_the_sets_nobody_should_rely_on_it(kind: str) -> None:
    world = RequestWorld.make(kind, 5, n_actions=20)  # type: ignore[arg-type]
    log = world.log(3000, 6)
    truth = world.value(world.target, 30_000)
    found = evaluate(log, {"target": world.target}, logging_policy="linear").policies["target"]
    assert found.preflight.verdict.answerable
    assert found.interval.low <= truth <= found.interval.high
    blind = replace(log, contexts=FeatureTable(dict(log.contexts)))
    without = evaluate(blind, {"target": world.target}, logging_policy="linear").policies["target"]
    wider = without.interval.high - without.interval.low > found.interval.high - found.interval.low
    assert wider or not without.preflight.verdict.answerable


def test_support_is_asked_of_the_candidates() -> None:
    """A policy that keeps to the candidates is supported, though most of the catalogue is never on offer there."""
    rows = PolicyRows.of(LOG, EpsilonGreedyPolicy(WORLD.target, 0.1), UniformPolicy(LOG.actions), support=True)
    assert rows.unsupported is not None
    assert not rows.unsupported.any()
    sharp = EpsilonGreedyPolicy(WORLD.logging, 1e-6)  # hardly ever shows any but its favourite
    rows = PolicyRows.of(LOG, UniformPolicy(LOG.actions), sharp, support=True)
    assert LOG.candidates is not None
    expected = 1 - 1 / LOG.candidates.sizes
    np.testing.assert_allclose(rows.unsupported.numpy(), expected, atol=1e-9)  # type: ignore[union-attr]


def test_rows_without_a_choice_are_counted_but_not_weighed() -> None:
    random = np.random.default_rng(2)
    lists = [[i % 6] if i % 2 else [i % 6, (i + 1) % 6, (i + 3) % 6] for i in range(1200)]
    action = [own[int(random.integers(len(own)))] for own in lists]
    reward = (random.random(1200) < 0.2 + 0.1 * np.array(action)).astype(float)
    log = LoggedData.from_arrays({"x": random.normal(size=1200)}, action, reward, actions=6, candidates=lists)
    assert log.summary()["candidates"]["rows_without_choice"] == 600
    found = weight_inputs(("log_ratio",), log, EpsilonGreedyPolicy(UniformPolicy(6), 0.5), UniformPolicy(log.actions))
    single = np.array([len(own) == 1 for own in lists])
    assert not found["log_ratio"][torch.from_numpy(single)].any()
    checks = {
        c.name: c for c in evaluate(log, {"uniform": "uniform"}, logging_policy="linear")["uniform"].preflight.checks
    }
    assert checks["certain logging"].value == pytest.approx(0.0)


def test_recorded_propensities_are_audited_among_the_candidates() -> None:
    log = WORLD.log(3000, 9)
    prob = choice_log_probs(WORLD.logging, log.contexts).double().exp()
    recorded = prob[torch.from_numpy(log.context_index).long(), torch.from_numpy(np.array(log.row_place))].numpy()
    found = audit(replace(log, logging_prob=recorded))
    assert found.mean_weight == pytest.approx(1.0, abs=0.05)
    assert found.consistent
    wrong = audit(replace(log, logging_prob=np.full(log.n_rows, 1 / 12)))
    assert not wrong.consistent


def test_cross_fitted_rewards_know_the_candidates() -> None:
    model = fit_reward_model(LOG, folds=2)
    every = model.rewards(FeatureTable(dict(LOG.contexts)))
    assert LOG.candidates is not None
    codes = torch.from_numpy(LOG.candidates.padded())
    found = choice_rewards(model, LOG.contexts)
    torch.testing.assert_close(found[codes >= 0], every.gather(1, codes.clamp(min=0))[codes >= 0])
    assert not found[codes < 0].any()
    assert model.context_rewards is not None
    assert model.context_rewards.shape == (LOG.n_contexts, LOG.width)
