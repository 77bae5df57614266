"""The sections of the report as plain values for the page: what to write, what to draw, what is missing."""

from collections.abc import Sequence
from typing import Any

from offpolicy.drawing import UNKNOWN, Strip, chance, decimals, factor, fixed, label, moment, p_value, percent, plain
from offpolicy.report.cards import columns, facts, run_card
from offpolicy.report.policy import assumption, ends_text, interval_tip, policy_part
from offpolicy.results import (
    BADGE,
    TONE,
    Chart,
    Evaluation,
    Outcome,
    PolicyResult,
    Results,
    Segment,
    Weights,
    by_certainty,
    calibration_chart,
    explain,
    frequency_charts,
    learning_charts,
    unbroken,
    value_places,
)

MOST_POLICIES = 12
MOST_ACTIONS = 20
MOST_SEGMENTS = 100
FINDINGS = {
    "better": "better",
    "worse": "worse",
    "unclear": "not clear",
    "kept": "within its limit",
    "broken": "beyond its limit",
    "refused": "cannot be told",
}
FINDING_TONE = {"better": "good", "kept": "good", "unclear": "fair", "refused": "fair", "worse": "bad", "broken": "bad"}


def sections(results: Results) -> dict[str, Any]:
    """Everything the page shows."""
    evaluation = results.evaluation
    return {
        "kind": results.kind,
        "source": label(results.log.get("source") or ""),
        "started": moment(results.run.started) if results.run.started else "",
        "size": _size(results.log),
        "headline": explain(evaluation) if evaluation else None,
        "overview": _overview(evaluation) if evaluation and evaluation.policies else None,
        "policies": _policies(evaluation, results.weights) if evaluation else [],
        "unshown": max(0, len(evaluation.policies) - MOST_POLICIES) if evaluation else 0,
        "head_to_head": _head_to_head(evaluation) if evaluation else [],
        "outcomes": _outcomes(evaluation) if evaluation else None,
        "segments": _segments(evaluation) if evaluation else [],
        "logging": _logging(evaluation) if evaluation else [],
        "calibration": _calibration(evaluation) if evaluation else None,
        "frequency": frequency_charts(results.frequency),
        "propensity_models": _propensity_models(results),
        "risky": _risky(results),
        "learning": learning_charts(results.learning),
        "data": facts({k: v for k, v in results.log.items() if k not in ("source", "columns")}),
        "columns": columns(results.log),
        "run": run_card(results),
    }


def _size(log: dict[str, Any]) -> str:
    said = [f"{plain(log[key])} {key}" for key in ("rows", "actions") if isinstance(log.get(key), int | float)]
    return " · ".join(said)


def _overview(evaluation: Evaluation) -> dict[str, Any]:
    places = value_places(evaluation)
    logging = evaluation.logging
    compared = evaluation.against()
    ordered = by_certainty(evaluation)
    values = [v for p in evaluation.policies.values() for v in (p.value, p.interval.low, p.interval.high)]
    own = () if logging.interval is None else (logging.interval.low, logging.interval.high)
    strip = Strip.over([*values, *own], logging.value)
    rows = [_overview_row(name, policy, strip, places) for name, policy in ordered]
    for row, (name, _) in zip(rows, ordered, strict=True):
        comparison = compared.get(name)
        row["difference"] = fixed(comparison.difference, places, sign=True) if comparison else UNKNOWN
        row["relative"] = (
            percent(comparison.relative, sign=True) if comparison and comparison.relative is not None else ""
        )
        row["chance"] = chance(comparison.probability_of_improvement) if comparison else UNKNOWN
    tip = interval_tip("logging policy", logging.value, logging.interval, places)
    ends = (own[0], own[1]) if own else (None, None)
    today = {
        "strip": strip.draw(tip, logging.value, ends, kind="grey"),
        "value": fixed(logging.value, places),
        "ends": ends_text(ends[0], ends[1], places),
    }
    return {
        "rows": rows,
        "today": today,
        "scale": strip.scale(),
        "level": percent(evaluation.level),
        "reward": label(evaluation.reward, 60) or "reward",
        "assumes": assumption(next((one.assumes for _, one in ordered if one.assumes), "")),
    }


def _overview_row(name: str, policy: PolicyResult, strip: Strip, places: int) -> dict[str, Any]:
    answer = policy.preflight.verdict.answer
    ends = policy.interval
    gammas = [g for g in policy.sensitivity.gammas if g is not None]
    tip = interval_tip(label(name, 60), policy.value, ends, places)
    return {
        "name": label(name, 60),
        "badge": "Reference" if policy.reference else BADGE[answer],
        "tone": "fair" if policy.reference else TONE[answer],
        "strip": strip.draw(tip, policy.value, (ends.low, ends.high), ends.sampling),
        "value": fixed(policy.value, places),
        "ends": ends_text(ends.low, ends.high, places),
        "flip": factor(policy.sensitivity.flips_at, max(gammas)) if gammas else UNKNOWN,
    }


def _policies(evaluation: Evaluation, weights: dict[str, Weights]) -> list[dict[str, Any]]:
    ordered = by_certainty(evaluation)[:MOST_POLICIES]
    return [
        policy_part(f"policy-{i}", name, policy, evaluation, weights.get(name))
        for i, (name, policy) in enumerate(ordered)
    ]


def _difference(strip: Strip, one: Outcome | Segment, name: str, places: int) -> dict[str, Any]:
    """What outcomes and segments have in common: a difference with its interval, and the two values behind it."""
    ends = (one.difference_low, one.difference_high)
    tip = f"{name}\ndifference {fixed(one.difference, places, sign=True)}\ninterval {ends_text(*ends, places)}"
    return {
        "policy": label(one.policy, 60),
        "strip": strip.draw(tip, one.difference, ends),
        "difference": fixed(one.difference, places, sign=True),
        "ends": ends_text(*ends, places),
        "value": fixed(one.value, places),
        "logging": fixed(one.logging, places),
    }


def _places(rows: Sequence[Outcome | Segment]) -> int:
    halves = [(o.difference_high - o.difference_low) / 2 for o in rows if o.difference_high > o.difference_low]
    return decimals(min(halves, default=None))


def _outcomes(evaluation: Evaluation) -> dict[str, Any] | None:
    """Every reward and guardrail; None where there is one reward only."""
    if not evaluation.outcomes:
        return None
    rewards = []
    for name in list(dict.fromkeys(one.reward for one in evaluation.outcomes))[:MOST_POLICIES]:
        of = [one for one in evaluation.outcomes if one.reward == name][:MOST_POLICIES]
        places = _places(of)
        strip = Strip.over([v for o in of for v in (o.difference, o.difference_low, o.difference_high)], 0.0, 300)
        rows = [
            _difference(strip, one, label(one.policy, 60), places)
            | {
                "relative": "" if one.relative is None else f"({percent(one.relative, sign=True)})",
                "finding": FINDINGS[one.finding],
                "tone": FINDING_TONE[one.finding],
            }
            for one in of
        ]
        way = "rise" if of[0].lower_is_better else "fall"
        limit = f"may {way} by at most {label(of[0].limit_text, 20)}" if of[0].guardrail else ""
        rewards.append({"name": label(name, 60), "limit": limit, "rows": rows, "scale": strip.scale()})
    decisions = [{"holds": one.holds, "sentence": unbroken(label(one.sentence, 500))} for one in evaluation.decisions]
    return {"rewards": rewards, "decisions": decisions[:MOST_POLICIES], "level": percent(evaluation.level)}


def _segments(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The candidates by segment, column by column; nothing where no breakdown was asked for."""
    parts = []
    for title, of in evaluation.breakdowns().items():
        shown = of[:MOST_SEGMENTS]
        places = _places(shown)
        strip = Strip.over([v for s in shown for v in (s.difference, s.difference_low, s.difference_high)], 0.0, 220)
        rows = [
            _difference(strip, one, label(one.segment, 60), places)
            | {"segment": label(one.segment, 60), "rows": plain(one.rows)}
            | {"p": FINDINGS["refused"] if one.refused else p_value(one.adjusted_p_value)}
            for one in shown
        ]
        about = {"column": label(title, 120), "level": percent(evaluation.level), "more": len(of) - len(shown)}
        later = shown[0].reward != evaluation.segments[0].reward
        parts.append(about | {"rows": rows, "scale": strip.scale(), "folded": later})
    return parts


def _head_to_head(evaluation: Evaluation) -> list[dict[str, str]]:
    places = value_places(evaluation)
    return [
        {
            "candidate": label(c.candidate, 60),
            "reference": label(c.reference, 60),
            "difference": fixed(c.difference, places, sign=True),
            "ends": ends_text(c.low, c.high, places),
            "chance": chance(c.probability_of_improvement),
            "p": p_value(c.adjusted_p_value),
        }
        for c in evaluation.comparisons[:100]
    ]


def _calibration(evaluation: Evaluation) -> Chart | None:
    quality = evaluation.logging.quality
    return None if quality is None else calibration_chart(quality)


def _logging(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Facts about β̂: what, how much, what it means."""
    quality, model = evaluation.logging.quality, label(evaluation.logging.model)
    if quality is None:
        return [("model", model, "how the logging policy was estimated")] if model else []
    facts = [
        ("model", model, "how the logging policy was estimated"),
        ("held-out log-likelihood", fixed(quality.log_likelihood, 3), "of a logged action; higher is better"),
        ("of action popularity alone", fixed(quality.popularity_log_likelihood, 3), "the model should be above this"),
        ("of uniform choice", fixed(quality.uniform_log_likelihood, 3), "and this"),
        ("calibration error", percent(quality.calibration_error), "share of probability in the wrong place"),
        ("mean weight", fixed(quality.mean_weight, 3), "1 where the estimated propensities are right"),
    ]
    return [fact for fact in facts if fact[1] not in (UNKNOWN, "")]


def _propensity_models(results: Results) -> dict[str, Any] | None:
    if not results.propensity_models:
        return None
    models = results.propensity_models[:MOST_POLICIES]
    reference = results.evaluation.logging.value if results.evaluation else None
    strip = Strip.over([v for one in models for v in (one.value, one.low, one.high)], reference, 300)
    rows = []
    for one in models:
        ends = f"{plain(one.low)} to {plain(one.high)}"
        tip = f"{label(one.model)}\nvalue {plain(one.value)}\ninterval {ends}"
        rows.append(
            {
                "model": label(one.model),
                "fit": fixed(one.log_likelihood, 3),
                "calibration": percent(one.calibration_error),
                "mean_weight": fixed(one.mean_weight, 2),
                "strip": strip.draw(tip, one.value, (one.low, one.high)),
                "value": plain(one.value),
                "ends": ends,
            }
        )
    return {"rows": rows, "scale": strip.scale()}


def _risky(results: Results) -> list[dict[str, Any]]:
    ordered = results.risky_actions[:MOST_ACTIONS]
    widest = {
        key: max((getattr(a, key) or 0.0 for a in ordered), default=0.0) or 1.0
        for key in ("uncertainty", "weight_share")
    }
    return [
        {
            "action": label(a.action),
            "count": f"{a.count:,}",
            "prob": percent(a.logging_prob),
            "uncertainty": plain(a.uncertainty),
            "uncertainty_bar": round(60 * max(a.uncertainty or 0.0, 0.0) / widest["uncertainty"], 1),
            "share": percent(a.weight_share),
            "share_bar": round(60 * max(a.weight_share or 0.0, 0.0) / widest["weight_share"], 1),
        }
        for a in ordered
    ]
