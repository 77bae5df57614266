"""Each objective's gradient is the finite difference of the estimator it states, with φ frozen."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learning_problem import ACTIONS, Small
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS
from offpolicy.learning import METHODS, prepare_training
from offpolicy.learning.methods import find_method
from offpolicy.learning.objective import Objective
from offpolicy.learning.objectives import Moments
from offpolicy.learning.rows import RowInputs, merged_rows
from offpolicy.models import GroupedScorer
from offpolicy.models.epochs import ContextBatches
from offpolicy.models.scorers import linear_scorer
from offpolicy.nuisances import Nuisances

TEACHING = [name for name, row in ESTIMATORS.items() if not row.evaluation_only]
EVERY = [
    *(name for name in METHODS if name != "potec"),
    *(name for name in TEACHING if find_method(name).name == name and name not in METHODS),
]
SPECIAL = ("ce", "wll", "ls_lin", "poem", "adaptive")
SMALLER: dict[str, dict[str, Any]] = {"poxm": {"top_p": 3}, "clipped": {"cap": 1.0}, "bips_cap": {"cap": 1.0}}


def close(ours: Tensor, theirs: Tensor) -> None:
    assert float(theirs.abs().max()) > 1e-4
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def stated(small: Small, method: str, hyper: dict[str, Any], shift: float = 0.0, top_k: int = 1) -> Callable[[], Any]:
    """The estimator a method states as a function of π, with φ = w/ρ frozen where the scorer stands now."""
    row = find_method(method)
    assert row.estimator is not None
    weight, normaliser = small.weights(row.selection or row.estimator.name, hyper | _defaults(row.selection))
    phi = weight / small.ratio()
    gain = small.reward - shift - float(hyper.get("translation", 0.0))
    q = small.rewards.rewards(small.log.contexts)
    if row.uses_reward_model:
        gain = small.reward - q[small.context, small.action]
    kind = row.formula.name

    def value() -> Any:
        log_probs = small.log_probs()
        taken = log_probs.exp() if top_k == 1 else 1 - (1 - log_probs.exp()) ** top_k
        ratio = taken[small.context, small.action] / small.log_logging().exp()
        total = (phi * ratio * gain).sum()
        if kind == "self_normalised":
            result = total / (phi * ratio).sum()
        elif kind == "frozen_normaliser":
            result = total / normaliser.sum()
        else:
            result = total / len(gain)
        if row.uses_reward_model:
            result = result + (taken * (q - shift)).sum(1)[small.context].mean()
        return result

    return value


def _defaults(selection: str | None) -> dict[str, Any]:
    return {} if selection is None else {name: p.default for name, p in ESTIMATORS[selection].hyper.items()}


@pytest.mark.parametrize("method", [name for name in EVERY if name not in SPECIAL])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_stated_estimator(method: str, seed: int) -> None:
    small = Small.draw(seed)
    objective = small.objective(method, **SMALLER.get(method, {}))
    hyper = dict(objective.spec.values)
    close(small.gradient(objective), small.finite_difference(stated(small, method, hyper)))


@pytest.mark.parametrize("method", ["bips", "bips_cap", "shrinkage", "uips", "minvar", "dr", "uips_dr", "snips"])
def test_a_reward_baseline(method: str) -> None:
    small = Small.draw(2)
    objective = small.objective(method, reward_baseline="mean")
    assert objective.spec.reward_baseline == pytest.approx(float(small.reward.mean()))
    theirs = small.finite_difference(stated(small, method, dict(objective.spec.values), objective.spec.reward_baseline))
    close(small.gradient(objective), theirs)


@pytest.mark.parametrize("method", ["bips", "ips_gt", "bips_cap", "shrinkage", "uips", "dr", "dm"])
@pytest.mark.parametrize("top_k", [2, 5])
def test_the_top_k_correction(method: str, top_k: int) -> None:
    small = Small.draw(3)
    objective = small.objective(method, top_k=top_k, reward_baseline=0.2)
    theirs = stated(small, method, dict(objective.spec.values), 0.2, top_k)
    close(small.gradient(objective), small.finite_difference(theirs))


@pytest.mark.parametrize("method", EVERY)
def test_top_1_is_the_identity(method: str) -> None:
    small = Small.draw(4)
    plain, corrected = (small.objective(method, **more) for more in ({}, {"top_k": 1}))
    for each in (plain, corrected):
        each.moments = Moments(0.1, 0.2, 14)
    assert torch.equal(small.gradient(plain), small.gradient(corrected))


def test_likelihood() -> None:
    small = Small.draw(5)
    close(
        small.gradient(small.objective("ce", reward_baseline=0.1)),
        small.finite_difference(lambda: ((small.reward - 0.1) * small.log_prob()).mean()),
    )


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_weighted_likelihood(power: float) -> None:
    small = Small.draw(5)
    inverse = small.log_logging().exp() ** -power
    close(
        small.gradient(small.objective("wll", power=power)),
        small.finite_difference(lambda: (small.reward * inverse * small.log_prob()).mean()),
    )


@pytest.mark.parametrize("smoothing", ["auto", 0.5, 0.0])
def test_logarithmic_smoothing_linear_in_the_policy(smoothing: Any) -> None:
    small = Small.draw(6)
    objective = small.objective("ls_lin", smoothing=smoothing)
    lam = float(objective.spec.values["smoothing"])
    if smoothing == "auto":
        assert lam == pytest.approx(len(small.reward) ** -0.5)
    inverse = 1 / small.log_logging().exp()
    factor = torch.log1p(lam * small.reward * inverse) / lam if lam else small.reward * inverse
    close(small.gradient(objective), small.finite_difference(lambda: (small.log_prob().exp() * factor).mean()))


def test_potec_learns_which_group_to_show() -> None:
    """Against the two stages written out: w(x, g)·(r − q̂)·∇log π₁(g|x), and the exact mean of q̂ under π₂ by group."""
    small = Small.draw(8)
    groups = torch.arange(ACTIONS) % 3
    kept = copy.deepcopy(small.scorer)
    grouped = GroupedScorer(small.scorer, groups)
    with torch.no_grad():
        for parameter in (grouped.weights, grouped.bias):
            parameter.copy_(torch.from_numpy(np.random.default_rng(8).standard_normal(parameter.shape)))
    dr = small.objective("dr")
    rows = RowInputs(dr.rows.fixed, small.logging, {}, groups=groups)
    objective = Objective(METHODS["potec"], rows, small.rewards, events_a_batch=float(small.log.n_rows))
    objective.of(grouped, small.batch(dr)).backward()  # type: ignore[no-untyped-call]

    member = torch.nn.functional.one_hot(groups).double()
    states, q = kept.design.encode(small.log.contexts).double(), small.rewards.rewards(small.log.contexts)
    own = states @ kept.weights.detach().T + kept.bias.detach()
    v, d = (parameter.detach().clone().requires_grad_() for parameter in (grouped.weights, grouped.bias))
    within = own.exp() / (own.exp() @ member)[:, groups]  # π₂
    first = (states @ v.T + d + (own.exp() @ member).log()).softmax(1)  # π₁
    logged = small.logging.log_probs(small.log.contexts).exp() @ member
    x, g = small.context, groups[small.action]
    weight = (first / logged)[x, g].detach()
    correction = (weight * (small.reward - q[x, small.action]) * first[x, g].log()).mean()
    (correction + (first * ((within * q) @ member)).sum(1)[x].mean()).backward()  # type: ignore[no-untyped-call]
    assert v.grad is not None
    assert d.grad is not None
    close(grouped.weights.grad, v.grad)  # type: ignore[arg-type]
    close(grouped.bias.grad, d.grad)  # type: ignore[arg-type]
    merged = grouped.merged()
    assert type(merged) is type(kept)
    torch.testing.assert_close(
        (states @ merged.actions()[0].T + merged.actions()[1]).softmax(1), within * first[:, groups]
    )


def test_gamma_is_calibrated_when_it_is_asked_for() -> None:
    """A quarter of the band that covers β* at 95 %, by refits of β̂."""
    known = Nuisances(LinearSoftmaxWorld.draw(0, n_actions=5, dimensions=3).log(1, 200, 2), model="linear")
    trainer = prepare_training(known.log, "uips", nuisances=known, gamma="auto", epochs=1)
    assert known.gamma > 0
    assert trainer.objective.spec.values["gamma"] == pytest.approx(known.gamma / 4)


def test_lambda_follows_the_log() -> None:
    """λ is E[(r·ρ)²], winsorised, times four events a learned number; the cap is √λ/2, the constants stay by name."""
    small = Small.draw(7)
    given: dict[str, Any] = {"logging_policy": small.logging, "uncertainty": small.uncertainty}
    trainer = prepare_training(small.log, "uips", **given, scorer=lambda log: linear_scorer(log).double())
    rows = trainer.objective.rows
    ratio = (-np.log(ACTIONS) - rows.fixed["log_logging"]).exp()  # the policy is uniform before the first step
    square = (small.reward * ratio).square()  # 14 rows: their 99 % quantile is the largest
    learned = sum(p.numel() for p in trainer.scorer.parameters())
    assert 4 * small.log.n_rows > learned
    lam = float(square.mean()) * 4 * small.log.n_rows / learned
    assert trainer.objective.spec.values["lam"] == pytest.approx(lam, rel=1e-6)
    capped = prepare_training(small.log, "bips_cap", logging_policy=small.logging).objective.spec.values["cap"]
    assert capped == pytest.approx(max(lam**0.5 / 2, 1.0), rel=1e-4)
    assert prepare_training(small.log, "uips", **given, lam="paper").objective.spec.values["lam"] == 10
    assert prepare_training(small.log, "uips", **given, lam=3).objective.spec.values["lam"] == 3
    with pytest.raises(ParameterError, match="can follow the log"):
        prepare_training(small.log, "uips", **given, eta1="auto")


def test_banditnet_without_translation_is_bips() -> None:
    small = Small.draw(6)
    banditnet, bips = small.objective("banditnet", translation=0.0), small.objective("bips")
    assert torch.equal(small.gradient(banditnet), small.gradient(bips))
    assert banditnet.spec.skips_zero_reward


@pytest.mark.parametrize("method", ["bips_cap", "shrinkage", "uips", "uips_tight", "snips", "uips_official"])
def test_the_exact_gradient(method: str) -> None:
    small = Small.draw(7)
    objective = small.objective(method, gradient="exact", **SMALLER.get(method, {}))
    hyper = dict(objective.spec.values)
    estimator = find_method(method).estimator
    assert estimator is not None

    def value() -> Any:
        weight, normaliser = small.weights(estimator.name, hyper)
        return (weight * small.reward).sum() / normaliser.sum()

    close(small.gradient(objective), small.finite_difference(value))


def moments(small: Small, cap: float) -> Moments:
    gained = small.ratio().clamp(max=cap) * small.reward
    return Moments(float(gained.mean()), float(gained.std()), len(gained))


def test_poem_touches_the_penalised_value_at_the_start_of_an_epoch() -> None:
    small = Small.draw(8)
    objective = small.objective("poem", cap=1.5, penalty=0.7)
    objective.moments = moments(small, 1.5)

    def penalised() -> Any:
        gained = small.ratio().clamp(max=1.5) * small.reward
        return gained.mean() - 0.7 * (gained.var() / len(gained)).sqrt()

    close(small.gradient(objective), small.finite_difference(penalised))


def test_poem_later_in_an_epoch_ascends_the_minorant() -> None:
    small = Small.draw(9)
    objective = small.objective("poem", cap=1.5, penalty=0.7)
    start = objective.moments = moments(small, 1.5)
    with torch.no_grad():
        small.scorer.weights.add_(0.2 * torch.randn(ACTIONS, 3, generator=torch.Generator().manual_seed(0)))
    n, u0, s0 = start.events, -start.mean, start.spread
    first = 1 / n - 0.7 * u0 / (n**0.5 * (n - 1) * s0)
    second = 0.7 / (2 * n**0.5 * (n - 1) * s0)

    def minorant() -> Any:
        loss = -small.ratio().clamp(max=1.5) * small.reward
        total: Tensor = (loss * first + loss**2 * second).sum()
        return -total

    close(small.gradient(objective), small.finite_difference(minorant))


def test_the_reconstruction_of_adaptive() -> None:
    small = Small.draw(10)
    objective = small.objective("adaptive", cap=1.2, negatives=0.4)
    weight = small.ratio().clamp(max=1.2)

    def value() -> Any:
        log_prob = small.log_prob()
        return (weight * (small.reward * log_prob + 0.4 * (1 - small.reward) * (1 - log_prob.exp()).log())).mean()

    close(small.gradient(objective), small.finite_difference(value))


def test_a_cap_on_any_weight() -> None:
    small = Small.draw(11)
    capped = small.objective("ips_gt", weight_cap=0.8)
    recorded = torch.from_numpy(small.log.logging_prob.copy()) if small.log.logging_prob is not None else None
    assert recorded is not None
    phi = ((small.log_prob().exp() / recorded).clamp(max=0.8) / small.log_prob().exp()).clone()
    close(
        small.gradient(capped),
        small.finite_difference(lambda: (phi * small.log_prob().exp() * small.reward).mean()),
    )


@pytest.mark.parametrize("method", ["snips", "snips_frozen"])
def test_a_cap_on_a_self_normalised_weight_caps_what_it_is_divided_by(method: str) -> None:
    small = Small.draw(15)
    ratio = small.ratio()
    capped = ratio.clamp(max=0.6)
    assert bool((ratio > 0.6).any())
    assert bool((ratio < 0.6).any())

    def value() -> Any:
        weight = capped / ratio * small.ratio()
        total = weight.sum() if method == "snips" else capped.sum()
        return (weight * small.reward).sum() / total

    close(small.gradient(small.objective(method, weight_cap=0.6)), small.finite_difference(value))


def test_the_moments_of_poem_are_those_of_the_whole_log_about_their_mean() -> None:
    """Most rows earn about 1, so that a variance about 0 would be many times too large."""
    small = Small.draw(16)
    generous = replace(small.log, reward=1 - small.log.reward / 50)
    given: dict[str, Any] = {"logging_policy": small.logging, "batch_contexts": 1, "cap": 1.5}
    trainer = prepare_training(generous, "poem", scorer=lambda log: small.scorer, **given)
    found = trainer._objective(0).moments
    gained = small.ratio().clamp(max=1.5) * torch.from_numpy(generous.reward.copy())
    assert found is not None
    assert found.events == len(gained)
    assert found.mean == pytest.approx(float(gained.mean()), rel=1e-9)
    assert found.spread == pytest.approx(float(gained.std()), rel=1e-9)
    assert found.spread < 0.9 * float(gained.square().mean().sqrt())


@pytest.mark.parametrize("method", ["uips", "bips", "dr", "poem", "adaptive"])
def test_batches_average_to_the_whole(method: str) -> None:
    small = Small.draw(12)
    objective = small.objective(method)
    objective.moments = Moments(0.1, 0.2, 14)
    whole = small.gradient(objective)
    kept = objective.counted().numpy().nonzero()[0]
    batches = ContextBatches(small.log, 1, kept)
    objective.events_a_batch = small.log.n_rows / len(batches)
    small.scorer.zero_grad()
    for batch in batches.epoch(torch.Generator().manual_seed(0)):
        objective.of(small.scorer, batch).div(len(batches)).backward()  # type: ignore[no-untyped-call]
    parts = [p.grad.flatten() for p in (small.scorer.weights, small.scorer.bias) if p.grad is not None]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-9, atol=1e-12)


def test_in_batch_ratios() -> None:
    small = Small.draw(13)
    objective = small.objective("bips", in_batch=True)
    other = Small.draw(13).scorer
    with torch.no_grad():
        other.weights.mul_(0.3)
    objective.current_propensity_scorer = other

    def in_batch(weights: Tensor, bias: Tensor) -> Any:
        states = small.scorer.design.encode(small.log.contexts).double()[small.context]
        logits = (states @ weights.T + bias)[:, small.action]  # (rows, rows)
        return logits.log_softmax(1).diagonal()

    log_logging = in_batch(other.weights.detach(), other.bias.detach())

    def value() -> Any:
        log_prob = in_batch(small.scorer.weights.detach(), small.scorer.bias.detach())
        return ((log_prob - log_logging).exp() * small.reward).mean()

    close(small.gradient(objective), small.finite_difference(value))
    assert not objective.spec.skips_zero_reward


def test_a_log_without_overlap_moves_nothing() -> None:
    small = Small.draw(14)
    objective = small.objective("snips")
    objective.rows.fixed["log_logging"].fill_(2000.0)
    assert not small.gradient(objective).any()


@pytest.mark.parametrize(
    "method", ["ce", "bips", "uips", "snips", "minvar", "banditnet", "poem", "adaptive", "dr", "sndr"]
)
def test_equal_rows_may_stand_as_one(method: str) -> None:
    """Every row three times over: the gradient is that of one row in three with a count of three."""
    small = Small.draw(13)
    rows = np.repeat(np.arange(small.log.n_rows), 3)
    thrice = replace(small, log=small.log.take(rows), uncertainty=small.uncertainty[rows])
    objective = thrice.objective(method)
    objective.moments = Moments(0.1, 0.2, len(rows))
    expected = thrice.gradient(objective)
    counted = np.flatnonzero(objective.counted().numpy())
    merged = merged_rows(thrice.log, objective.rows, counted)
    assert merged is not None
    kept, objective.count = merged
    assert len(kept) <= small.log.n_rows
    assert int(objective.count.sum()) == len(counted)
    (batch,) = ContextBatches(thrice.log, thrice.log.n_contexts, kept).epoch()
    small.scorer.zero_grad()
    objective.of(small.scorer, batch).backward()  # type: ignore[no-untyped-call]
    parts = [p.grad.flatten() for p in (small.scorer.weights, small.scorer.bias) if p.grad is not None]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-9, atol=1e-12)


def test_rows_that_differ_in_anything_stay_apart() -> None:
    small = Small.draw(13)
    rows = np.repeat(np.arange(small.log.n_rows), 2)
    twice = replace(small, log=small.log.take(rows), uncertainty=torch.arange(len(rows), dtype=torch.float64))
    objective = twice.objective("uips")
    assert merged_rows(twice.log, objective.rows, np.arange(len(rows))) is None
