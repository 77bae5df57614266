"""`offpolicy learn`: policies from one part of a log, evaluated on the other; killed runs resume."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.artifacts import save_policy
from offpolicy.errors import ParameterError
from offpolicy.evaluation import Evaluator, Options
from offpolicy.learning import (
    AUTO,
    PORTFOLIO,
    LearnedPolicy,
    check_rewards,
    choice_of,
    find_method,
    learn_policy,
    member_settings,
    resolve_config,
)
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.results import RESULTS, write_results
from offpolicy.workflows.evaluate import own_notes, unused_propensities
from offpolicy.workflows.findings import document
from offpolicy.workflows.holdout import Holdout
from offpolicy.workflows.log_spec import LogSpec, without_duplicates
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.roles import kind_notes
from offpolicy.workflows.run import (
    PARTS,
    Clock,
    Finished,
    RunOptions,
    check_folder,
    in_stores,
    mark_folder,
    nuisances_of,
)


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
    `settings` are fields of `LearnerConfig` and hyper-parameters. `auto` stands for the methods of the portfolio. Of
    several methods all are kept under `policies`; the one with the highest value is the run's `policy`.
    """
    clock = Clock()
    is_auto = AUTO in methods
    members = _members(methods, settings or {})  # a wrong setting is refused before any work
    folder = check_folder(out, "learn", (RESULTS, "policy", "policies", "training"), options.force)
    named = spec.propensity is not None
    spec = resolve(spec)
    log, _, dropped = without_duplicates(spec, spec.read())
    mark_folder(folder, "learn")
    rule = Holdout.of(log, held_out, options.seed, held_out_after)
    train, held, _ = rule.divide(log)
    train, held = in_stores(log, {"train": train, "held_out": held}, folder / PARTS)
    check_rewards(train)
    model = options.model(spec, named)
    working: dict[str, Any] = {"memory": spec.memory, "engine": options.engine}
    known, taken = nuisances_of(train, model, options.seed, [folder], folder, **working)
    learned = _learned(known, members, folder, options)
    held_out_nuisances, held_out_notes = nuisances_of(held, model, options.seed, [folder], folder, **working)
    targets = {name: one.policy for name, one in learned.items()}
    prefer = PORTFOLIO[0] if is_auto else None
    judging = Options(level=options.level, seed=options.seed, best_by="value", prefer=prefer)
    evaluator = Evaluator(held_out_nuisances, targets, options=spec.asked(judging), engine=options.engine)
    choice = choice_of(evaluator, {name: one.seconds for name, one in learned.items()})
    best = choice.method
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
        *dict.fromkeys(one.note for one in learned.values() if one.note),
    )
    history = {name: one.history for name, one in learned.items()}
    run = clock.facts(options, said)
    results = document("learn", run, spec, evaluator, propensity_models=models, learning=history, choice=choice)
    return Finished(results, said, {"policy": str(policy), "results": str(write_results(results, folder))})


def _divided(rule: Holdout, log: LoggedData, train: LoggedData, held: LoggedData) -> str:
    if rule.share == 0 and not rule.after:
        return "With so few contexts none can be held out: the evaluation uses rows that were learned from."
    return f"Learned from {train.n_rows:,} rows, evaluated on the {held.n_rows:,} others."


def _members(methods: Sequence[str], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each method, those of the portfolio in the place of `auto`."""
    members: dict[str, dict[str, Any]] = {}
    for method in methods:
        if method == AUTO:
            members |= {name: own for name, own in member_settings(settings).items() if name not in members}
            continue
        found = find_method(method)
        resolve_config(found, None, settings)
        members[found.name] = dict(settings)
    if not members:
        raise ParameterError("Name at least one method to learn with, such as auto.")
    return members


def _learned(
    known: Nuisances, members: Mapping[str, Mapping[str, Any]], folder: Path, options: RunOptions
) -> dict[str, LearnedPolicy]:
    """One policy per method; β̂ is fitted once for all of them, on the rows they learn from, and saved."""
    pretrained = (name for name, own in members.items() if own.get("schedule") != "alternate")
    if any(find_method(name).needs_logging_policy for name in pretrained):
        _ = known.logging_policy  # saved before the first epoch, so that a killed run does not fit it again
        known.save(folder)
    given: dict[str, Any] = {"nuisances": known, "engine": options.engine, "seed": options.seed}
    return {
        name: learn_policy(known.log, name, directory=folder / "training" / name, **{**given, **own})
        for name, own in members.items()
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
