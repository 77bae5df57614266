"""What the report says of one policy, as plain values for the page."""

from typing import Any

from offpolicy.drawing import UNKNOWN, Strip, fixed, label, percent, plain
from offpolicy.report.cards import fact
from offpolicy.results import (
    BADGE,
    TONE,
    USER_MODELS,
    Chart,
    Estimate,
    Evaluation,
    Interval,
    PolicyResult,
    TwoPartInterval,
    Weights,
    balance_chart,
    flip_sentence,
    sensitivity_chart,
    value_places,
    weights_chart,
)

SHARES = {
    "largest weight share",
    "contexts shown one action",
    "certain logging",
    "target mass without support",
    "interval width",
}
"""Checks whose value is a share and reads best in percent."""
NAMES = {
    "guaranteed": "guaranteed: with a proof",
    "worst_case": "worst case over β̂'s band",
    "refit_bootstrap": "bootstrap that refits β̂",
}


def ends_text(low: float | None, high: float | None, places: int) -> str:
    """The ends of an interval."""
    return UNKNOWN if low is None or high is None else f"{fixed(low, places)} to {fixed(high, places)}"


def interval_tip(name: str, value: float | None, ends: Interval | None, places: int) -> str:
    """What is shown of an interval where the pointer rests."""
    lines = [name, f"value {fixed(value, places)}"]
    if ends is None:
        return "\n".join(lines)
    lines.append(f"interval {ends_text(ends.low, ends.high, places)}")
    if isinstance(ends, TwoPartInterval):
        lines.append(f"± {fixed(ends.sampling, places)} from sampling")
        lines.append(f"± {fixed(ends.propensity, places)} from estimated propensities")
    return "\n".join([*lines, label(ends.note, 200)] if ends.note else lines)


def policy_part(
    place: str, name: str, policy: PolicyResult, evaluation: Evaluation, weights: Weights | None
) -> dict[str, Any]:
    """One policy: verdict, checks, charts and estimators."""
    shown = label(name, 60)
    places = value_places(evaluation)
    verdict = policy.preflight.verdict
    charts: list[Chart | None] = [
        weights_chart(weights, shown) if weights else None,
        sensitivity_chart(policy.sensitivity, evaluation.logging.value, shown),
        balance_chart(policy.preflight.balance, shown),
    ]
    said = ("Weights before and after reweighting", "The Γ-sensitivity curve", "Covariate balance")
    checks = [
        {
            "name": check.name,
            "value": percent(check.value) if check.name in SHARES else plain(check.value),
            "passed": check.passed,
            "meaning": check.meaning,
        }
        for check in policy.preflight.checks
    ]
    return {
        "id": place,
        "name": shown,
        "badge": BADGE[verdict.answer],
        "tone": TONE[verdict.answer],
        "advice": label(verdict.advice, 500),
        "flip": flip_sentence(policy, evaluation.against().get(name)),
        "said": [label(one, 500) for one in (policy.guarantee, policy.sensitivity.sentence) if one],
        "checks": [
            {"failed": failed, "rows": rows}
            for failed in (True, False)
            if (rows := [c for c in checks if c["passed"] != failed])
        ],
        "n_checks": len(checks),
        "charts": [chart for chart in charts if chart],
        "missing": [name for name, chart in zip(said, charts, strict=True) if chart is None],
        "estimators": _estimators(policy, evaluation.logging.value, places),
        "left_out": {label(k): label(v, 300) for k, v in policy.left_out.items()},
        "detectable": fixed(policy.detectable_effect, places),
    }


def assumption(users: str) -> str:
    """For slates, what a number takes for granted of users, in words; empty for single actions."""
    return f"assumes {label(USER_MODELS.get(users, users), 200)}" if users else ""


def _estimators(policy: PolicyResult, logging_value: float | None, places: int) -> dict[str, Any] | None:
    varied = [
        Estimate(name=NAMES.get(name, name), value=policy.value, intervals={name: ends}, note=ends.note)
        for name, ends in policy.propensity_intervals.items()
    ]
    known = [*policy.estimates, *varied]
    if not known:
        return None
    shown = [next(iter(e.intervals.values()), None) for e in known]
    values = [e.value for e in known] + [v for ends in shown if ends for v in (ends.low, ends.high)]
    strip = Strip.over(values, logging_value, 300)
    rows = []
    for estimate, ends in zip(known, shown, strict=True):
        tip = interval_tip(label(estimate.name), estimate.value, ends, places)
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        rows.append(
            {
                "name": label(estimate.name),
                "strip": strip.draw(tip, estimate.value, (low, high)),
                "value": fixed(estimate.value, places),
                "ends": ends_text(low, high, places),
                "mean_weight": fixed(estimate.mean_weight, 2),
                "note": label(estimate.note, 300),
                "assumes": assumption(estimate.assumes),
            }
        )
    settings = [
        (label(one.name), label(", ".join(f"{label(k, 30)} {fact(v)}" for k, v in one.hyper.items()), 200))
        for one in known
        if one.hyper
    ]
    return {"rows": rows, "scale": strip.scale(), "settings": settings}
