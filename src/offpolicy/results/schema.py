"""The one schema of results: `evaluate` returns it, results.json stores it, the report reads it. Needs no torch.

Every value, interval and difference is on the user's own scale of rewards.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

FORMAT: Literal["offpolicy-results"] = "offpolicy-results"
VERSION: Literal[2] = 2
LOGGING = "logging"
"""What comparisons call the policy that made the log."""
USER_MODELS: Mapping[str, str] = {
    "any": "nothing about users: any action of a slate may change the reward of any other",
    "cascade": "users go from top to bottom: what stands below changes nothing above",
    "independent": "users look at each position by itself: no action changes the reward of another",
    "additive": "the total reward of a slate is a sum of effects of its positions",
}
"""What an estimator of slates may assume of users."""
LARGEST = 1e100
"""Numbers beyond this count as unknown, so that no arithmetic of a chart overflows."""

Answer = Literal["answerable", "answerable on part", "run an experiment"]
Finding = Literal["better", "worse", "unclear", "kept", "broken", "refused"]
"""Of a reward: better, worse or unclear; of a guardrail: kept, broken or unclear."""


def _or_unknown(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < LARGEST else None


def _finite(value: float) -> float:
    if not (math.isfinite(value) and abs(value) < LARGEST):
        raise ValueError("the number is not finite")
    return value


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _or_none_listed(value: Any) -> Any:
    return [] if value is None else value


Finite = Annotated[float, AfterValidator(_finite)]
Number = Annotated[float | None, AfterValidator(_or_unknown)]
"""A number that may be unknown; infinity and NaN are."""
Maybe = BeforeValidator(_or_empty)
MaybeList = BeforeValidator(_or_none_listed)


class Part(BaseModel):
    """A part of the results: frozen; fields that this version does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return self.model_dump()


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


class Run(Part):
    """How the run was made."""

    command: str = ""
    config: Annotated[dict[str, Any], Maybe] = {}
    notes: Annotated[list[str], MaybeList] = []
    """What was inferred or decided on the way."""
    seed: int | None = None
    versions: Annotated[dict[str, Any], Maybe] = {}
    started: str = ""
    seconds: Number = None
    propensity_fits: int | None = None
    """Logging policies that were fitted; those loaded from a run folder do not count."""


class Weights(Part):
    """Counts of weights between edges in log10, before and after reweighting."""

    edges: Annotated[list[Number], MaybeList] = []
    before: Annotated[list[Number], MaybeList] = []
    after: Annotated[list[Number], MaybeList] = []


class Frequency(Part):
    """β̂ and U of the rows whose actions were logged about equally often."""

    log_frequency: Finite
    """Middle of the bucket on the scale ln n, n the times its actions were logged."""
    logging_prob: Finite
    """Mean β̂ of its rows."""
    uncertainty: Finite
    """Mean U of its rows."""
    rows: int = 0
    actions: int = 0


class PropensityModel(Part):
    """The best policy's value under one model of the logging policy."""

    model: str
    log_likelihood: Number = None
    """Held-out; the higher, the more the model's answer deserves trust."""
    calibration_error: Number = None
    mean_weight: Number = None
    value: Number = None
    low: Number = None
    high: Number = None


class RiskyAction(Part):
    """An action that carries much weight although β̂ is unsure of it."""

    action: Any
    count: int = 0
    logging_prob: Number = None
    uncertainty: Number = None
    weight_share: Number = None


class Candidate(Part):
    """One learned policy among which a choice was made, on the user's scale of rewards."""

    method: str
    value: Number = None
    low: Number = None
    """Lower end of an interval that holds for all candidates at once, as all other ends here."""
    high: Number = None
    gain: Number = None
    """Estimated difference to the logging policy."""
    gain_low: Number = None
    gain_high: Number = None
    seconds: Number = None
    """That learning it took."""
    chosen: bool = False


class Choice(Part):
    """Which of several learned policies was chosen, and whether it is better than logging."""

    method: str
    recommendation: Literal["policy", "experiment", "logging"]
    """Ship the policy; probably better, but test it; stay with logging."""
    sentence: str
    candidates: Annotated[list[Candidate], MaybeList] = []


class Results(Part):
    """The whole file."""

    format: Literal["offpolicy-results"] = FORMAT
    version: Literal[2] = VERSION
    kind: Literal["learn", "evaluate"]
    run: Annotated[Run, Maybe] = Run()
    log: Annotated[dict[str, Any], Maybe] = {}
    evaluation: Evaluation | None = None
    weights: Annotated[dict[str, Weights], Maybe] = {}
    frequency: Annotated[list[Frequency], MaybeList] = []
    propensity_models: Annotated[list[PropensityModel], MaybeList] = []
    learning: Annotated[dict[str, list[dict[str, Any]]], Maybe] = {}
    choice: Choice | None = None
    """Where policies were learned: which one was chosen."""
    risky_actions: Annotated[list[RiskyAction], MaybeList] = []

    def __repr__(self) -> str:
        """The kind of run and its evaluation."""
        return f"Results({self.kind}: {self.evaluation!r})"

    __str__ = __repr__
