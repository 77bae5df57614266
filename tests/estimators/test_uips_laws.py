"""The mathematics of φ*: closed form, thresholds, caps, monotonicity, limits; each against brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

import reference
from offpolicy.estimators import OFFICIAL, weight, worst_case_cap

lams = st.floats(0.05, 50.0)
etas = st.floats(0.2, 5.0)
spreads = st.floats(0.0, 3.0)
ratios = st.floats(0.01, 20.0)


def phi(rho: float, s: float, lam: float, eta1: float = 1.0, eta2: float | None = None) -> float:
    hyper = {"lam": lam, "gamma": 1.0, "eta1": eta1, "eta2": eta1 if eta2 is None else eta2}
    log_ratio = torch.tensor([math.log(rho)], dtype=torch.float64)
    return float(weight("uips", log_ratio=log_ratio, uncertainty=[s], **hyper)) / rho


def interval(s: float, eta: float) -> tuple[float, float]:
    return math.exp(-s) / eta, math.exp(s) / eta


@given(ratios, spreads, lams, etas)
def test_closed_form_is_the_brute_force_minimum_of_the_worst_case(rho: float, s: float, lam: float, eta: float) -> None:
    low, high = interval(s, eta)
    best = phi(rho, s, lam, eta)
    grid = np.linspace(0, 2 * eta, 4001)
    at_best = reference.worst_case(np.array([best]), rho, lam, low, high)[0]
    assert at_best <= reference.worst_case(grid, rho, lam, low, high).min() * (1 + 1e-12)


@given(ratios, spreads, lams, etas)
def test_weighing_every_row_alike_has_no_smaller_worst_case(rho: float, s: float, lam: float, eta: float) -> None:
    low, high = interval(s, eta)
    ours, plain = reference.worst_case(np.array([phi(rho, s, lam, eta), 1.0]), rho, lam, low, high)
    assert ours <= plain * (1 + 1e-12)


def second_term_active(rho: float, s: float, lam: float, eta1: float, eta2: float) -> float:
    """How far the second term lies below the first (positive: it is the minimum), in log."""
    first = lam / (lam / eta1 * math.exp(-s) + eta1 * rho**2 * math.exp(s))
    return math.log(first) - math.log(eta2 / math.cosh(s))


@given(ratios, spreads, lams, etas, etas)
def test_corrected_threshold_tells_which_term_is_active(
    rho: float, s: float, lam: float, eta1: float, eta2: float
) -> None:
    alpha_squared = lam / (2 * eta1 * eta2) * (1 - (2 * eta2 / eta1 - 1) * math.exp(-2 * s))
    if eta1 == eta2:
        assert alpha_squared == pytest.approx(lam / (2 * eta1**2) * (1 - math.exp(-2 * s)))
    margin = second_term_active(rho, s, lam, eta1, eta2)
    assume(abs(margin) > 1e-9)
    assert (margin > 0) == (rho**2 < alpha_squared)
    active = eta2 / math.cosh(s)
    assert (phi(rho, s, lam, eta1, eta2) == pytest.approx(active, rel=1e-9)) == (margin > 0 or abs(margin) < 2e-9)


def test_the_papers_threshold_is_wrong() -> None:
    lam = eta = 1.0
    s, rho = 0.0, 0.5
    papers_alpha = math.sqrt(lam / (2 * eta**2) - lam * (1 - eta) / eta**2 * math.exp(-2 * s))
    assert rho < papers_alpha  # the lemma claims φ = η/cosh s = 1 here
    assert phi(rho, s, lam, eta) == pytest.approx(0.8)


@given(st.floats(1e-6, 1e6), st.floats(0.0, 20.0), st.floats(1e-3, 1e3), st.floats(0.05, 20.0))
def test_phi_and_weight_have_sharp_caps(rho: float, s: float, lam: float, eta: float) -> None:
    value = phi(rho, s, lam, eta)
    assert value <= eta * (1 + 1e-12)
    assert rho * value <= reference.caps(lam) * (1 + 1e-12)


@given(lams, etas, st.floats(0.0, 0.5))
def test_the_cap_of_the_weight_is_attained(lam: float, eta: float, s: float) -> None:
    rho = math.sqrt(lam) * math.exp(-s) / eta
    assume(second_term_active(rho, s, lam, eta, eta) < 0)
    assert rho * phi(rho, s, lam, eta) == pytest.approx(reference.caps(lam))


@given(ratios, st.floats(0.0, 2.0), lams, etas)
def test_phi_increases_with_uncertainty_only_in_the_corrected_zone(
    rho: float, s: float, lam: float, eta: float
) -> None:
    step = 1e-5
    slope = phi(rho, s + step, lam, eta) - phi(rho, s, lam, eta)
    alpha = math.sqrt(lam / (2 * eta**2) * -math.expm1(-2 * s))
    upper = math.sqrt(lam) * math.exp(-s) / eta
    assume(min(abs(rho / upper - 1), abs(rho / max(alpha, 1e-9) - 1)) > 1e-3)
    assume(s > 10 * step)
    increasing = alpha < rho < upper
    assert (slope > 0) == increasing
    if s >= math.log(3) / 2:
        assert not increasing


def test_the_papers_claim_of_an_increasing_weight_fails() -> None:
    # π/min B < √λ at both uncertainties, yet φ falls.
    assert [phi(0.1, s, 1.0) for s in (1.0, 1.2)] == pytest.approx([0.6480542736638855, 0.5522861542782048])


@given(st.floats(-30, 30), lams)
def test_without_uncertainty_it_is_shrinkage(log_ratio: float, lam: float) -> None:
    ours = weight("uips", log_ratio=[log_ratio], uncertainty=[0.0], lam=lam, eta1=1.0, eta2=1.0)
    torch.testing.assert_close(ours, weight("shrinkage", log_ratio=[log_ratio], lam=lam))


@given(ratios, spreads, etas, etas)
def test_limits_in_lambda(rho: float, s: float, eta1: float, eta2: float) -> None:
    assert phi(rho, s, math.inf, eta1, eta2) == pytest.approx(min(eta1 * math.exp(s), eta2 / math.cosh(s)))
    assert rho * phi(rho, s, 1e-30, eta1, eta2) <= reference.caps(1e-30) * (1 + 1e-9)


def test_far_out_inputs_stay_numbers() -> None:
    log_ratio = torch.tensor([-math.inf, math.log(1e12), 0.0, 2000.0], dtype=torch.float64)
    weights = weight("uips", log_ratio=log_ratio, uncertainty=[30.0, 0.0, 30.0, 0.0], gamma=1.0)
    assert weights[0] == 0
    assert bool(torch.isfinite(weights).all())
    assert weights[2] == pytest.approx(0.0, abs=1e-12)


@given(ratios, spreads, lams, etas, st.floats(0.1, 10.0))
def test_eta_squared_over_lambda_is_the_effective_parameter(
    rho: float, s: float, lam: float, eta: float, c: float
) -> None:
    huge = 1e9  # keeps the first term
    one = phi(rho, s, lam, eta, huge) / eta
    other = phi(rho, s, c**2 * lam, c * eta, huge) / (c * eta)
    assert other == pytest.approx(one, rel=1e-9)


def test_the_papers_effective_parameter_is_not_one() -> None:
    pair = [phi(0.5, 0.3, lam, eta, 1e9) / eta for lam, eta in ((1.0, 1.0), (2.0, 4.0))]
    assert pair == pytest.approx([0.9274003872854422, 0.2906524005897111])


def test_disentangled_etas_break_the_corollary() -> None:
    used = phi(0.1, 0.5, 20.0, 2.0, 1000.0)
    low, high = interval(0.5, 1.0)
    ours, plain = reference.worst_case(np.array([used, 1.0]), 0.1, 20.0, low, high)
    assert (used, ours, plain) == pytest.approx((3.2796127180883308, 388.5700216275534, 8.42678574117578))


EPSILON_ROWS = [  # β̂, π, φ by the formula, φ of the released code
    (1e-2, 5e-2, 0.11275088745574634, 0.11662053409156097),
    (1e-3, 1e-2, 0.02853337159760279, 0.12632242110543168),
    (1e-4, 1e-2, 0.0002864930384698558, 0.09886616505976197),
    (3e-5, 1e-2, 2.5785336470898213e-05, 0.09861276911112055),
    (1e-6, 1e-3, 2.8650467927150906e-06, 4.110956022168074),
]


@pytest.mark.parametrize(("beta", "pi", "by_formula", "released"), EPSILON_ROWS)
def test_official_profile_gives_the_epsilon_rows(beta: float, pi: float, by_formula: float, released: float) -> None:
    hyper = {"lam": 20.0, "gamma": 25.0, "eta1": 2.0, "eta2": 1000.0}
    inputs = {"log_target": [math.log(pi)], "log_logging": [math.log(beta)], "uncertainty": [0.05]}
    switches = OFFICIAL["wiki"].weight_switches()
    ours = weight("uips_official", **inputs, **hyper, **switches).item()
    assert ours == pytest.approx(released * pi / (beta + 1e-6), rel=1e-9)
    exact = weight("uips", log_ratio=[math.log(pi / beta)], uncertainty=[0.05], **hyper).item()
    assert exact == pytest.approx(by_formula * pi / beta, rel=1e-9)
    no_guards = dict.fromkeys(("ratio_guard", "variance_guard", "denominator_guard"), 0.0)
    assert weight("uips_official", **inputs, **hyper, **no_guards).item() == pytest.approx(exact, rel=1e-9)


def mse(phi_values: np.ndarray, n: int) -> float:
    """Exact MSE of (1/n)Σ ρφr with β* = β̂ = (.02, .98), π = (.5, .5), r = 1."""
    beta, pi = np.array([0.02, 0.98]), np.array([0.5, 0.5])
    score = pi / beta * phi_values
    mean = (beta * score).sum()
    return float((mean - 1) ** 2 + ((beta * score**2).sum() - mean**2) / n)


@pytest.mark.parametrize(
    ("n", "tight", "plain"),
    [
        (1, 0.25, 11.755102040816327),
        (10, 0.20052469881597576, 1.1755102040816328),
        (100, 0.07894430529860365, 0.11755102040816327),
        (10_000, 0.0011697858543792455, 0.0011755102040816327),
        (1_000_000, 1.1754526829101638e-05, 1.1755102040816326e-05),
    ],
)
def test_tight_weights_are_consistent_where_the_papers_are_not(n: int, tight: float, plain: float) -> None:
    lam = 12.755102040816327  # E_π[r²π/β*]
    log_ratio = torch.tensor([25.0, 0.5 / 0.98], dtype=torch.float64).log()
    zero = torch.zeros(2, dtype=torch.float64)
    rho = log_ratio.exp().numpy()
    ours = weight("uips_tight", log_ratio=log_ratio, uncertainty=zero, sample_size=float(n), lam=lam).numpy() / rho
    assert mse(ours, n) == pytest.approx(tight, rel=1e-6)
    assert mse(np.ones(2), n) == pytest.approx(plain, rel=1e-9)
    assert mse(ours, n) <= mse(np.ones(2), n)
    papers = weight("uips", log_ratio=log_ratio, uncertainty=zero, lam=lam).numpy() / rho
    assert mse(papers, n) == pytest.approx(0.25, rel=1e-6)


def test_tight_weights_use_that_a_probability_is_at_most_one() -> None:
    both = [
        weight("uips_tight", log_ratio=[0.0], uncertainty=[1.0], lam=math.inf, gamma=1.0, **extra).item()
        for extra in ({}, {"log_logging": [math.log(0.9)]})
    ]
    assert both[0] == pytest.approx(1 / math.cosh(1.0))
    assert both[1] == pytest.approx(2 / (math.exp(-1.0) + 1 / 0.9))


@pytest.mark.parametrize("seed", range(12))
def test_uncertainty_discounted_clipping_solves_its_convex_problem(seed: int) -> None:
    """Minimise (E_π[q max(1 − lφ, hφ − 1)])² + E_β̂[hρ²φ²q]/N over φ, numerically."""
    random = np.random.default_rng(seed)
    actions, n = 5, int(random.integers(5, 200))
    pi, beta = random.dirichlet(np.ones(actions), size=2)
    q, s = random.uniform(0.05, 1, actions), random.uniform(0, 1, actions)
    rho, low, high = pi / beta, np.exp(-s), np.exp(s)

    def objective(x: np.ndarray) -> float:
        worst_bias = (pi * q * np.maximum(1 - low * x, high * x - 1)).sum()
        return float(worst_bias**2 + (beta * high * rho**2 * x**2 * q).sum() / n)

    log_ratio, uncertainty, mass = (torch.from_numpy(v) for v in (np.log(rho), s, beta))
    cap = worst_case_cap(log_ratio, uncertainty, torch.from_numpy(q), gamma=1.0, sample_size=n, row_mass=mass)
    ours = weight("uips_clip", log_ratio=log_ratio, uncertainty=uncertainty, gamma=1.0, cap=cap).numpy() / rho
    # Beyond 2/(l+h) the worst case only grows, so the smooth branch on that box is the whole problem.
    solution = minimize(
        lambda x: float((pi * q * (1 - low * x)).sum() ** 2 + (beta * high * rho**2 * x**2 * q).sum() / n),
        np.full(actions, 0.5),
        bounds=[(0, 2 / (a + b)) for a, b in zip(low, high, strict=True)],
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-12, "maxiter": 5000},
    )
    assert objective(ours) <= objective(solution.x) * (1 + 1e-9)
    papers = np.array([phi(r, sp, float((q * pi**2 / beta).sum())) for r, sp in zip(rho, s, strict=True)])
    assert objective(ours) <= objective(papers) * (1 + 1e-12)
