"""Several rewards and guardrails: every candidate under each, and a decision that counts how often chance may strike.

A candidate is better if one of R rewards improves, so that each of C·R intervals is taken at 1 − α/(C·R). It must pass
*all* guardrails, and a test that must be passed by all is no easier for being many: theirs are taken at 1 − α/C.
"""

from collections.abc import Mapping, Sequence

from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.comparison import difference_width, holm
from offpolicy.evaluation.guardrails import Guardrail
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.propensity import Repeats
from offpolicy.results import Decision, Finding, Outcome


def outcomes_of(
    under: Mapping[str, Mapping[str, RowStatistics]],
    guardrails: Mapping[str, Guardrail],
    level: float = 0.95,
    repeats: Repeats | None = None,
) -> list[Outcome]:
    """Every policy's rows under every reward, as outcomes on the user's scale of that reward."""
    rewards, policies = [name for name in under if name not in guardrails], len(next(iter(under.values())))
    joint = {name: 1 - (1 - level) / (policies * (1 if name in guardrails else len(rewards))) for name in under}
    found, p_values = [], []
    for reward, rows_of in under.items():
        for policy, rows in rows_of.items():
            one, p_value = _outcome(reward, policy, rows, guardrails.get(reward), joint[reward], repeats)
            found.append(one)
            if not one.guardrail:
                p_values.append(1.0 if one.refused else p_value)
    adjusted = iter(holm(p_values))
    corrected = [None if one.guardrail else next(adjusted) for one in found]
    return [
        one if one.refused else one.model_copy(update={"adjusted_p_value": p})
        for one, p in zip(found, corrected, strict=True)
    ]


def _outcome(
    reward: str, policy: str, rows: RowStatistics, guardrail: Guardrail | None, level: float, repeats: Repeats | None
) -> tuple[Outcome, float]:
    scale = Scale(*rows.log.reward_range)
    estimate, own = auto_estimate(rows, level), logging_estimate(rows, level)
    width, difference = difference_width(estimate, own), estimate.value - own.value
    half = width.half(level)
    low, high = scale.width(max(difference - half, -1.0)), scale.width(min(difference + half, 1.0))
    logging = scale.value(own.value)
    refused = not preflight(rows, estimate, repeats).verdict.answerable
    limit = None if guardrail is None else guardrail.margin(logging) * (1 if guardrail.lower_is_better else -1)
    finding: Finding = "refused" if refused else _finding(low, high, limit, guardrail)
    outcome = Outcome(
        reward=reward,
        guardrail=guardrail is not None,
        policy=policy,
        value=scale.value(estimate.value),
        low=scale.value(estimate.interval.low),
        high=scale.value(estimate.interval.high),
        logging=logging,
        difference=scale.width(difference),
        difference_low=low,
        difference_high=high,
        relative=scale.width(difference) / abs(logging) if logging else None,
        limit=limit,
        limit_text="" if guardrail is None else guardrail.text,
        lower_is_better=guardrail is not None and guardrail.lower_is_better,
        finding=finding,
        refused=refused,
    )
    return outcome, width.p_value(difference)


def _finding(low: float, high: float, limit: float | None, guardrail: Guardrail | None) -> Finding:
    if guardrail is None or limit is None:
        return "better" if low > 0 else "worse" if high < 0 else "unclear"
    if guardrail.lower_is_better:
        return "kept" if high < limit else "broken" if low > limit else "unclear"
    return "kept" if low > limit else "broken" if high < limit else "unclear"


def decided(outcomes: Sequence[Outcome]) -> list[Decision]:
    """What all rewards and guardrails say about each candidate."""
    policies = dict.fromkeys(one.policy for one in outcomes)
    return [_decision(policy, [one for one in outcomes if one.policy == policy]) for policy in policies]


def _decision(policy: str, outcomes: Sequence[Outcome]) -> Decision:
    def of(*findings: Finding) -> list[Outcome]:
        return [one for one in outcomes if one.finding in findings]

    better, worse, kept, broken = of("better"), of("worse"), of("kept"), of("broken")
    unclear = [one for one in of("unclear") if not one.guardrail]
    unproved = [one for one in of("unclear") if one.guardrail]
    parts = [
        f"better on {_names(better)}" if better else "",
        f"worse on {_names(worse)}" if worse else "",
        f"no clear difference on {_names(unclear)}" if unclear else "",
        f"not worse on {_limits(kept)}" if kept else "",
        f"worse on {_limits(broken)}" if broken else "",
        f"may be worse on {_limits(unproved)}" if unproved else "",
        f"the log cannot answer for {_names(of('refused'))}" if of("refused") else "",
    ]
    holds = bool(better) and not (worse or broken or unproved or of("refused"))
    return Decision(policy=policy, holds=holds, sentence=f"{policy}: {'; '.join(part for part in parts if part)}.")


def _names(outcomes: Sequence[Outcome]) -> str:
    return _listed([one.reward for one in outcomes])


def _limits(outcomes: Sequence[Outcome]) -> str:
    return _listed([f"{one.reward} beyond {one.limit_text}" for one in outcomes])


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
