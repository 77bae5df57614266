"""An interval is one function of clustered terms and a level; its keyword-only parameters are its options.

A method returns bare bounds. What all share (checks, refusals, clipping to possible rewards, calling a vacuous interval
vacuous) is done here, once.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.evaluation.clusters import ClusteredTerms, ClusterStatistic
from offpolicy.registry import Registry

LEVEL = Range(0.0, 1.0, include_low=False, include_high=False)
SEED = Range(0, np.inf, integer=True)


@dataclass(frozen=True)
class Interval:
    """Where the value lies, at a level of confidence, and how much that says."""

    low: float
    high: float
    level: float
    method: str
    vacuous: bool
    """Covers every possible value, so it says nothing."""
    centre: float
    """The estimate it was built around."""
    note: str = ""
    """Why it is vacuous or was built otherwise than asked; empty where there is nothing to say."""


class Bounds(NamedTuple):
    """What a method hands back: ends before clipping, a remark, and its own estimate where it has one."""

    low: float
    high: float
    note: str = ""
    centre: float | None = None


@dataclass(frozen=True)
class IntervalMethod:
    """A registered interval: call it with terms, a level and its options."""

    name: str
    bounds: Callable[..., Bounds]

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Names and defaults of the options, `clip` among them."""
        own = {p.name: p.default for p in self._parameters if p.kind is p.KEYWORD_ONLY}
        return own | {"clip": True}

    @property
    def takes_differences(self) -> bool:
        """Whether paired differences are understood too, not only the terms of one policy."""
        return get_type_hints(self.bounds)[self._parameters[0].name] is ClusterStatistic

    @property
    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.bounds).parameters.values())

    def __call__(self, terms: ClusterStatistic, level: float = 0.95, *, clip: bool = True, **options: Any) -> Interval:
        """The interval; clipped to the values that rewards in [0, 1] allow unless `clip` is False."""
        level = check_number("level", level, LEVEL)
        checked = self._check(options)
        if not isinstance(terms, ClusteredTerms) and not self.takes_differences:
            raise ParameterError(
                f"The {self.name!r} interval is for the value of one policy, not for a difference. "
                "Use 'normal' or 'bootstrap' for differences."
            )
        refused = Bounds(-np.inf, np.inf, terms.refusal)
        bounds = refused if terms.refusal else self.bounds(terms, level, **checked)
        return self._finished(terms, level, clip, bounds)

    def _finished(self, terms: ClusterStatistic, level: float, clip: bool, bounds: Bounds) -> Interval:
        low, high = float(bounds.low), float(bounds.high)
        least, most = terms.limits
        notes = [terms.note, bounds.note]
        if clip and (low > most or high < least):
            notes.append(f"[{low:.4g}, {high:.4g}] holds no possible value: the weights cannot be right")
            low, high = least, most
        if clip:
            low, high = max(low, least), min(high, most)
        vacuous = low <= least and high >= most
        if vacuous and not any(notes):
            notes.append("covers every possible value")
        centre = terms.value if bounds.centre is None else bounds.centre
        return Interval(low, high, level, self.name, vacuous, centre, "; ".join(filter(None, notes)))

    def _check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        hints = get_type_hints(self.bounds, include_extras=True)
        for name in given:
            if name not in self.options:
                raise ParameterError(
                    f"Interval {self.name!r} has no option {name!r}; it takes {', '.join(self.options)}."
                )
        return {name: _checked_option(name, value, hints[name]) for name, value in given.items()}


def _checked_option(name: str, value: Any, hint: Any) -> Any:
    if hint is bool:
        if not isinstance(value, bool):
            raise ParameterError(f"{name} is a switch: pass True or False, not {value!r}.")
        return value
    if get_origin(hint) is Literal:
        return check_choice(name, value, get_args(hint))
    kind, allowed = get_args(hint)
    return kind(check_number(name, value, allowed))


INTERVALS: Registry[IntervalMethod] = Registry("interval")


def interval(name: str) -> Callable[[Callable[..., Bounds]], IntervalMethod]:
    """Register the decorated function as an interval; options are annotated with a Range, Literal or bool."""

    def register(bounds: Callable[..., Bounds]) -> IntervalMethod:
        method = IntervalMethod(name, bounds)
        INTERVALS.add(name, method)
        return method

    return register
