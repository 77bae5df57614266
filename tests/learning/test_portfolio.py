"""`method="auto"`: what it chooses is near the best of what it learned, and what it says about logging is true."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.comparison import best_by_value
from offpolicy.evaluation.evaluator import Evaluator
from offpolicy.evaluation.options import Options
from offpolicy.evaluation.views import Width
from offpolicy.learning import PORTFOLIO, held_out_unit, learn_policy, member_settings
from offpolicy.learning.portfolio import choice_of
from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.nuisances import Nuisances
from offpolicy.policies import UniformPolicy
from offpolicy.workflows.holdout import Holdout

WORLD = LinearSoftmaxWorld.draw(0, n_actions=10, dimensions=3, alignment=0.2)
LOG = WORLD.log(1, 3000)
TEST = WORLD.contexts(7, 3000)
QUICK: dict[str, Any] = {"learning_rate": 0.1, "show_progress": False}


def test_auto_is_the_default_and_nearly_as_good_as_the_world_allows() -> None:
    learned = learn_policy(WORLD.log(1, 6000).without_propensities(), **QUICK)
    best = float(WORLD.rewards(TEST).amax(1).mean())
    logging, value = WORLD.value(WORLD.logging_policy, TEST), WORLD.value(learned, TEST)
    assert value > logging + 0.85 * (best - logging)
    choice = learned.choice
    assert choice is not None
    assert [one.method for one in choice.candidates] == list(PORTFOLIO)
    assert choice.method == learned.method
    chosen = next(one for one in choice.candidates if one.chosen)
    assert chosen.low is not None
    assert chosen.high is not None
    assert chosen.gain_low is not None
    assert chosen.low <= value <= chosen.high
    assert choice.recommendation == "policy"
    assert 0 < chosen.gain_low <= value - logging
    assert all(one.seconds is not None and one.seconds >= 0 for one in choice.candidates)


def test_the_preferred_candidate_stays_unless_another_is_clearly_better() -> None:
    """Two policies on one log, the better one by far more than its paired error, then by nothing at all."""
    nuisances = Nuisances(LOG, model="linear")
    policies = {"uniform": UniformPolicy(10), "good": WORLD.target_policy(3.0), "same": WORLD.target_policy(3.0)}
    estimates: dict[str, AutoEstimate] = Evaluator(nuisances, policies, options=Options(estimators=("ips",))).estimates
    assert best_by_value(estimates, 0.95, "uniform")[0] in ("good", "same")
    assert best_by_value(estimates, 0.95, "same")[0] == "same"
    assert best_by_value(estimates, 0.95, "good")[0] == "good"
    best, bound = best_by_value(estimates, 0.95, None)
    assert best == "good"
    assert bound == pytest.approx(max(estimates[best].value - estimates[best].width.half(1 - 0.05 / 3), 0.0))


def test_a_proven_candidate_takes_the_place_of_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging has .50; the preferred candidate .65 ± .20, another .68 ± .02: too close to tell apart, but only the
    second is certainly better than logging. With .64 instead it is not taken, nor if logging is not looked at, nor if
    only counting all candidates leaves the first unproven."""

    def estimate(value: float, half: float, more: float = 0.0) -> Any:
        def at(level: float) -> float:
            return half + more * (level > 0.95)

        return SimpleNamespace(value=value, error=half, width=SimpleNamespace(half=at))

    def apart(one: Any, other: Any) -> Any:
        wide = max((one, other), key=lambda each: float(each.error))
        return SimpleNamespace(half=wide.width.half, scale=wide.error, least=0.0, refusal="")

    monkeypatch.setattr("offpolicy.evaluation.comparison.difference_width", apart)
    logging, preferred = estimate(0.5, 0.01), estimate(0.65, 0.2)
    for value, best in ((0.68, "timid"), (0.64, "bold")):
        estimates = {"bold": preferred, "timid": estimate(value, 0.02)}
        assert best_by_value(estimates, 0.95, "bold", logging)[0] == best
        assert best_by_value(estimates, 0.95, "bold")[0] == "bold"
    proven = {"bold": estimate(0.65, 0.1), "timid": estimate(0.68, 0.02)}
    assert best_by_value(proven, 0.95, "bold", logging)[0] == "bold"
    by_a_hair = {"bold": estimate(0.65, 0.14, more=0.02), "timid": estimate(0.68, 0.02)}
    assert best_by_value(by_a_hair, 0.95, "bold", logging)[0] == "bold"


@pytest.mark.parametrize(
    ("width", "taken"),
    [
        (Width(error=0.01, propensity=0.0, fixed=0.08, least=-0.002), True),
        (Width(error=0.01, propensity=0.0, fixed=0.08, least=-0.02), False),
        (Width(error=0.01, propensity=0.03, fixed=0.0, least=0.02), False),
        (Width(error=0.0, propensity=0.0, fixed=0.0, least=0.04, refusal="no rows"), False),
    ],
)
def test_views_far_apart_do_not_save_a_candidate_that_is_clearly_behind(
    width: Width, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """.04 behind: by four errors, with views 0 to .16 apart; or one view says the opposite; or it is within noise."""
    monkeypatch.setattr("offpolicy.evaluation.comparison.difference_width", lambda one, other: width)
    estimates: Any = {
        name: SimpleNamespace(value=value, width=Width(0.05, 0.0, 0.0)) for name, value in (("dm", 0.64), ("ce", 0.68))
    }
    assert best_by_value(estimates, 0.95, "dm")[0] == ("ce" if taken else "dm")


def test_rows_are_held_out_where_contexts_are_ids() -> None:
    """Nothing is learned of an id that is held out as a whole; clusters that were named stay whole."""
    random = np.random.default_rng(0)
    users, rows = 300, 6_000
    ids = Vocabulary(np.array([f"u{i:04d}" for i in range(users)]))
    contexts = FeatureTable({"user": CategoricalColumn(np.arange(users, dtype=np.int32), ids)})
    user, action = random.integers(users, size=rows), random.integers(5, size=rows)
    reward = (random.random(rows) < np.where(action == user % 5, 0.8, 0.2)).astype(float)
    given: dict[str, Any] = {"context_index": user, "actions": 5}
    log = LoggedData.from_arrays(contexts, action, reward, **given)
    assert held_out_unit(log) == "row"
    (first, train), (second, held) = log.divide((0.8, 0.2), by="row")
    assert np.array_equal(np.sort(np.concatenate([first, second])), np.arange(rows))
    assert set(np.unique(held.context_index)) <= set(np.unique(train.context_index))
    longer = LoggedData.from_arrays(
        contexts,
        np.append(action, action[:50]),
        np.append(reward, reward[:50]),
        context_index=np.append(user, user[:50]),
        actions=5,
    )
    again = longer.divide((0.8, 0.2), by="row")[0][0]
    assert np.array_equal(again[again < rows], first)
    assert held_out_unit(LOG) is None
    assert held_out_unit(LoggedData.from_arrays(contexts, action, reward, cluster=user % 40, **given)) is None
    assert Holdout.of(log, 0.2, 0).unit == "row"
    assert Holdout.from_json(Holdout.of(log, 0.2, 0).to_json()) == Holdout.of(log, 0.2, 0)


def test_staying_with_logging_is_said_where_nothing_is_better() -> None:
    """Logging that is already greedy: what little is learned from few rows is no improvement that these could show."""
    world = LinearSoftmaxWorld.draw(2, n_actions=5, dimensions=2, temperature=0.05, alignment=1.0)
    learned = learn_policy(world.log(3, 400).without_propensities(), **QUICK)
    assert learned.choice is not None
    assert learned.choice.recommendation in ("logging", "experiment")
    assert "tay with logging" in learned.choice.sentence


def test_a_policy_whose_verdict_is_an_experiment_is_not_called_better() -> None:
    """All rows belong to twenty users, which are too few to rely on, whatever their interval says."""
    rows = np.arange(LOG.n_rows)
    few = LoggedData(**LOG._fields | {"cluster": (rows % 20).astype(np.int32)})
    for log, verdict in ((LOG, "policy"), (few, "experiment")):
        policies = {"good": WORLD.target_policy(3.0), "uniform": UniformPolicy(10)}
        evaluator = Evaluator(Nuisances(log, model="linear"), policies, options=Options(estimators=("ips",)))
        choice = choice_of(evaluator, {})
        assert choice.method == "good"
        chosen = next(one for one in choice.candidates if one.chosen)
        assert chosen.gain_low is not None
        assert chosen.gain_low > 0
        assert choice.recommendation == verdict
    assert "cannot be relied on: effective sample size is" in choice.sentence


def test_settings_go_to_the_methods_that_have_them() -> None:
    members = member_settings({"lam": 5.0, "seed": 3})
    assert members["uips"] == {"lam": 5.0, "seed": 3}
    assert members["dm"] == {"start": "rewards", "seed": 3}
    assert members["ce"] == {"metric": "value", "seed": 3}
    with pytest.raises(ParameterError, match="auto tries"):
        member_settings({"top_p": 3})
    with pytest.raises(ParameterError, match="chooses on logged rows"):
        learn_policy(LOG, validation=lambda policy: 0.0)


def test_rewards_that_are_all_alike_are_refused_before_any_work() -> None:
    alike = LoggedData.from_arrays(
        LOG.contexts, LOG.action, np.ones(LOG.n_rows), context_index=LOG.context_index, actions=10
    )
    for method in ("auto", "uips", "dm"):
        with pytest.raises(ParameterError, match="Every reward in the rows to learn from is 1"):
            learn_policy(alike, method)
