"""The first screen in words: what the log says, how sure that is, and what would change it."""

import math
from dataclasses import dataclass

from offpolicy.drawing import chance, decimals, factor, fixed, label, percent, plain
from offpolicy.results import Comparison, Evaluation, Interval, PolicyResult

TONE = {"answerable": "good", "answerable on part": "fair", "run an experiment": "bad"}
BADGE = {
    "answerable": "Answerable",
    "answerable on part": "Answerable on part",
    "run an experiment": "Run an experiment",
}


@dataclass(frozen=True)
class Headline:
    """The top of the page."""

    tone: str
    badge: str
    title: str
    lead: str
    advice: str
    reasons: tuple[str, ...]
    flip: str
    decision: str = ""
    """What all rewards and guardrails say together."""


def best_policy(evaluation: Evaluation) -> str | None:
    """The candidate the page leads with; never a reference."""
    if evaluation.best in evaluation.candidates:
        return evaluation.best
    return next(iter(evaluation.candidates), None)


def value_places(evaluation: Evaluation) -> int:
    """Decimal places for values: two digits of the narrowest interval's half-width."""
    ends: list[Interval | None] = [p.interval for p in evaluation.policies.values()]
    halves = [(e.high - e.low) / 2 for e in (*ends, evaluation.logging.interval) if e is not None and e.high > e.low]
    return decimals(min(halves, default=None))


def headline(evaluation: Evaluation) -> Headline | None:
    """The verdict on the best candidate; nothing where no policy was evaluated."""
    name = best_policy(evaluation)
    if name is None:
        return None
    policy = evaluation.policies[name]
    verdict = policy.preflight.verdict
    comparison = evaluation.against().get(name)
    return Headline(
        tone=TONE[verdict.answer],
        badge=BADGE[verdict.answer],
        title=_title(label(name, 60), verdict.answer, comparison) + _but(evaluation, name, comparison),
        lead=_lead(label(name, 60), policy, comparison, evaluation),
        advice=label(verdict.advice, 500) + _also(evaluation, name),
        reasons=tuple(label(reason, 300) for reason in verdict.reasons),
        flip=flip_sentence(policy, comparison),
        decision=next((unbroken(label(one.sentence, 500)) for one in evaluation.decisions if one.policy == name), ""),
    )


def _but(evaluation: Evaluation, name: str, comparison: Comparison | None) -> str:
    """That other rewards or guardrails do not agree with a better policy."""
    decision = next((one for one in evaluation.decisions if one.policy == name), None)
    if decision is None or decision.holds or comparison is None or (comparison.joint_low or comparison.low) <= 0:
        return ""
    return f" on {label(evaluation.reward, 40)}, but not every reward and guardrail agrees"


def _also(evaluation: Evaluation, name: str) -> str:
    """That the advice is about the first reward only."""
    decision = next((one for one in evaluation.decisions if one.policy == name), None)
    first = label(evaluation.reward, 40)
    return "" if decision is None or decision.holds else f" That is for {first}: decide on all rewards together."


def unbroken(text: str) -> str:
    """A sentence whose percentages stay on one line."""
    return text.replace(" %", "\u00a0%")


def _title(name: str, answer: str, comparison: Comparison | None) -> str:
    if answer == "run an experiment":
        return f"This log cannot tell whether “{name}” is better: run an experiment"
    part = " where the log can tell" if answer == "answerable on part" else ""
    if comparison is None:
        return f"The log can answer{' in part' if part else ''}: “{name}” has the highest lower confidence bound"
    low, high = (
        alone if joint is None else joint
        for alone, joint in ((comparison.low, comparison.joint_low), (comparison.high, comparison.joint_high))
    )
    if low > 0:
        return f"“{name}” does better than the logging policy{part}"
    if high < 0:
        return f"No candidate beats the logging policy{part}: “{name}”, the best of them, does worse"
    return f"No clear difference{part} between “{name}” and the logging policy"


def _lead(name: str, policy: PolicyResult, comparison: Comparison | None, evaluation: Evaluation) -> str:
    places = value_places(evaluation)
    ends = policy.interval
    text = f"Estimated value {fixed(policy.value, places)} per decision"
    text += f" ({percent(evaluation.level)} interval {fixed(ends.low, places)} to {fixed(ends.high, places)})"
    text += f", against {fixed(evaluation.logging.value, places)} for the logging policy, which made this log"
    if comparison is not None:
        relative = "" if comparison.relative is None else f" ({percent(comparison.relative, sign=True)})"
        text += f": a difference of {fixed(comparison.difference, places, sign=True)}{relative}"
        if comparison.probability_of_improvement is not None:
            text += f", with a {chance(comparison.probability_of_improvement)} chance that “{name}” is the better one"
    return text + "." + _rival(policy, evaluation, places) + _selection(evaluation, places)


def _selection(evaluation: Evaluation, places: int) -> str:
    """That the policy was chosen among several, and what that does to its bound."""
    if evaluation.best_bound is None or len(evaluation.candidates) < 2:
        return ""
    return (
        f" It was chosen among {len(evaluation.candidates)} for the highest lower confidence bound, which is "
        f"{fixed(evaluation.best_bound, places)} once choosing among them is counted."
    )


def _rival(policy: PolicyResult, evaluation: Evaluation, places: int) -> str:
    """Why a policy with a higher estimate is not the one the page leads with."""
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
