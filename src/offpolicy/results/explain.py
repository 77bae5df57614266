"""What was found, in plain sentences: the answer, what to do, how sure that is, and what would change it.

The report's first screen and `offpolicy explain` both read these; nothing is worked out here that the results lack.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from offpolicy.drawing import chance, decimals, factor, fixed, label, percent, plain
from offpolicy.errors import ParameterError
from offpolicy.results.evaluation import Comparison, Decision, Evaluation, Segment
from offpolicy.results.policy import Interval, PolicyResult

TONE = {"answerable": "good", "answerable on part": "fair", "run an experiment": "bad"}
BADGE = {
    "answerable": "Answerable",
    "answerable on part": "Answerable on part",
    "run an experiment": "Run an experiment",
}
DECISIONS = 1_000
"""Decisions over which totals are given, because shares of one reward are hard to picture."""
RECORDED = "recorded"
"""The model of the logging policy where the log holds its probabilities."""
MOST_SEGMENTS = 5
"""Segments that are named in a sentence."""


@dataclass(frozen=True)
class Explanation:
    """The finding on one candidate, for somebody who has to decide."""

    policy: str
    tone: str
    badge: str
    title: str
    """The answer in one line."""
    lead: str
    """The same in numbers."""
    parts: dict[str, tuple[str, ...]]
    """Sentences under what they are about: what to do, how sure it is, what would flip it, ..."""

    def __str__(self) -> str:
        """Title, numbers and parts as plain text."""
        parts = "\n\n".join("\n".join([about, *(f"  {one}" for one in said)]) for about, said in self.parts.items())
        return f"{self.title}\n\n{self.lead}\n\n{parts}\n"

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def explain(evaluation: Evaluation, policy: str | None = None) -> Explanation | None:
    """The finding on the best candidate, or on a policy that is named; None where no policy was evaluated."""
    name = best_policy(evaluation) if policy is None else policy
    if name is None:
        return None
    if name not in evaluation.policies:
        raise ParameterError(f"There is no policy {name!r}. Known: {', '.join(evaluation.policies)}.")
    one, compared = evaluation.policies[name], evaluation.against().get(name)
    answer = one.preflight.verdict.answer
    decision = next((each for each in evaluation.decisions if each.policy == name), None)
    parts = {
        "What to do": _advice(name, one, compared, evaluation, decision),
        "How sure it is": _sure(one, evaluation),
        "All rewards together": (unbroken(label(decision.sentence, 500)),) if decision else (),
        "Where it differs": _segments(name, evaluation),
        "What would flip it": _said(flip_sentence(one, compared), _hidden(one, evaluation), one.guarantee),
        "What speaks against it": _said(*(label(reason, 300) for reason in one.preflight.verdict.reasons)),
    }
    best = name == best_policy(evaluation)
    return Explanation(
        policy=label(name, 60),
        tone=TONE[answer],
        badge=BADGE[answer],
        title=_title(label(name, 60), answer, compared, best) + _but(evaluation, decision, compared),
        lead=_lead(label(name, 60), one, compared, evaluation),
        parts={about: said for about, said in parts.items() if said},
    )


def best_policy(evaluation: Evaluation) -> str | None:
    """The candidate to lead with; never a reference."""
    if evaluation.best in evaluation.candidates:
        return evaluation.best
    return next(iter(evaluation.candidates), None)


def _visible(shown: str) -> bool:
    """Whether a number still differs from 0 as it is shown."""
    return any(digit in shown for digit in "123456789")


def _said(*sentences: str) -> tuple[str, ...]:
    return tuple(one for one in sentences if one)


def _advice(
    name: str, one: PolicyResult, compared: Comparison | None, evaluation: Evaluation, decision: Decision | None
) -> tuple[str, ...]:
    """The step to take, and the verdict's own advice."""
    shown, verdict = label(name, 60), one.preflight.verdict
    low, high = (None, None) if compared is None else _ends(compared)
    step = ""
    if verdict.answer == "run an experiment":
        step = "Do not decide from this log."
    elif high is not None and high < 0:
        step = f"Keep what runs today: “{shown}” would do worse."
    elif low is not None and low <= 0:
        step = f"Keep what runs today, or test “{shown}” on a share of the traffic{_detectable(one, evaluation)}."
    elif decision is not None and not decision.holds:
        step = f"Do not ship “{shown}” on {label(evaluation.reward, 40)} alone: decide on all rewards together."
    elif low is not None:
        where = " where the log can tell" if verdict.answer == "answerable on part" else ""
        step = f"The log supports shipping “{shown}”{where}."
    return _said(step, label(verdict.advice, 500))


def _hidden(one: PolicyResult, evaluation: Evaluation) -> str:
    """What hidden information would do: in numbers where that was measured by more than the one factor."""
    found = one.sensitivity
    if found.columns or found.sharp_low:
        return found.sentence
    if evaluation.logging.model == RECORDED:
        return ""
    return "All of it assumes that the context columns hold what the logging policy looked at."


def _detectable(one: PolicyResult, evaluation: Evaluation) -> str:
    smallest = "" if one.detectable_effect is None else fixed(one.detectable_effect, value_places(evaluation))
    if not _visible(smallest):
        return ""
    return f" (from about {smallest} on, this log would have shown a difference)"


def _sure(one: PolicyResult, evaluation: Evaluation) -> tuple[str, ...]:
    """The two causes of the interval's width, and what would narrow it."""
    places, ends, rows = value_places(evaluation), one.interval, evaluation.log.get("rows")
    few = f"from having only {rows:,} rows" if isinstance(rows, int) else "from having only so many rows"
    width = f"The estimate may be off by ± {fixed(ends.sampling, places)} {few}"
    if evaluation.logging.model == RECORDED:
        return (f"{width}; the propensities are those that the log recorded.",)
    help_most = "more rows" if ends.sampling >= ends.propensity else "recording the probabilities"
    return (
        f"{width} and by ± {fixed(ends.propensity, places)} because nobody recorded how likely each action was: "
        f"{help_most} would help most.",
    )


def _segments(name: str, evaluation: Evaluation) -> tuple[str, ...]:
    """Segments in which the policy is clearly better or worse by the first reward, all segments counted."""
    first = ("", evaluation.reward)
    own = [one for one in evaluation.segments if one.policy == name and one.reward in first and not one.refused]
    worse = [one for one in own if one.difference_high < 0]
    better = [one for one in own if one.difference_low > 0]
    return _said(_named("Clearly worse", worse), _named("Clearly better", better))


def _named(how: str, segments: Iterable[Segment]) -> str:
    names, column = [], None
    for one in segments:  # a column is named once
        names.append(
            label(one.segment, 40) if one.column == column else f"{label(one.column, 40)} {label(one.segment, 40)}"
        )
        column = one.column
    more = f" and {len(names) - MOST_SEGMENTS} more" if len(names) > MOST_SEGMENTS else ""
    return f"{how} where {', '.join(names[:MOST_SEGMENTS])}{more}." if names else ""


def _ends(compared: Comparison) -> tuple[float, float]:
    """The interval of a difference to speak of the best of several by."""
    low = compared.low if compared.joint_low is None else compared.joint_low
    return low, compared.high if compared.joint_high is None else compared.joint_high


def value_places(evaluation: Evaluation) -> int:
    """Decimal places for values: two digits of the narrowest interval's half-width."""
    ends: list[Interval | None] = [p.interval for p in evaluation.policies.values()]
    halves = [(e.high - e.low) / 2 for e in (*ends, evaluation.logging.interval) if e is not None and e.high > e.low]
    return decimals(min(halves, default=None))


def _but(evaluation: Evaluation, decision: Decision | None, compared: Comparison | None) -> str:
    """That other rewards or guardrails do not agree with a better policy."""
    if decision is None or decision.holds or compared is None or _ends(compared)[0] <= 0:
        return ""
    return f" on {label(evaluation.reward, 40)}, but not every reward and guardrail agrees"


def unbroken(text: str) -> str:
    """A sentence whose percentages stay on one line."""
    return text.replace(" %", "\u00a0%")


def _title(name: str, answer: str, compared: Comparison | None, best: bool) -> str:
    if answer == "run an experiment":
        return f"This log cannot tell whether “{name}” is better: run an experiment"
    part = " where the log can tell" if answer == "answerable on part" else ""
    if compared is None:
        of_all = f": “{name}” has the highest lower confidence bound" if best else f" for “{name}”"
        return f"The log can answer{' in part' if part else ''}{of_all}"
    low, high = _ends(compared)
    if low > 0:
        return f"“{name}” does better than the logging policy{part}"
    if high < 0:
        worse = f"“{name}” does worse than the logging policy{part}"
        return f"No candidate beats the logging policy{part}: “{name}”, the best of them, does worse" if best else worse
    return f"No clear difference{part} between “{name}” and the logging policy"


def _lead(name: str, policy: PolicyResult, compared: Comparison | None, evaluation: Evaluation) -> str:
    places, ends, today = value_places(evaluation), policy.interval, evaluation.logging.value
    reward = label(evaluation.reward, 40) or "reward"
    text = f"“{name}” would earn a mean {reward} of {fixed(policy.value, places)} per decision"
    text += f" ({percent(evaluation.level)} interval {fixed(ends.low, places)} to {fixed(ends.high, places)})"
    text += f", against {fixed(today, places)} for the logging policy, which made this log"
    if compared is not None:
        shown = fixed(compared.difference, places, sign=True)
        seen = compared.relative is not None and _visible(shown)
        text += f": a difference of {shown}" + (f" ({percent(compared.relative, sign=True)})" if seen else "")
        if compared.probability_of_improvement is not None:
            text += f", with a {chance(compared.probability_of_improvement)} chance that “{name}” is the better one"
    totals = (plain(DECISIONS * policy.value), plain(DECISIONS * today))
    text += f". Over {DECISIONS:,} decisions that is a total of about {totals[0]} instead of {totals[1]}."
    if policy is not evaluation.policies.get(best_policy(evaluation) or ""):
        return text
    return text + _rival(policy, evaluation, places) + _selection(evaluation, places)


def _selection(evaluation: Evaluation, places: int) -> str:
    """That the policy was chosen among several, and what that does to its bound."""
    if evaluation.best_bound is None or len(evaluation.candidates) < 2:
        return ""
    return (
        f" It was chosen among {len(evaluation.candidates)} for the highest lower confidence bound, which is "
        f"{fixed(evaluation.best_bound, places)} once choosing among them is counted."
    )


def _rival(policy: PolicyResult, evaluation: Evaluation, places: int) -> str:
    """Why a policy with a higher estimate is not the one to lead with."""
    others = [(one.value, name, one.interval.low) for name, one in evaluation.candidates.items() if one is not policy]
    higher = max((one for one in others if one[0] > policy.value), default=None)
    if higher is None:
        return ""
    return (
        f" “{label(higher[1], 60)}” has a higher estimate ({fixed(higher[0], places)}), but a lower confidence bound "
        f"of only {fixed(higher[2], places)}."
    )


def by_certainty(evaluation: Evaluation) -> list[tuple[str, PolicyResult]]:
    """The candidates, the best first, then by their lower confidence bounds; references last."""
    best = best_policy(evaluation)
    return sorted(
        evaluation.policies.items(),
        key=lambda item: (item[0] != best, item[1].reference, -item[1].interval.low),
    )


def flip_sentence(policy: PolicyResult, comparison: Comparison | None) -> str:
    """What would change the conclusion, in one sentence."""
    gamma = policy.sensitivity.flips_at
    largest = max((g for g in policy.sensitivity.gammas if g is not None), default=None)
    if gamma is None or not math.isfinite(gamma):
        if largest is None:
            return ""
        return (
            f"No error of the estimated propensities up to a factor of {plain(largest)} would change this conclusion."
        )
    if gamma <= 1:
        return "There is no conclusion to flip: the estimate and the logging policy are too close."
    better = comparison is None or comparison.difference > 0
    ahead = "lead over" if better else "gap to"
    return (
        f"The {ahead} the logging policy would vanish if the estimated propensities were wrong by a factor of "
        f"{factor(gamma)[:-2]} in every row, each in the worst direction."
    )
