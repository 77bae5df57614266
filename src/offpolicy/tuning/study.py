"""The study: settings tried in order, each recorded whole or not at all, so that a killed study goes on as if nothing
had happened.

Records and pruning are Optuna's; which settings are tried is not left to its state but is a function of their number.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpolicy.checks import Range, check_number
from offpolicy.errors import MissingExtraError, OffPolicyError, ParameterError
from offpolicy.json_writer import jsonable
from offpolicy.progress import progress
from offpolicy.tuning.spaces import Setting, Space, as_settings, setting

Report = Callable[[int, float], None]
"""Called by an objective with (step, value so far); raises to abandon a hopeless trial."""
Objective = Callable[[Mapping[str, Setting], Report], "float | Outcome"]

STARTUP, WARMUP = 5, 3
"""Whole trials before any is abandoned, and steps before a trial can be unless the caller names others."""
COUNT = Range(1, 1_000_000, integer=True)


@dataclass(frozen=True)
class Outcome:
    """An objective's value, and settings that came out of the trial itself, such as the best number of epochs."""

    value: float
    found: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One setting and what became of it."""

    point: int
    """Its place in the sequence of settings."""
    state: str
    """"complete", "pruned" or "fail"."""
    value: float | None
    """Its value; of a pruned trial the last one reported."""
    settings: Mapping[str, Setting]
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Tuned:
    """The best setting of a study and all that were tried."""

    method: str
    settings: Mapping[str, Setting]
    """Ready for `learn_policy(log, tuned.method, **tuned.settings)`."""
    value: float
    trials: tuple[Trial, ...] = field(repr=False)

    def table(self) -> list[dict[str, Any]]:
        """The trials as flat records, best first; those without a value last."""
        order = sorted(self.trials, key=lambda t: (t.state != "complete", -(t.value or -math.inf), t.point))
        return [{"point": t.point, "state": t.state, "value": t.value, **t.settings} for t in order]


class _AbandonedError(Exception):
    """A trial that the pruner gives up."""


def search(
    objective: Objective,
    space: Space,
    *,
    name: str = "study",
    trials: int = 20,
    seed: int = 0,
    storage: str | Path | None = None,
    prune: bool = True,
    warmup: int = WARMUP,
    identity: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> Tuned:
    """Maximise an objective over `trials` settings of a space.

    With `storage` (a file, or a folder that will hold `studies.db`) every finished trial is kept; the same call later,
    from one process at a time, does only what is missing. `identity` are facts that must agree with those stored. With
    `prune`, a trial that is worse than the median of finished ones after more than `warmup` reports is abandoned.
    """
    check_number("trials", trials, COUNT)
    study = _open(name, storage, warmup, {"seed": seed, "space": [d.as_json() for d in space], **(identity or {})})
    done = {t.user_attrs["point"] for t in study.get_trials(deepcopy=False)}
    with progress(f"tuning {name}", trials - len(done), show=show_progress) as bar:
        for point in range(trials):
            if point not in done:
                _try(study, objective, space, point, seed, prune)
                bar(_best_text(study))
    return _tuned(name, study, trials)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError(
            "Tuning needs Optuna, which is not installed. Run pip install 'offpolicy[tuning]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _open(name: str, storage: str | Path | None, warmup: int, identity: Mapping[str, Any]) -> Any:
    """The study of that name, new or continued; one of another identity is refused."""
    optuna = _optuna()
    url = None
    if storage is not None:
        path = Path(storage)
        path = path / "studies.db" if path.is_dir() or not path.suffix else path
        path.parent.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{path}"
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=warmup)
    study = optuna.create_study(
        storage=url, study_name=name, direction="maximize", pruner=pruner, load_if_exists=url is not None
    )
    mine = jsonable(identity, "identity")
    theirs = study.user_attrs.get("identity")
    if theirs is None:
        study.set_user_attr("identity", mine)
    elif theirs != mine:
        differ = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        raise OffPolicyError(
            f"{storage} holds another study {name!r}: {', '.join(differ)} differ. Choose another storage or delete it."
        )
    return study


def _try(study: Any, objective: Objective, space: Space, point: int, seed: int, prune: bool) -> None:
    """Run one trial and record it in one piece."""
    optuna = _optuna()
    values = setting(space, point, seed)
    record: dict[str, Any] = {"params": values, "distributions": _distributions(space)}
    reported: dict[int, float] = {}

    def report(step: int, value: float) -> None:
        reported[step] = value
        if prune:
            running = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING, intermediate_values=dict(reported), **record
            )
            if study.pruner.prune(study, running):
                raise _AbandonedError

    state, value, facts = "COMPLETE", None, {"point": point, "found": {}}
    try:
        outcome = objective(values, report)
        outcome = outcome if isinstance(outcome, Outcome) else Outcome(float(outcome))
        value, facts["found"] = outcome.value, dict(outcome.found)
        if math.isnan(value):
            state, value, facts["reason"] = "FAIL", None, "The value is not a number."
    except _AbandonedError:
        state, value = "PRUNED", reported[max(reported)]
    except ParameterError:
        raise
    except OffPolicyError as error:
        state, facts["reason"] = "FAIL", str(error)
    study.add_trial(
        optuna.trial.create_trial(
            state=optuna.trial.TrialState[state],
            value=value,
            intermediate_values={step: each for step, each in reported.items() if not math.isnan(each)},
            user_attrs=facts,
            **record,
        )
    )


def _distributions(space: Space) -> dict[str, Any]:
    kinds = _optuna().distributions

    def of(dial: Any) -> Any:
        if dial.choices:
            return kinds.CategoricalDistribution(dial.choices)
        if dial.integer:
            return kinds.IntDistribution(int(dial.low), int(dial.high), log=dial.log)
        return kinds.FloatDistribution(dial.low, dial.high, log=dial.log)

    return {dial.name: of(dial) for dial in space}


def _best_text(study: Any) -> str:
    values = [t.value for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    return f"best {max(values):.4f}" if values else ""


def _tuned(name: str, study: Any, trials: int) -> Tuned:
    """The best of the first `trials` points; of equal ones the earliest."""
    found = [
        Trial(
            t.user_attrs["point"],
            t.state.name.lower(),
            t.value,
            as_settings(t.params) | as_settings(t.user_attrs["found"]),
            t.user_attrs.get("reason", ""),
        )
        for t in study.get_trials(deepcopy=False)
    ]
    found = sorted((t for t in found if t.point < trials), key=lambda t: t.point)
    complete = [t for t in found if t.state == "complete" and t.value is not None]
    if not complete:
        raise OffPolicyError(f"None of {trials} trials of {name!r} came to an end. The first: {found[0].reason}")
    best = max(complete, key=lambda t: (t.value or 0.0, -t.point))
    return Tuned(name, best.settings, float(best.value or 0.0), tuple(found))
