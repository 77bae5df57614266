"""The options of an evaluation, checked before any expensive work."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.guardrails import Guardrail
from offpolicy.evaluation.hyper import GAMMA
from offpolicy.evaluation.intervals import INTERVALS, LEVEL, IntervalMethod
from offpolicy.evaluation.slates import RATIO_OF

DEFAULT_ESTIMATORS = ("ips", "snips", "clipped", "shrinkage", "uips", "snuips", "dm", "dr", "sndr", "uips_dr")

GAMMAS = Range(0.0, float("inf"), include_high=False)
GROUPED = ("mips", "offcem")
"""Estimators that weigh groups of actions."""


@dataclass(frozen=True)
class Options:
    """The options of an evaluation, checked."""

    estimators: tuple[str, ...] = DEFAULT_ESTIMATORS
    intervals: tuple[str, ...] = ("normal",)
    level: float = 0.95
    gamma: float | str = GAMMA
    refits: int = 0
    seed: int = 0
    action_groups: Any = None
    interval: str = "auto"
    by: tuple[str, ...] = ()
    sensitivity_columns: bool = False
    rewards: tuple[str, ...] = ()
    """Further rewards: columns kept beside the rows."""
    guardrails: tuple[str, ...] = ()
    """Rewards that must not get worse, as `Guardrail.parse` reads them."""
    winsorise: float = 0.0
    """Share of the largest and smallest further rewards that are set to their quantile."""
    best_by: str = "lower_bound"
    """What makes the best candidate: the highest "lower_bound", or the highest "value"."""
    prefer: str | None = None
    """By value, a candidate that others must beat by more than their paired standard error."""
    user_model: str = "auto"

    def __post_init__(self) -> None:
        """Check options before any expensive work."""
        check_number("level", self.level, LEVEL)
        if isinstance(self.gamma, str):
            check_choice("gamma", self.gamma, ("calibrated",))
        else:
            check_number("gamma", self.gamma, GAMMAS)
        check_choice("best_by", self.best_by, ("lower_bound", "value"))
        check_choice("interval", self.interval, ("auto", "guaranteed"))
        check_choice("user_model", self.user_model, ("auto", *RATIO_OF))
        _ = self.rows, self.methods, self.limits

    @cached_property
    def rows(self) -> list[Estimator]:
        """The estimators' rows in the registry."""
        return [ESTIMATORS.find(name) for name in self.estimators]

    @cached_property
    def limits(self) -> dict[str, Guardrail]:
        """The guardrails by the name of their reward."""
        found = {one.name: one for one in map(Guardrail.parse, self.guardrails)}
        twice = next((name for name in found if name in self.rewards), None)
        if twice is not None:
            raise ParameterError(f"{twice!r} is both a reward and a guardrail. Give it once.")
        return found

    @cached_property
    def methods(self) -> dict[str, IntervalMethod]:
        """The intervals asked for."""
        return {name: INTERVALS.find(name) for name in self.intervals}
