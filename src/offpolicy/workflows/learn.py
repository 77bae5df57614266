"""`offpolicy learn`: policies from one part of a log, evaluated on the other; killed runs resume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.artifacts import save_policy
from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.learning import LearnedPolicy, find_method, learn_policy, resolve_config
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.results import RESULTS, write_results
from offpolicy.workflows.evaluate import own_notes, unused_propensities
from offpolicy.workflows.findings import document
from offpolicy.workflows.holdout import Holdout
from offpolicy.workflows.roles import LogSpec, kind_notes, resolve, without_duplicates
from offpolicy.workflows.run import Clock, Finished, RunOptions, check_folder, mark_folder, nuisances_of


def run_learn(
    spec: LogSpec,
    methods: Sequence[str],
    out: str | Path,
    options: RunOptions,
    *,
    held_out: float = 0.2,
    held_out_after: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Finished:
    """Learn policies from one part of a log file and evaluate them on the other; rerun a killed command to resume.

    With `held_out_after`, a date or time, the rows from then on are held out instead of a share of the contexts.
    `settings` are fields of `LearnerConfig` and hyper-parameters. Several methods are all kept under `policies`; the
    one with the highest lower confidence bound is the run's `policy`.
    """
    clock = Clock()
    names = [find_method(method).name for method in dict.fromkeys(methods)]
    if not names:
        raise ParameterError("Name at least one method to learn with, such as uips.")
    for name in names:
        resolve_config(find_method(name), None, settings or {})  # a wrong setting is refused before any work
    folder = check_folder(out, "learn", (RESULTS, "policy", "policies", "training"), options.force)
    named = spec.propensity is not None
    spec = resolve(spec)
    log, _, dropped = without_duplicates(spec, spec.read())
    mark_folder(folder, "learn")
    rule = Holdout.of(log, held_out, options.seed, held_out_after)
    train, held, _ = rule.divide(log)
    model = options.model(spec, named)
    known, taken = nuisances_of(train, model, options.seed, [folder], folder)
    learned = _learned(known, names, folder, options.seed, settings or {})
    held_out_nuisances, held_out_notes = nuisances_of(held, model, options.seed, [folder], folder)
    targets = {name: one.policy for name, one in learned.items()}
    evaluator = Evaluator(
        held_out_nuisances, targets, options=spec.asked(Options(level=options.level, seed=options.seed))
    )
    best = evaluator.evaluation.best
    held_out_nuisances.save(folder)
    models = evaluator.propensity_models() if options.propensity_models else []
    about = {"roles": spec.to_json(), "held_out": rule.to_json()}
    for name, one in learned.items():
        if len(learned) > 1:
            _save(one, log, folder / "policies" / name, about)
    policy = _save(learned[best], log, folder / "policy", about)
    said = (
        *(
            *spec.notes,
            *dropped,
            *log.treated,
            *kind_notes(spec, log),
            *unused_propensities(spec, model),
            *taken,
            *held_out_notes,
        ),
        *(_divided(rule, log, train, held), *own_notes(evaluator)),
    )
    history = {name: one.history for name, one in learned.items()}
    run = clock.facts(options, said)
    results = document("learn", run, spec, evaluator, propensity_models=models, learning=history)
    return Finished(results, said, {"policy": str(policy), "results": str(write_results(results, folder))})


def _divided(rule: Holdout, log: LoggedData, train: LoggedData, held: LoggedData) -> str:
    if rule.share == 0 and not rule.after:
        return "With so few contexts none can be held out: the evaluation uses rows that were learned from."
    return f"Learned from {train.n_rows:,} rows, evaluated on the {held.n_rows:,} others."


def _learned(
    known: Nuisances, names: Sequence[str], folder: Path, seed: int, settings: Mapping[str, Any]
) -> dict[str, LearnedPolicy]:
    """One policy per method; β̂ is fitted once for all of them, on the rows they learn from, and saved."""
    alternates = settings.get("schedule") == "alternate"
    if any(find_method(name).needs_logging_policy for name in names) and not alternates:
        _ = known.logging_policy  # saved before the first epoch, so that a killed run does not fit it again
        known.save(folder)
    own = {"seed": seed, **settings}
    return {
        name: learn_policy(known.log, name, nuisances=known, directory=folder / "training" / name, **own)
        for name in names
    }


def _save(learned: LearnedPolicy, log: LoggedData, path: Path, about: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {} if learned.best_metric is None else {str(learned.metric): learned.best_metric}
    metadata = {
        "method": learned.method,
        "hyper": dict(learned.hyper),
        "config": learned.config.as_json(),
        "metrics": metrics,
        "seed": learned.config.seed,
        **about,
    }
    return save_policy(learned.policy, log, path, metadata=metadata)
