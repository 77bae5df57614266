"""What an evaluation found of all policies: comparisons, segments, outcomes, and what it found of each.

Every value, interval and difference is on the user's own scale of rewards.
"""

from typing import Annotated, Any, Literal

from offpolicy.results.part import Finite, Maybe, MaybeList, Number, Part
from offpolicy.results.policy import Interval, PolicyResult

LOGGING = "logging"
"""What comparisons call the policy that made the log."""
Finding = Literal["better", "worse", "unclear", "kept", "broken", "refused"]
"""Of a reward: better, worse or unclear; of a guardrail: kept, broken or unclear."""


class Comparison(Part):
    """A candidate against a reference, on the same clusters."""

    candidate: str
    reference: str
    difference: Finite
    low: Finite
    high: Finite
    joint_low: Number = None
    """Lower end of the interval that holds for all candidates at once: use it to speak of the best of several."""
    joint_high: Number = None
    refused: bool = False
    """Whether the verdict refused one of the two policies; then there is no probability and no p-value."""
    probability_of_improvement: Number = None
    """That the candidate is better: above 97.5 % exactly where the 95 % interval is above 0."""
    p_value: Number = None
    """Two-sided, for no difference: below 5 % exactly where the 95 % interval leaves 0 out."""
    adjusted_p_value: Number = None
    """After Holm's correction over the candidates compared with this reference."""
    relative: Number = None
    """Difference relative to the reference's value; None where that is zero."""


class Segment(Part):
    """A policy in one segment of the log; intervals hold for all segments, candidates and rewards at once."""

    reward: str = ""
    """Which reward the values are of; empty in results of one reward that did not name it."""
    column: str
    segment: str
    policy: str
    rows: int
    value: Finite
    low: Finite
    high: Finite
    logging: Finite
    """The logging policy's value in the segment."""
    difference: Finite
    difference_low: Finite
    difference_high: Finite
    adjusted_p_value: Number = None
    """Two-sided, for no difference, after Holm's correction over all segments, candidates and rewards."""
    refused: bool = False
    """Whether the verdict on the segment's rows is not "answerable"; then there is no p-value."""


class Outcome(Part):
    """A policy under one of several rewards, against logging.

    Intervals of rewards hold for all rewards and candidates at once. Those of guardrails hold for all candidates: a
    policy must pass every guardrail, so their number gives chance no further opening.
    """

    reward: str
    guardrail: bool = False
    policy: str
    value: Finite
    low: Finite
    high: Finite
    logging: Finite
    """The logging policy's value under this reward."""
    difference: Finite
    difference_low: Finite
    difference_high: Finite
    relative: Number = None
    """The difference relative to the logging policy's value; None where that is zero."""
    adjusted_p_value: Number = None
    """Two-sided, for no difference, after Holm's correction over all rewards and candidates; None for guardrails."""
    limit: Number = None
    """Of a guardrail: the difference that must not be passed, downwards or, if `lower_is_better`, upwards."""
    limit_text: str = ""
    """The limit as it was given, such as 2 %."""
    lower_is_better: bool = False
    finding: Finding
    refused: bool = False
    """Whether the verdict under this reward is not "answerable"; then nothing is found."""


class Decision(Part):
    """What the rewards and guardrails say about one candidate, taken together."""

    policy: str
    holds: bool
    """Better on a reward, worse on none, and every guardrail kept: all of it at the level, many looks counted."""
    sentence: str


class CalibrationBin(Part):
    """Predicted against observed share of (row, action) pairs whose β̂ lies in one bin."""

    low: Number = None
    predicted: Number = None
    observed: Number = None
    pairs: Number = None


class Quality(Part):
    """How good β̂ is on rows it was not fitted to."""

    log_likelihood: Finite
    """Mean log β̂ of held-out rows; higher is better."""
    uniform_log_likelihood: Finite
    """The same for the uniform policy, −log K."""
    popularity_log_likelihood: Finite
    """The same for smoothed popularity: what ignoring the context costs."""
    calibration_error: Number = None
    """Share of predicted mass that lies in the wrong probability bin; None for recorded propensities."""
    mean_weight: Finite
    """Mean of popularity/β̂ over held-out rows: 1 where β̂ is right."""
    mean_weight_error: Finite
    """Its standard error."""
    rows: int = 0
    bins: Annotated[list[CalibrationBin], MaybeList] = []


class Logging(Part):
    """The policy that made the log."""

    model: str = ""
    """Which model β̂ is."""
    value: Finite = 0.0
    interval: Interval | None = None
    quality: Quality | None = None
    note: str = ""
    """A warning where its fit did not converge."""


class Evaluation(Part):
    """What `evaluate` found."""

    level: Finite = 0.95
    best: str = ""
    """The candidate with the highest lower confidence bound; of learned ones that with the highest value."""
    best_bound: Number = None
    """Its bound, taken so that those of all candidates hold at once: choosing the highest is part of the level."""
    logging: Annotated[Logging, Maybe] = Logging()
    policies: Annotated[dict[str, PolicyResult], Maybe] = {}
    comparisons: Annotated[list[Comparison], MaybeList] = []
    segments: Annotated[list[Segment], MaybeList] = []
    """The candidates by segment, where a breakdown was asked for."""
    outcomes: Annotated[list[Outcome], MaybeList] = []
    """Every candidate under every reward and guardrail, where there are several."""
    decisions: Annotated[list[Decision], MaybeList] = []
    reward: str = ""
    """The name of the reward that values are means of."""
    reward_range: Annotated[list[Number], MaybeList] = []
    log: Annotated[dict[str, Any], Maybe] = {}
    frames: Literal["polars", "pandas"] = "polars"
    """What `to_frame` makes: the kind of frame the log was read from."""

    def __repr__(self) -> str:
        """The policies with their values, the best one first."""
        order = sorted(self.policies.items(), key=lambda item: item[0] != self.best)
        shown = ", ".join(f"{name} {one.value:.4g}" for name, one in order[:5])
        more = f" and {len(order) - 5} more" if len(order) > 5 else ""
        return f"Evaluation({shown}{more}; logging {self.logging.value:.4g}; best {self.best!r})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """For notebooks: verdict, decisions and the table of values."""
        from offpolicy.results.tables import evaluation_html

        return evaluation_html(self)

    def to_frame(self, table: str = "values", kind: str | None = None) -> Any:
        """A table as a frame of the kind the log was read from, or a "polars" or "pandas" one.

        "values" has a row for every policy, under every reward and in every segment; the others are "comparisons",
        "estimates" and "checks".
        """
        from offpolicy.results.tables import table_of

        return table_of(self, table).to_frame(kind or self.frames)

    def plot(self, what: str = "values", policy: str | None = None) -> Any:
        """A chart of the report, as notebooks show it (`.save("chart.svg")` writes it).

        "values" of all policies, "sensitivity" and "balance" of one (the best unless named), or "calibration" of β̂.
        """
        from offpolicy.results.figures import plotted

        return plotted(self, what, policy or self.best)

    def explain(self, policy: str | None = None) -> Any:
        """The finding on the best candidate, or on a named policy, in plain sentences; `print` shows them."""
        from offpolicy.results.explain import explain

        return explain(self, policy)

    def __getitem__(self, name: str) -> PolicyResult:
        """The result of one policy."""
        return self.policies[name]

    @property
    def candidates(self) -> dict[str, PolicyResult]:
        """The policies that are not mere references."""
        return {name: policy for name, policy in self.policies.items() if not policy.reference}

    def breakdowns(self) -> dict[str, list[Segment]]:
        """The segments by column, and by reward where there are several; the keys are titles."""
        several = len({one.reward for one in self.segments}) > 1
        parts: dict[str, list[Segment]] = {}
        for one in self.segments:
            parts.setdefault(f"{one.column}, {one.reward}" if several else one.column, []).append(one)
        return parts

    def against(self, reference: str = LOGGING) -> dict[str, Comparison]:
        """Each candidate's comparison with a reference."""
        return {one.candidate: one for one in self.comparisons if one.reference == reference}
