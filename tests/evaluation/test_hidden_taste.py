"""A logger that knew users better than the columns do is refused by name; with the id as a column it is not."""

import sys
from typing import Any

import pytest

from logger_worlds import knowing_users
from offpolicy import evaluate
from offpolicy.propensity import Repeats, repeat_test
from offpolicy.results import Evaluation

REPEATS = sys.modules["offpolicy.evaluation.evaluator"]


def judged(shown: bool, policies: Any = "uniform") -> Evaluation:
    log = knowing_users(80, 30, actions=4, shown=shown).log
    return evaluate(log, policies, "towers" if shown else "linear", estimators=("snips",))


def test_hidden_taste_is_refused_with_that_reason() -> None:
    found = judged(shown=False)["policy"].preflight
    check = next(one for one in found.checks if one.name == "repeats")
    assert check.value is not None
    assert not check.passed
    assert found.verdict.answer == "run an experiment"
    said = (
        f"the same user got the same action {check.value:.1f} times as often as the estimated propensities "
        "say: the logger knew more than they do"
    )
    assert said in found.verdict.reasons


def test_the_id_as_a_column_explains_the_repeats() -> None:
    found = judged(shown=True)["policy"].preflight
    check = next(one for one in found.checks if one.name == "repeats")
    assert check.passed
    assert check.value == pytest.approx(1, abs=0.15)
    assert not any("as often as the estimated propensities say" in reason for reason in found.verdict.reasons)


def test_the_test_is_made_once_for_all_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> Repeats | None:
        calls.append(arguments)
        return repeat_test(*arguments, **options)

    monkeypatch.setattr(REPEATS, "repeat_test", counted)
    found = judged(False, {"one": "uniform", "two": "uniform", "three": "uniform"})
    assert len(calls) == 1
    assert {found[name].preflight.verdict.answer for name in ("one", "two", "three")} == {"run an experiment"}
