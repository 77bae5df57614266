"""What an evaluation found of one policy: value, interval, estimators, checks and verdict, sensitivity."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from offpolicy.results.part import Finite, Maybe, MaybeList, Number, Part

USER_MODELS: Mapping[str, str] = {
    "any": "nothing about users: any action of a slate may change the reward of any other",
    "cascade": "users go from top to bottom: what stands below changes nothing above",
    "independent": "users look at each position by itself: no action changes the reward of another",
    "additive": "the total reward of a slate is a sum of effects of its positions",
}
"""What an estimator of slates may assume of users."""

Answer = Literal["answerable", "answerable on part", "run an experiment"]


class Interval(Part):
    """Where a value lies, at a level of confidence, and how much that says."""

    low: Finite
    high: Finite
    level: Finite = 0.95
    method: str = ""
    vacuous: bool = False
    """Covers every possible value, so it says nothing."""
    centre: Number = None
    """The estimate it was built around."""
    note: str = ""
    """Why it is vacuous or was built otherwise than asked; empty where there is nothing to say."""


class TwoPartInterval(Interval):
    """An interval whose half-width is split into its two causes."""

    sampling: Finite
    """Half-width from the sampling of rows."""
    propensity: Finite
    """Half-width added because β̂ is estimated."""


class Estimate(Part):
    """One estimator's answer."""

    name: str
    value: Finite
    standard_error: Number = None
    intervals: Annotated[dict[str, Interval], Maybe] = {}
    hyper: Annotated[dict[str, Any], Maybe] = {}
    mean_weight: Number = None
    note: str = ""
    assumes: str = ""
    """For slates, what it takes for granted of users: any (nothing), cascade, independent or additive."""


class Check(Part):
    """One pre-flight check."""

    name: str
    value: Number = None
    passed: bool
    meaning: str = ""


class Verdict(Part):
    """Whether the log can answer, what speaks against it, and what to do."""

    answer: Answer
    reasons: Annotated[list[str], MaybeList] = []
    advice: str = ""

    @property
    def answerable(self) -> bool:
        """Whether the estimate may be relied on."""
        return self.answer == "answerable"


class Preflight(Part):
    """All checks of one policy on one log, the verdict, and covariate balance."""

    checks: Annotated[list[Check], MaybeList] = []
    verdict: Verdict
    balance: Annotated[list[tuple[str, Number, Number]], MaybeList] = []
    """Features whose weighted mean differs from their mean: name, shift before, shift after, in standard deviations."""


class ColumnStrength(Part):
    """How strongly the logger used a column: the factor by which leaving it out changes β̂ in nine rows of ten."""

    column: str
    gamma: Number = None
    """Factor in probabilities."""
    odds_gamma: Number = None
    """Factor in their odds."""


class Sensitivity(Part):
    """How wrong β̂ must be, by one factor in every row, before the conclusion against the logging policy flips."""

    flips_at: Number = None
    """The factor Γ; None if no factor flips it, 1 if there is nothing to flip."""
    gammas: Annotated[list[Number], MaybeList] = []
    low: Annotated[list[Number], MaybeList] = []
    high: Annotated[list[Number], MaybeList] = []
    sharp_flips_at: Number = None
    """For binary rewards, where asked for: the least factor in the odds of actions by which hidden information
    overturns the conclusion; None beyond the largest of `gammas`."""
    sharp_low: Annotated[list[Number], MaybeList] = []
    sharp_high: Annotated[list[Number], MaybeList] = []
    columns: Annotated[list[ColumnStrength], MaybeList] = []
    """What leaving out each context column does to β̂, the strongest first, where asked for."""
    sentence: str = ""
    """How strong hidden information must have been, in words."""


class PolicyResult(Part):
    """Everything about one policy."""

    name: str = ""
    value: Finite
    interval: TwoPartInterval
    lam: Number = None
    """λ of the shrunk weights, chosen by estimated error; None is no shrinkage."""
    estimates: Annotated[list[Estimate], MaybeList] = []
    left_out: Annotated[dict[str, str], Maybe] = {}
    """Estimators that could not be used for this policy, and why."""
    preflight: Preflight
    sensitivity: Annotated[Sensitivity, Maybe] = Sensitivity()
    detectable_effect: Number = None
    propensity_intervals: Annotated[dict[str, Interval], Maybe] = {}
    """Intervals that let β̂ itself vary: the worst case over its band, and the refit bootstrap where asked for."""
    guarantee: str = ""
    """Whether the guaranteed interval shows the policy to be better than logging, in a sentence; empty if not asked."""
    reference: bool = False
    """Whether it only serves to compare the candidates with."""
    assumes: str = ""
    """For slates, how users are assumed to look at them: any, cascade or independent."""

    def __repr__(self) -> str:
        """Value, interval and verdict."""
        ends, answer = self.interval, self.preflight.verdict.answer
        return f"PolicyResult({self.name!r}: {self.value:.4g}, {ends.low:.4g} to {ends.high:.4g}, {answer})"

    __str__ = __repr__
