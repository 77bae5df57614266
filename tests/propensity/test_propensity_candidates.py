"""β̂ among candidates: the linear fit is the masked maximum of likelihood, and every family is a choice among them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from offpolicy.datasets.request_worlds import RequestWorld
from offpolicy.log import Candidates, FeatureTable, LoggedData, NumericColumn
from offpolicy.policies import choice_log_probs, logged_log_prob
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy, packed, unpacked
from offpolicy.uncertainty import row_uncertainty

WORLD = RequestWorld.make("varying", 3, n_actions=8, d=2)
LOG = WORLD.log(600, 4)
QUICK = FitConfig(epochs=5)


def by_autograd(log: LoggedData, policy: LoggingPolicy, ridge: float) -> float:
    """The penalised likelihood, maximised by torch over masked logits, starting where the fit ended."""
    softmax = policy.whole.softmax
    assert softmax is not None
    assert log.candidates is not None
    states = softmax.states(log.contexts).double()
    offered = torch.zeros(log.n_contexts, log.n_actions, dtype=torch.bool)
    offered[torch.from_numpy(log.candidates.owner), torch.from_numpy(log.candidates.codes.astype(np.int64))] = True
    weights = softmax.weights.double().clone().requires_grad_()
    bias = softmax.bias.double().clone().requires_grad_()
    rows = (torch.from_numpy(log.context_index).long(), torch.from_numpy(log.action).long())

    def value() -> torch.Tensor:
        log_prob = (states @ weights.T + bias).masked_fill(~offered, -torch.inf).log_softmax(1)[rows]
        return log_prob.sum() - ridge / 2 * weights.square().sum()

    before = float(value().detach())
    optimiser = torch.optim.LBFGS([weights, bias], lr=1.0, max_iter=500, tolerance_grad=1e-10)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = -value()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return float(value().detach()) - before


def test_the_linear_fit_is_the_masked_maximum() -> None:
    fitted = fit_logging_policy(LOG, "linear", config=FitConfig(ridge=1.0))
    assert by_autograd(LOG, fitted, 1.0) < 1e-3
    true = logged_log_prob(WORLD.logging, LOG)
    assert float((fitted.row_log_prob - true).square().mean().sqrt()) < 0.35
    assert fitted.quality.uniform_log_likelihood < fitted.quality.log_likelihood
    assert abs(fitted.quality.mean_weight - 1) < 4 * fitted.quality.mean_weight_error


@pytest.mark.parametrize(
    "model",
    [
        "uniform",
        "popularity",
        "counts",
        "linear",
        "quadratic",
        "greedy_linear",
        "top_k",
        "network",
        "two_tower",
        "trees",
    ],
)
def test_every_family_is_a_distribution_over_the_candidates(model: str) -> None:
    fitted = fit_logging_policy(LOG, model, config=QUICK)
    assert LOG.candidates is not None
    probs = choice_log_probs(fitted, LOG.contexts).double().exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(LOG.n_contexts, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    rows = probs[torch.from_numpy(LOG.context_index).long(), torch.from_numpy(np.array(LOG.row_place))].log()
    torch.testing.assert_close(fitted.row_log_prob, rows, rtol=1e-4, atol=1e-4)
    saved = packed(fitted)
    if saved is None:  # counts are cheaper to count again
        assert model == "counts"
        return
    again = unpacked(*saved, LOG, 0)
    torch.testing.assert_close(choice_log_probs(again, LOG.contexts).double().exp(), probs, rtol=1e-5, atol=1e-6)


def test_withholding_the_sets_makes_every_row_less_likely() -> None:
    without = replace(LOG, contexts=FeatureTable(dict(LOG.contexts)))
    among, all_actions = fit_logging_policy(LOG, "linear"), fit_logging_policy(without, "linear")
    assert among.quality.log_likelihood > all_actions.quality.log_likelihood + 0.3


def test_features_of_candidates_explain_choices() -> None:
    """A logger that likes what is cheap: without the price no model can tell."""
    random = np.random.default_rng(0)
    n, lists, prices, action = 3000, [], [], []
    for _ in range(n):
        own = np.sort(random.choice(10, 4, replace=False))
        price = random.random(4)
        share = np.exp(-3 * price)
        lists.append(own)
        prices.append(price)
        action.append(int(random.choice(own, p=share / share.sum())))
    base = LoggedData.from_arrays({"x": random.normal(size=n)}, action, np.zeros(n), actions=10)
    offsets = np.arange(0, 4 * n + 1, 4)
    flat = FeatureTable({"price": NumericColumn(np.concatenate(prices))})
    sets = {
        name: Candidates(offsets, np.concatenate(lists), base.actions.vocabulary, features)
        for name, features in (("priced", flat), ("bare", None))
    }
    found = {}
    for name, own_sets in sets.items():
        log = replace(
            base,
            contexts=FeatureTable(dict(base.contexts.take(base.context_index)), own_sets),
            context_index=np.arange(n, dtype=np.int32),
        )
        fitted = fit_logging_policy(log, "linear", config=FitConfig(epochs=30))
        found[name] = fitted.quality.log_likelihood
        if name == "priced":
            scorer = fitted.whole.scorer
            weight = float(scorer.candidate_weights.detach()[0]) / float(scorer.candidate_design.columns[0].scale[0])  # type: ignore[union-attr]
            assert weight == pytest.approx(-3.0, abs=0.4)
    assert found["priced"] > found["bare"] + 0.1
    assert found["bare"] == pytest.approx(-np.log(4), abs=0.05)


def test_u_of_the_fisher_information_is_that_of_the_masked_softmax() -> None:
    """H = κI + Σ n_x Σ_a β̂ (g_a − ḡ)(g_a − ḡ)ᵀ with actions that are not on offer left out, by brute force."""
    log = LOG.take(np.arange(60))
    fitted = fit_logging_policy(log, "linear", config=FitConfig(ridge=2.0))
    found = row_uncertainty(fitted, "gauss_newton").numpy()
    softmax = fitted.whole.softmax
    assert softmax is not None
    assert log.candidates is not None
    states = torch.cat([softmax.states(log.contexts).double(), torch.ones(log.n_contexts, 1).double()], 1).numpy()
    d, k = states.shape[1], log.n_actions
    probs, codes = choice_log_probs(fitted.whole.policy, log.contexts).double().exp().numpy(), log.candidates.padded()
    gradients = []
    information = 2.0 * np.eye(d * k)
    for x in range(log.n_contexts):
        own = {}
        for place, action in enumerate(codes[x]):
            if action >= 0:
                g = np.zeros((k, d))
                g[action] = states[x]
                own[int(action)] = (probs[x, place], g.ravel())
        mean = sum(p * g for p, g in own.values())
        information += sum(p * np.outer(g - mean, g - mean) for p, g in own.values()) * log.context_weight[x]
        gradients.append({a: g - mean for a, (_, g) in own.items()})
    inverse = np.linalg.inv(information)
    for row in range(log.n_rows):
        g = gradients[log.context_index[row]][int(log.action[row])]
        if log.action_count[log.action[row]] and len(gradients[log.context_index[row]]) > 1:
            assert found[row] == pytest.approx(np.sqrt(g @ inverse @ g), rel=1e-4)


def test_rows_without_a_choice_are_certain() -> None:
    random = np.random.default_rng(1)
    lists = [[i % 5] if i % 4 == 0 else [i % 5, (i + 1) % 5] for i in range(400)]
    action = [own[int(random.integers(len(own)))] for own in lists]
    log = LoggedData.from_arrays({"x": random.normal(size=400)}, action, np.zeros(400), actions=5, candidates=lists)
    fitted = fit_logging_policy(log, "linear")
    single = np.array([len(own) == 1 for own in lists])
    torch.testing.assert_close(fitted.row_log_prob[single], torch.zeros(100, dtype=torch.float64))
    for form in ("shared", "per_action", "gauss_newton"):
        u = row_uncertainty(fitted, form)
        assert not u[single].any()
        assert bool((u[~single] > 0).all())
