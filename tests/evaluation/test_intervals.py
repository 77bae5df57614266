import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from offpolicy.errors import ParameterError
from offpolicy.evaluation.clusters import ClusteredDifference, ClusteredTerms, clustered
from offpolicy.evaluation.intervals import (
    INTERVALS,
    betting,
    bootstrap,
    empirical_bernstein,
    empirical_likelihood,
    normal,
)
from offpolicy.evaluation.intervals.bootstrap import _corrected_tails, resampled
from offpolicy.evaluation.value import Terms
from offpolicy.seeding import generator

Array = NDArray[np.float64]
FORMS = ("plain", "self_normalised", "doubly_robust", "self_normalised_dr")
CAP = 4.0


def world(
    seed: int, form: str, clusters: int = 100, rows: int = 1, *, uneven: bool = False, cap: float = CAP
) -> ClusteredTerms:
    """Rewards and weights lean on a taste shared by the rows of a cluster and on one of the row's own."""
    random = np.random.default_rng([7, seed])
    sizes = random.integers(1, 2 * rows, clusters) if uneven else np.full(clusters, rows)
    cluster = np.repeat(np.arange(clusters), sizes)
    shared, own = random.normal(size=clusters)[cluster], random.normal(size=len(cluster))
    weight = np.minimum(np.exp(0.7 * own - 0.245), cap)
    reward = (random.random(len(cluster)) < 1 / (1 + np.exp(1 - 1.5 * shared - 0.5 * own))).astype(np.float64)
    zero = np.zeros(len(cluster))
    has_model = form in ("doubly_robust", "self_normalised_dr")
    model = (0.3 + 0.1 * np.tanh(own), 0.35 + 0.1 * np.tanh(shared)) if has_model else (zero, zero)
    normaliser = weight if form.startswith("self") else zero + 1
    rows_of_terms = (torch.from_numpy(x) for x in (weight, normaliser, reward, *model))
    return clustered(Terms(*rows_of_terms), torch.from_numpy(cluster))


TRUTH = {form: world(10**6, form, clusters=150_000).value for form in FORMS}


def options(method: str, **given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in INTERVALS[method].options}


# What each is


@pytest.mark.parametrize("form", FORMS)
def test_normal_is_the_estimate_and_t_errors(form: str) -> None:
    terms = world(1, form, clusters=9)
    for error, spread in (("linear", terms.standard_error), ("jackknife", terms.jackknife_error)):
        found = normal(terms, 0.9, clip=False, error=error)
        half = stats.t.ppf(0.95, 8) * spread
        assert (found.low, found.high) == pytest.approx((terms.value - half, terms.value + half))
        assert found.centre == terms.value


@pytest.mark.parametrize("form", FORMS)
def test_resampled_values_and_errors_are_those_of_the_drawn_clusters(form: str) -> None:
    terms = world(2, form, clusters=30, rows=3, uneven=True)
    values, errors = resampled(terms, terms.columns, 40, np.random.default_rng(3), studentise=True)
    drawn = np.random.default_rng(3).integers(0, 30, (40, 30))
    for row, value, error in zip(drawn, values, errors, strict=True):
        slow = ClusteredTerms(terms.columns[row], np.arange(30))
        assert (value, error) == pytest.approx((slow.value, slow.standard_error), rel=1e-9)


def test_bootstrap_quantiles_agree_with_scipys() -> None:
    terms = world(4, "self_normalised", clusters=60, rows=4)

    def ratio(index: Array) -> float:
        return ClusteredTerms(terms.columns[index.astype(int)], terms.index).value

    for kind, name in (("percentile", "percentile"), ("bca", "BCa")):
        found = bootstrap(terms, 0.9, kind=kind, replicates=20_000)
        slow = stats.bootstrap(
            (np.arange(60),), ratio, method=name, confidence_level=0.9, n_resamples=5000, vectorized=False, rng=1
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx((slow.low, slow.high), abs=0.05 * (slow.high - slow.low))


def skewed(clusters: int = 40) -> ClusteredTerms:
    """Few clusters, most of them poor and some very rich: the acceleration is far from zero."""
    random = np.random.default_rng(3)
    rich = np.exp(1.4 * random.normal(size=clusters))
    columns = np.zeros((clusters, 5))
    columns[:, 0], columns[:, 1], columns[:, 3], columns[:, 4] = rich / rich.max(), 1.0, 1.0, 1.0
    return ClusteredTerms(columns, np.arange(clusters))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_bca_is_scipys_on_skewed_clusters(level: float) -> None:
    terms = skewed()
    found = bootstrap(terms, level, kind="bca", replicates=200_000)
    slow = stats.bootstrap(
        (terms.columns[:, 0],), np.mean, method="BCa", confidence_level=level, n_resamples=200_000, rng=1, batch=20_000
    ).confidence_interval
    width = slow.high - slow.low
    assert (found.low, found.high) == pytest.approx((slow.low, slow.high), abs=0.01 * width)
    plain = bootstrap(terms, level, kind="percentile", replicates=200_000)
    assert found.low - plain.low > 0.02 * width  # the correction moves both ends up, by more than the tolerance
    assert found.high - plain.high > 0.1 * width


def test_corrected_tails_are_efrons_formula() -> None:
    terms = skewed(15)
    values = np.random.default_rng(0).normal(terms.value + 0.02, 0.05, 4000)
    tails = np.array([0.05, 0.5, 0.95])
    without = np.array([np.delete(terms.columns[:, 0], c).mean() for c in range(15)])
    gap = without.mean() - without
    acceleration = (gap**3).sum() / (6 * (gap**2).sum() ** 1.5)
    assert acceleration > 0.05  # a few rich clusters: a long upper tail
    bias = stats.norm.ppf((values < terms.value).mean())
    expected = [stats.norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in stats.norm.ppf(tails)]
    assert _corrected_tails(values, terms, tails) == pytest.approx(expected, rel=1e-9)


def test_percentile_and_studentised_are_quantiles_of_their_replicates() -> None:
    terms = world(17, "self_normalised", clusters=35, rows=3, uneven=True)
    values, errors = resampled(terms, terms.columns, 400, generator(2, "bootstrap"), studentise=True)
    percentile = bootstrap(terms, 0.9, kind="percentile", replicates=400, seed=2, clip=False)
    assert (percentile.low, percentile.high) == pytest.approx(np.quantile(values, [0.05, 0.95]))
    ratio = np.sort((values - terms.value) / errors)
    student = bootstrap(terms, 0.9, replicates=400, seed=2, clip=False)
    low, high = (terms.value - ratio[rank] * terms.standard_error for rank in (379, 20))
    assert (student.low, student.high) == pytest.approx((low, high), rel=1e-9)


def test_bootstrap_follows_its_seed_and_pools_many_clusters() -> None:
    terms = world(5, "plain", clusters=200)
    assert bootstrap(terms, 0.95) == bootstrap(terms, 0.95) != bootstrap(terms, 0.95, seed=1)
    many = world(6, "self_normalised", clusters=25_000)
    first, second = bootstrap(many, 0.95, replicates=2000), normal(many, 0.95)
    assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.1 * (second.high - second.low))


def test_bernstein_is_the_known_formula_for_clusters_of_one_size() -> None:
    terms = world(7, "plain", clusters=5000, rows=3)
    means = terms.columns[:, 0] / 3
    log_term = math.log(4 / 0.05)
    half = math.sqrt(2 * means.var(ddof=1) * log_term / 5000) + 7 * CAP * log_term / (3 * 4999)
    found = empirical_bernstein(terms, 0.95, bound=CAP)
    assert (found.low, found.high) == pytest.approx((means.mean() - half, means.mean() + half))


@pytest.mark.parametrize("form", ["plain", "self_normalised", "doubly_robust"])
def test_bernstein_holds_exactly_the_candidates_its_inequality_allows(form: str) -> None:
    terms = world(8, form, clusters=4000, rows=3, uneven=True)
    found = empirical_bernstein(terms, 0.95, bound=CAP)
    assert not found.vacuous
    correction, z, baseline, _, rows = terms.columns.T
    span = {"doubly_robust": 1 + 2 * CAP}.get(form, CAP) * rows.max()
    log_term = math.log(4 / 0.05)

    def excess(v: float) -> float:
        d = correction + baseline - v * z
        slack = 7 * span * log_term / (3 * (len(d) - 1))
        return float(abs(d.mean()) - math.sqrt(2 * d.var(ddof=1) * log_term / len(d)) - slack)

    assert excess(found.low) == pytest.approx(0, abs=1e-9)
    assert excess(found.high) == pytest.approx(0, abs=1e-9)
    assert excess(terms.value) < 0


def capital(terms: ClusteredTerms, v: float, sign: int, order: NDArray[np.int64]) -> float:
    """Largest capital, bet by bet, of the gambler who thinks v is too low (+1) or too high (−1); plain estimator."""
    size = terms.columns[:, 4].max()
    y, z = terms.columns[order, 0] / size, terms.columns[order, 4] / size
    wealth, best, count = 1.0, 0.0, len(y)
    sum_y, sum_z, squares = CAP / 2, 1.0, 0.25
    for t in range(count):
        bet = math.sqrt(2 * math.log(40) / (count * squares / (t + 1))) / CAP
        bet = min(bet, 0.75 / (v if sign > 0 else CAP - v))
        wealth *= 1 + sign * bet * (y[t] - v * z[t])
        if (t + 1) % 8 == 0 or t + 1 == count:
            best = max(best, wealth)
        squares += ((y[t] - sum_y / sum_z * z[t]) / CAP) ** 2
        sum_y, sum_z = sum_y + y[t], sum_z + z[t]
    return best


def test_betting_ends_where_a_gambler_has_just_become_rich() -> None:
    terms = world(9, "plain", clusters=203, rows=2, uneven=True)
    found = betting(terms, 0.95, bound=CAP, seed=5)
    order = generator(5, "betting").permutation(203)
    assert capital(terms, found.low, 1, order) == pytest.approx(40, rel=1e-3)
    assert capital(terms, found.high, -1, order) == pytest.approx(40, rel=1e-3)
    for v in np.linspace(found.low, found.high, 20)[1:-1]:
        assert max(capital(terms, v, 1, order), capital(terms, v, -1, order)) < 40


def best_log_probability(moments: Array, counted: int) -> float:
    """max Σ log(C·p_c) over the first `counted` units, Σ p·moments = 0, p on all units: by a general solver."""
    size = len(moments)
    constraints = (
        {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones((1, size))},
        {"type": "eq", "fun": lambda p: moments.T @ p, "jac": lambda p: moments.T},
    )
    found = optimize.minimize(
        lambda p: -np.log(counted * np.maximum(p[:counted], 1e-12)).sum(),
        np.full(size, 1 / size),
        jac=lambda p: np.concatenate([-1 / np.maximum(p[:counted], 1e-12), np.zeros(size - counted)]),
        bounds=[(1e-9, 1)] * counted + [(0, 1)] * (size - counted),
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-10},
    )
    assert found.success
    return -float(found.fun)


@pytest.mark.parametrize("form", ["plain", "self_normalised"])
@pytest.mark.parametrize("ratio_weights", [False, True])
@pytest.mark.parametrize("bound", [math.inf, CAP])
def test_likelihood_ends_where_the_best_distribution_is_just_too_unlikely(
    form: str, ratio_weights: bool, bound: float
) -> None:
    terms = world(10, form, clusters=25)
    found = empirical_likelihood(terms, 0.9, ratio_weights=ratio_weights, bound=bound, clip=False)
    assert not found.note
    a, z, _, w, n = terms.columns.T
    extreme = [(y, 1.0 if form == "plain" else x, x - 1) for x in (0, CAP) for y in (0, x)] if bound < math.inf else []

    def moments(v: float) -> Array:
        lines = np.concatenate([np.stack([a, z, w - n], 1), np.array(extreme).reshape(-1, 3)])
        both = np.stack([lines[:, 0] - v * lines[:, 1], lines[:, 2]], 1)
        return both if ratio_weights else both[:, :1]

    free = best_log_probability(moments(0.0)[:, 1:], 25)
    for end in (found.low, found.high):
        statistic = 2 * (free - best_log_probability(moments(end), 25))
        assert statistic == pytest.approx(stats.t.ppf(0.95, 24) ** 2, abs=0.03)


def test_the_quadratic_relative_is_a_student_ratio_at_each_candidate() -> None:
    terms = world(11, "self_normalised", clusters=50, rows=3, uneven=True)
    found = empirical_likelihood(terms, 0.95, divergence="euclidean")
    for end in (found.low, found.high):
        d = terms.columns[:, 0] - end * terms.columns[:, 1]
        assert abs(d.mean()) / math.sqrt(d.var() / 50) == pytest.approx(stats.t.ppf(0.975, 49), rel=1e-4)


def test_a_known_mean_weight_sharpens_the_plain_estimate_and_an_impossible_one_is_given_up() -> None:
    terms = world(12, "plain", clusters=300, cap=1e9)
    without, using = (empirical_likelihood(terms, 0.95, ratio_weights=known) for known in (False, True))
    assert using.high - using.low < 0.97 * (without.high - without.low)
    terms.columns[:, [0, 3]] *= 0.5
    off = empirical_likelihood(ClusteredTerms(terms.columns, terms.index), 0.95, ratio_weights=True)
    assert "mean weight is too far from 1" in off.note


# What all share


@pytest.mark.parametrize("method", INTERVALS)
@pytest.mark.parametrize("form", FORMS)
def test_coverage_is_nominal_or_better_on_clustered_rows(method: str, form: str) -> None:
    runs = 200 if form == "self_normalised" else 80
    bound = {"bound": CAP} if method in ("empirical_bernstein", "betting") else {}
    hits = 0
    for seed in range(runs):
        terms = world(seed, form, clusters=60, rows=20 if form == "self_normalised" else 3, uneven=form == "plain")
        found = INTERVALS[method](terms, 0.9, **options(method, replicates=400, **bound))
        hits += found.low <= TRUTH[form] <= found.high
    slack = 3 * math.sqrt(0.9 * 0.1 * runs)
    assert hits > 0.9 * runs - slack
    assert hits < 0.9 * runs + slack or bound


@pytest.mark.parametrize("method", ["empirical_bernstein", "betting", "empirical_likelihood"])
def test_bounded_methods_keep_their_promise_and_say_something(method: str) -> None:
    hits, width = 0, 0.0
    for seed in range(100):
        found = INTERVALS[method](world(seed, "plain", clusters=600, rows=2, uneven=True), 0.9, bound=CAP)
        hits += found.low <= TRUTH["plain"] <= found.high
        width += (found.high - found.low) / 100
    assert hits >= 90 - 3 * math.sqrt(9)
    assert width < 0.6


def test_betting_is_narrower_than_bernstein() -> None:
    for form in FORMS:
        terms = world(13, form, clusters=3000)
        first, second = betting(terms, 0.95, bound=CAP), empirical_bernstein(terms, 0.95, bound=CAP)
        assert second.low < first.low < terms.value < first.high < second.high


def test_rows_taken_for_clusters_would_miss_far_too_often() -> None:
    hits = {"rows": 0, "clusters": 0}
    for seed in range(200):
        random = np.random.default_rng(seed)
        cluster = np.repeat(np.arange(40), 20)
        reward = (random.random(800) < random.beta(0.5, 0.5, 40)[cluster]).astype(np.float64)
        one = torch.ones(800, dtype=torch.float64)
        terms = Terms.without_reward_model(one, one, torch.from_numpy(reward))
        for name, index in (("rows", np.arange(800)), ("clusters", cluster)):
            found = normal(clustered(terms, torch.from_numpy(index)), 0.95)
            hits[name] += found.low <= 0.5 <= found.high
    assert hits["rows"] < 120
    assert hits["clusters"] > 180


def test_differences_are_covered_too() -> None:
    hits = {"normal": 0, "bootstrap": 0}
    truth = TRUTH["self_normalised"] - TRUTH["plain"]
    for seed in range(200):
        pair = ClusteredDifference(world(seed, "self_normalised", 60, 3), world(seed, "plain", 60, 3))
        for method in hits:
            found = INTERVALS[method](pair, 0.9, **options(method, replicates=400))
            hits[method] += found.low <= truth <= found.high
    assert all(abs(count - 180) < 3 * math.sqrt(18) for count in hits.values())
    same = world(0, "plain")
    certain = normal(ClusteredDifference(same, same), 0.95)
    assert (certain.low, certain.high, certain.vacuous) == (0, 0, False)


def degenerate(weight: list[float], reward: list[float], cluster: list[int], form: str) -> ClusteredTerms:
    w, r = torch.tensor(weight, dtype=torch.float64), torch.tensor(reward, dtype=torch.float64)
    z = w if form == "self_normalised" else torch.ones_like(w)
    return clustered(Terms.without_reward_model(w, z, r), torch.tensor(cluster))


@pytest.mark.parametrize("method", INTERVALS)
@pytest.mark.parametrize("form", ["plain", "self_normalised"])
@pytest.mark.parametrize(
    ("weight", "reward", "cluster"),
    [
        ([1, 1, 1], [0, 1, 1], [0, 0, 0]),
        ([0, 0, 0], [0, 1, 1], [0, 1, 2]),
        ([1, 1, 1], [1, 1, 1], [0, 1, 2]),
        ([1, 1, 1], [0, 0, 0], [0, 1, 2]),
        ([1, 1, 5e34], [0, 1, 0], [0, 1, 2]),
        ([1, 1, 5e34], [0, 1, 1], [0, 1, 2]),
        ([1, 1], [0, 1], [0, 1]),
    ],
)
def test_degenerate_logs_are_called_vacuous_and_never_nan(
    method: str, form: str, weight: list[float], reward: list[float], cluster: list[int]
) -> None:
    terms = degenerate(weight, reward, cluster, form)
    for clip in (True, False):
        found = INTERVALS[method](terms, 0.95, clip=clip, **options(method, bound=max(*weight, 1)))
        assert not math.isnan(found.low + found.high) or (found.low, found.high) == (-math.inf, math.inf)
        assert found.low <= 0
        assert found.high >= 1
        assert found.vacuous
        assert found.note


@given(st.integers(0, 10_000), st.sampled_from(FORMS), st.integers(2, 8), st.sampled_from([0.5, 0.95, 0.999]))
@settings(max_examples=25)
def test_small_logs_give_ordered_numbers(seed: int, form: str, clusters: int, level: float) -> None:
    terms = world(seed, form, clusters=clusters, rows=2, uneven=True)
    for method in INTERVALS:
        found = INTERVALS[method](terms, level, **options(method, bound=CAP, replicates=50))
        assert 0 <= found.low <= found.high <= 1
        assert found.vacuous == (found.low == 0 and found.high == 1)


@pytest.mark.parametrize("method", ["empirical_bernstein", "betting"])
def test_a_bound_is_needed_and_must_hold(method: str) -> None:
    unknown = INTERVALS[method](world(1, "plain"), 0.95)
    assert unknown.vacuous
    assert "no bound" in unknown.note
    with pytest.raises(ParameterError, match=r"bound is 0\.1.*mean weight is"):
        INTERVALS[method](world(1, "plain"), 0.95, bound=0.1)
    scaled = world(1, "plain").columns.copy()
    scaled[:, 1] *= 0.5
    other = INTERVALS[method](ClusteredTerms(scaled, np.arange(len(scaled))), 0.95, bound=CAP)
    assert "divided by 1 or by w" in other.note
    scaled[:, 1] *= 2
    scaled[:, 0] *= -1
    with pytest.raises(ParameterError, match=r"rewards and reward model in \[0, 1\]"):
        INTERVALS[method](ClusteredTerms(scaled, np.arange(len(scaled))), 0.95, bound=CAP)


def test_an_interval_beyond_every_possible_reward_is_a_refusal() -> None:
    columns = world(1, "plain").columns.copy()
    columns[:, 0] += 10
    found = normal(ClusteredTerms(columns, np.arange(100)), 0.95)
    assert found.vacuous
    assert "weights cannot be right" in found.note
    assert normal(ClusteredTerms(columns, np.arange(100)), 0.95, clip=False).low > 9


def test_names_options_and_levels_are_checked() -> None:
    terms = world(1, "plain")
    with pytest.raises(ParameterError, match="Did you mean 'bootstrap'"):
        INTERVALS.find("boostrap")
    assert INTERVALS.find("normal") is normal
    for bad in (0.0, 1.0, math.nan, "0.95"):
        with pytest.raises(ParameterError, match="level must"):
            normal(terms, bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="no option 'seeds'; it takes kind, replicates, seed, clip"):
        bootstrap(terms, 0.95, seeds=1)
    with pytest.raises(ParameterError, match="kind must be one of"):
        bootstrap(terms, 0.95, kind="student")
    with pytest.raises(ParameterError, match="replicates must lie in"):
        bootstrap(terms, 0.95, replicates=3.5)
    with pytest.raises(ParameterError, match="ratio_weights is a switch"):
        empirical_likelihood(terms, 0.95, ratio_weights=1)
    with pytest.raises(ParameterError, match="not for a difference"):
        betting(ClusteredDifference(terms, terms), 0.95, bound=CAP)


def test_rare_large_weights_fool_limit_theorems_but_not_bounds() -> None:
    hits = dict.fromkeys(["normal", "empirical_bernstein", "betting", "empirical_likelihood"], 0)
    random = np.random.default_rng(14)
    for _ in range(120):
        heavy = random.random(60) < 0.02
        reward = random.random(60) < np.where(heavy, 0.8, 0.1)
        terms = degenerate(np.where(heavy, 25.5, 0.5).tolist(), reward.tolist(), list(range(60)), "plain")
        for method in hits:
            found = INTERVALS[method](terms, 0.9, **options(method, bound=25.5))
            hits[method] += found.low <= 0.02 * 25.5 * 0.8 + 0.98 * 0.5 * 0.1 <= found.high
    assert hits["normal"] < 96
    assert min(hits["empirical_bernstein"], hits["betting"], hits["empirical_likelihood"]) >= 108, hits
