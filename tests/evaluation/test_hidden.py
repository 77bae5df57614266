"""Sharp bounds against linear programs and hidden laws; columns by what they do to β̂; the sentence by hand."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from offpolicy import evaluate
from offpolicy.evaluation.hidden import (
    SharpRange,
    column_strengths,
    hidden_sentence,
    moved_to,
    sharp_ends,
    sharp_range,
    tipping,
)
from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData
from offpolicy.policies import TabularPolicy
from offpolicy.results import ColumnStrength, Sensitivity

GRID = list(itertools.product((0.05, 0.3, 0.8), (0.01, 0.2, 0.5, 0.9, 1.0), (1.0, 1.3, 2.0, 8.0)))


def ends(e: float, p: float, gamma: float) -> tuple[float, float]:
    low, high = sharp_ends(torch.tensor(e, dtype=torch.float64), torch.tensor(p, dtype=torch.float64), gamma)
    return float(low), float(high)


@pytest.mark.parametrize(("e", "p", "gamma"), GRID)
def test_the_bounds_are_the_optima_of_a_linear_program(e: float, p: float, gamma: float) -> None:
    """Unknown: q_y = P(another action, r(a) = y). The odds of a given y are within Γ of those of β̂."""
    taken = np.array([e * (1 - p), e * p])  # P(a, r = y), which the log shows
    # taken_y/q_y over e/(1 − e) within [1/Γ, Γ], so q_y within taken_y (1 − e)/e times the same.
    limits = [(t * (1 - e) / e / gamma, t * (1 - e) / e * gamma) for t in taken]
    for sign, found in zip((1, -1), ends(e, p, gamma), strict=True):
        solved = linprog([0, sign], A_eq=[[1, 1]], b_eq=[1 - e], bounds=limits)
        assert solved.success
        assert found == pytest.approx(taken[1] + sign * solved.fun, abs=1e-9)


def test_no_hidden_law_leaves_the_bounds() -> None:
    """Random laws of a hidden variable of four values that moves both the action and the reward."""
    random = np.random.default_rng(0)
    closest = [np.inf, np.inf]
    for _ in range(4000):
        hidden = random.dirichlet(np.ones(4) * 0.5)
        choose, click = random.beta(0.5, 0.5, 4).clip(0.02, 0.98), random.choice([0.0, 1.0, 0.3], 4)
        e = float(hidden @ choose)
        p = float(hidden @ (choose * click)) / e
        factors = choose / (1 - choose) / (e / (1 - e))
        low, high = ends(e, p, float(max(factors.max(), 1 / factors.min())))
        value = float(hidden @ click)
        assert low - 1e-9 <= value <= high + 1e-9
        closest = [min(closest[0], value - low), min(closest[1], high - value)]
    assert max(closest) < 0.01


def test_ends_at_no_hidden_information_and_at_any() -> None:
    assert ends(0.3, 0.4, 1.0) == pytest.approx((0.4, 0.4))
    assert ends(0.3, 0.4, 1e9) == pytest.approx((0.3 * 0.4, 0.3 * 0.4 + 0.7), abs=1e-6)


class Clicks:
    """A reward model by table."""

    table = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.9]])

    def rewards(self, contexts: FeatureTable) -> torch.Tensor:
        column = contexts["c"]
        assert isinstance(column, CategoricalColumn)
        return self.table[column.codes.tolist()]


def test_the_range_is_a_slow_sum() -> None:
    codes = np.array([0, 0, 1, 0, 1, 0])
    log = LoggedData.from_arrays({"c": np.array(["u", "v"])[codes]}, np.arange(6) % 3, np.arange(6) % 2, actions=3)
    pi = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]).double()
    beta = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]).double()
    gammas = (1.0, 1.5, 4.0)
    found = sharp_range(log, TabularPolicy("c", pi), TabularPolicy("c", beta), Clicks(), gammas)
    for place, gamma in enumerate(gammas):
        slow = np.zeros(2)
        for context in codes:
            for a in range(3):
                q = float(Clicks.table[context, a])
                slow += float(pi[context, a]) / 6 * np.array(ends(float(beta[context, a]), q, gamma))
        assert [found.low[place], found.high[place]] == pytest.approx(slow.tolist(), abs=1e-6)


def test_the_tipping_point_lies_where_the_line_crosses() -> None:
    found = moved_to(SharpRange(np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.7, 0.9])), 0.6)
    assert found.low.tolist() == pytest.approx([0.6, 0.4, 0.3])
    assert found.high.tolist() == pytest.approx([0.6, 0.8, 1.0])
    assert tipping(found, 0.6, 0.35) == pytest.approx(2.5)
    assert tipping(found, 0.6, 0.7) == pytest.approx(1.5)
    assert tipping(found, 0.6, 0.6) == 1.0
    assert tipping(found, 0.6, 0.1) is None


def country_log(n: int = 4000) -> LoggedData:
    """The logger looks at the country strongly, at the age a little, at noise not at all."""
    random = np.random.default_rng(1)
    country, age, noise = random.integers(0, 2, n), random.normal(size=n), random.normal(size=n)
    chance = 1 / (1 + np.exp(-(1.5 * (2 * country - 1) + 0.3 * age)))
    action = (random.random(n) < chance).astype(int)
    reward = (random.random(n) < 0.2 + 0.4 * action).astype(float)
    columns = {"noise": noise, "age": age, "country": np.array(["de", "fr"])[country]}
    return LoggedData.from_arrays(columns, action, reward, actions=2)


def test_columns_are_as_strong_as_the_logger_used_them() -> None:
    found = column_strengths(country_log())
    assert [one.column for one in found] == ["country", "age", "noise"]
    country, age, noise = (one.odds_gamma or 0.0 for one in found)
    assert country == pytest.approx(np.exp(1.5), rel=0.15)  # without it, the odds are about even
    assert age == pytest.approx(np.exp(0.3 * 1.64), rel=0.2)  # the 90 % quantile of |age|
    assert 1.0 <= noise < 1.15
    for one in found:
        assert 1.0 <= (one.gamma or 0.0) <= (one.odds_gamma or 0.0)


def test_evaluate_says_how_strong_hidden_information_must_have_been() -> None:
    def second(contexts: FeatureTable) -> np.ndarray:
        return np.tile([0.1, 0.9], (contexts.n_rows, 1))

    log = country_log()
    found = evaluate(log, second, "linear", estimators=("snips",), sensitivity_columns=True)["policy"]
    one = found.sensitivity
    assert one.sharp_low[0] == pytest.approx(found.value)
    assert one.sharp_high[0] == pytest.approx(found.value)
    assert np.all(np.diff(np.array(one.sharp_low, dtype=float)) <= 1e-12)
    # Lead 0.56 − 0.4; the low end falls by Σ_a π(1 − e)(p − p/Γ) = (0.9 · 0.6 + 0.1 · 0.2)(1 − 1/Γ)/2: Γ = 2.33.
    assert one.sharp_flips_at == pytest.approx(2.33, abs=0.25)
    assert "as strong as leaving out country" in one.sentence
    plain = evaluate(log, second, "linear", estimators=("snips",))["policy"].sensitivity
    assert plain.columns == []
    assert plain.sentence.endswith(f"as strong as a factor of {plain.flips_at:.2f} in the probabilities of actions.")


def test_the_sentence_names_the_weakest_column_that_is_strong_enough() -> None:
    columns = [
        ColumnStrength(column="country", gamma=2.0, odds_gamma=4.0),
        ColumnStrength(column="age", gamma=1.5, odds_gamma=2.0),
    ]
    made = Sensitivity(flips_at=1.2, sharp_flips_at=1.8, sharp_low=[0.1], columns=columns)
    assert "as strong as leaving out age (a factor of 1.80 in the odds of actions is enough" in hidden_sentence(made)
    plain = made.model_copy(update={"sharp_low": [], "flips_at": 1.7})
    assert "leaving out country (a factor of 1.70 in the probabilities" in hidden_sentence(plain)
    strong = made.model_copy(update={"sharp_flips_at": 5.0})
    assert "stronger than leaving out any one of the columns" in hidden_sentence(strong)
    assert "no difference" in hidden_sentence(made.model_copy(update={"sharp_flips_at": 1.0}))
    assert "nothing of a strength" in hidden_sentence(made.model_copy(update={"sharp_flips_at": None}))


def test_the_only_column_is_measured_against_popularity() -> None:
    log = country_log()
    alone = LoggedData.from_arrays(
        FeatureTable({"country": log.contexts["country"]}),
        log.action,
        log.reward,
        context_index=log.context_index,
        actions=2,
    )
    (found,) = column_strengths(alone)
    french = np.array([alone.contexts["country"].codes[c] for c in alone.context_index]) == 1  # type: ignore[union-attr]
    share = [alone.action[rows].mean() for rows in (french, ~french)]
    counted = [abs(np.log(one / (1 - one)) - np.log(alone.action.mean() / (1 - alone.action.mean()))) for one in share]
    assert np.log(found.odds_gamma or 0.0) == pytest.approx(max(counted), rel=0.15)  # but for the ridge
