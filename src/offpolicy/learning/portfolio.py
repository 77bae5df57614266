"""`method="auto"`: a small portfolio on one set of nuisances, chosen from on rows with nuisances of their own.

Candidates are compared by their values and paired differences; the direct method is preferred, and another one takes
its place only where held-out rows say so beyond two standard errors. Against logging a lower bound of the difference
decides, taken at a level at which the bounds of all candidates hold at once: the choice is part of the level.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, compare
from offpolicy.learning.config import LearnerConfig, resolve_config
from offpolicy.learning.methods import find_method
from offpolicy.results import LOGGING, Candidate, Choice

AUTO = "auto"
PORTFOLIO = ("dm", "uips_dr", "uips", "wll", "ce")
"""Methods that `auto` tries, the preferred one first."""
OWN: Mapping[str, Mapping[str, Any]] = {
    "dm": {"start": "rewards"},
    "uips_dr": {"start": "rewards"},
    "ce": {"metric": "value"},
    "wll": {"metric": "value"},
}
"""Settings of members: they start from q̂ whatever the epochs, and likelihood is stopped and sharpened by value."""


def member_settings(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each member: fields of `LearnerConfig` go to all, hyper-parameters to those that have them."""
    known = {each.name for each in fields(LearnerConfig)}
    taken = {name: find_method(name).hyper for name in PORTFOLIO}
    stray = next((key for key in settings if key not in known and not any(key in own for own in taken.values())), None)
    if stray is not None:
        raise ParameterError(
            f"{stray!r} is neither a field of LearnerConfig nor a hyper-parameter of a method that auto tries "
            f"({', '.join(PORTFOLIO)}). Name a method to set it."
        )
    members = {
        name: {**OWN.get(name, {}), **{key: value for key, value in settings.items() if key in known or key in own}}
        for name, own in taken.items()
    }
    for name, own in members.items():
        resolve_config(find_method(name), None, own)
    return members


def choice_of(evaluator: Evaluator, seconds: Mapping[str, float]) -> Choice:
    """Which candidate of an evaluation was chosen, whether it is better than logging, and a line for each."""
    level, scale, best = evaluator.options.level, evaluator.scale, evaluator.best[0]
    estimates = {name: evaluator.estimates[name] for name in evaluator.candidates}
    joint = 1 - (1 - level) / len(estimates)
    against = {one.candidate: one for one in compare(estimates, evaluator.on_policy, LOGGING, level)}

    def width(value: float | None) -> float:
        return scale.width(value or 0.0)

    candidates = []
    for name, one in estimates.items():
        half, gain = one.width.half(joint), against[name]
        candidates.append(
            Candidate(
                method=name,
                value=scale.value(one.value),
                low=scale.value(max(one.value - half, 0.0)),
                high=scale.value(min(one.value + half, 1.0)),
                gain=width(gain.difference),
                gain_low=width(gain.joint_low),
                gain_high=width(gain.joint_high),
                seconds=seconds.get(name),
                chosen=name == best,
            )
        )
    chosen = next(one for one in candidates if one.chosen)
    ends = f"{chosen.gain:+.4g} (at least {chosen.gain_low:+.4g} at {level:.0%}, all candidates counted)"
    if chosen.gain is not None and chosen.gain <= 0:
        verdict, sentence = "logging", f"Stay with logging: no candidate is estimated to be better; {best} is {ends}."
    elif not evaluator.preflights[best].verdict.answerable:
        verdict = "experiment"
        sentence = (
            f"{best} is estimated to be better than logging by {ends}, but these rows cannot answer for it: stay "
            "with logging, or test it on a share of the traffic."
        )
    elif chosen.gain_low is not None and chosen.gain_low > 0:
        verdict, sentence = "policy", f"{best} is better than logging by {ends}."
    else:
        verdict = "experiment"
        sentence = (
            f"{best} is estimated to be better than logging by {ends}, which these rows do not prove: stay with "
            "logging, or test it on a share of the traffic."
        )
    return Choice(method=best, recommendation=verdict, sentence=sentence, candidates=candidates)  # type: ignore[arg-type]
