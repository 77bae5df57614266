"""The study: settings tried one after the other; rerun a killed study to resume it, with the same result.

Trials, their storage and pruning are Optuna's. Which settings are tried is not left to a sampler: the n-th setting is a
function of n, and is enqueued when its turn comes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offpolicy.checks import Range, check_number
from offpolicy.errors import MissingExtraError, OffPolicyError, ParameterError
from offpolicy.json_writer import jsonable
from offpolicy.progress import progress
from offpolicy.tuning.spaces import Setting, Space, as_settings, setting

Report = Callable[[int, float], None]
"""Called by an objective with (step, value so far); raises to prune a hopeless trial."""
Objective = Callable[[Mapping[str, Setting], Report], "float | Outcome"]

STARTUP, WARMUP = 5, 3
"""Complete trials before any is pruned, and steps before a trial can be pruned unless the caller sets others."""
COUNT = Range(1, 1_000_000, integer=True)


@dataclass(frozen=True)
class Outcome:
    """An objective's value, and settings determined by the trial itself, such as the best number of epochs."""

    value: float
    found: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One setting and its outcome."""

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
    `prune`, a trial that is worse than the median of finished ones after more than `warmup` reports is pruned.
    """
    check_number("trials", trials, COUNT)
    facts = {"seed": seed, "space": [d.as_json() for d in space], **(identity or {})}
    with _stored(storage) as kept:
        study = _open(name, kept, storage, warmup, facts)
        points = {trial.user_attrs["point"]: trial.state.name for trial in _kept(study)}
        missing = [point for point in range(trials) if points.get(point) in (None, "WAITING")]
        with progress(f"tuning {name}", len(missing), show=show_progress) as bar:
            for point in missing:
                if point not in points:
                    study.enqueue_trial(setting(space, point, seed), user_attrs={"point": point})
                _run(study, study.ask(_distributions(space)), objective, prune)
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


@contextmanager
def _stored(storage: str | Path | None) -> Iterator[Any]:
    """Optuna's storage in that file, its connections closed when it has served; None without one."""
    optuna = _optuna()
    if storage is None:
        yield None
        return
    path = Path(storage)
    path = path / "studies.db" if path.is_dir() or not path.suffix else path
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        yield kept
    finally:
        kept.remove_session()
        kept.engine.dispose()


def _open(name: str, kept: Any, storage: str | Path | None, warmup: int, identity: Mapping[str, Any]) -> Any:
    """The study of that name, new or continued; one of another identity is refused."""
    optuna = _optuna()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=warmup)
    study = optuna.create_study(
        storage=kept,
        study_name=name,
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(),  # never used: every trial is enqueued with its settings
        pruner=pruner,
        load_if_exists=kept is not None,
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


def _kept(study: Any) -> list[Any]:
    """The trials that count: finished ones, and one whose turn has come but that has not begun.

    A trial that a killed process left running is marked as failed without a reason, and is run again.
    """
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "RUNNING":
            study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.name != "FAIL" or "reason" in trial.user_attrs]


def _run(study: Any, trial: Any, objective: Objective, prune: bool) -> None:
    """Run one trial and tell the study how it ended."""
    optuna = _optuna()
    states = optuna.trial.TrialState

    def report(step: int, value: float) -> None:
        trial.report(value, step)
        if prune and trial.should_prune():
            raise optuna.TrialPruned

    try:
        outcome = objective(as_settings(trial.params), report)
    except optuna.TrialPruned:
        study.tell(trial, state=states.PRUNED)
        return
    except ParameterError:
        raise
    except OffPolicyError as error:
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=states.FAIL)
        return
    outcome = outcome if isinstance(outcome, Outcome) else Outcome(float(outcome))
    if math.isnan(outcome.value):
        trial.set_user_attr("reason", "The value is not a number.")
        study.tell(trial, state=states.FAIL)
    else:
        trial.set_user_attr("found", dict(outcome.found))
        study.tell(trial, outcome.value)


def _distributions(space: Space) -> dict[str, Any]:
    kinds = _optuna().distributions

    def of(dimension: Any) -> Any:
        if dimension.choices:
            return kinds.CategoricalDistribution(dimension.choices)
        if dimension.integer:
            return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log)

    return {dimension.name: of(dimension) for dimension in space}


def _best_text(study: Any) -> str:
    values = [t.value for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]
    return f"best {max(values):.4f}" if values else ""


def _tuned(name: str, study: Any, trials: int) -> Tuned:
    """The best of the first `trials` points; of equal ones the earliest."""
    results = [
        Trial(
            t.user_attrs["point"],
            t.state.name.lower(),
            t.value,
            as_settings(t.params) | as_settings(t.user_attrs.get("found", {})),
            t.user_attrs.get("reason", ""),
        )
        for t in _kept(study)
    ]
    results = sorted((t for t in results if t.point < trials), key=lambda t: t.point)
    complete = [t for t in results if t.state == "complete" and t.value is not None]
    if not complete:
        raise OffPolicyError(f"None of {trials} trials of {name!r} finished. The first: {results[0].reason}")
    best = max(complete, key=lambda t: (t.value or 0.0, -t.point))
    return Tuned(name, best.settings, float(best.value or 0.0), tuple(results))
