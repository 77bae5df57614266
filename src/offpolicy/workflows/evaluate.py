"""`offpolicy evaluate`: read a log, reuse saved nuisances, evaluate policies on rows they have not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offpolicy.artifacts import FORMS, OnnxPolicy, SavedPolicy, TableSource, policy_source
from offpolicy.errors import LogError, ParameterError
from offpolicy.evaluation import UNITS, Evaluator, Options
from offpolicy.log import ActionTable, LoggedData, Vocabulary, listed, nearest, source_names, source_of
from offpolicy.nuisances import Nuisances
from offpolicy.policies import JoinedTable, encoded, exploded
from offpolicy.policy_files import policy_folder
from offpolicy.results import RESULTS, write_results
from offpolicy.workflows.findings import document
from offpolicy.workflows.holdout import Holdout, later_rows, unseen_part
from offpolicy.workflows.log_spec import LogSpec, without_duplicates
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.roles import kind_notes
from offpolicy.workflows.run import (
    Clock,
    Finished,
    RunOptions,
    check_folder,
    in_stores,
    mark_folder,
    nuisances_of,
    parts_folder,
)

NO_KEYS = ("row", "rank", "action", "actions", "probability", "prob", "propensity", "pi", "p", "note", "unknown")
"""Columns of a file of recommendations that identify no request."""


def run_evaluate(
    spec: LogSpec,
    policies: Mapping[str, str],
    options: RunOptions,
    *,
    compare_with: Mapping[str, str] | None = None,
    asked_for: Options | None = None,
    held_out_after: str | None = None,
    out: str | Path | None = None,
) -> Finished:
    """Evaluate policies, each named by whatever `policy_source` understands, on a log file.

    Rows that any of the saved policies was learned from are left out; β̂, U and q̂ that their runs saved for the other
    rows are reused. `asked_for` are options of the evaluation beyond level and seed; with `held_out_after`, a date or
    time, only rows from then on count.
    """
    clock = Clock()
    references = dict(compare_with or {})
    folder = None if out is None else check_folder(out, "evaluate", (RESULTS,), options.force)
    asked = {**policies, **references}
    sources = {name: policy_source(what) for name, what in asked.items()}
    saved = {name: one for name, one in sources.items() if isinstance(one, SavedPolicy)}
    named = spec.propensity is not None
    asked_for = asked_for or Options()
    spec = resolve(filled_from_policies(with_columns(spec, sources), list(saved.values())))
    spec = replace(spec, keep=(*spec.keep, *(one for one in asked_for.by if one in _others(spec))))
    read, _, dropped = without_duplicates(spec, spec.read())
    log, joined = with_tables(read, sources, spec)
    if held_out_after is not None:
        later = later_rows(log, held_out_after)
        joined = (*joined, f"Evaluated on the {int(later.sum()):,} of {log.n_rows:,} rows from {held_out_after} on.")
        log = log.take(later)
    learned = {name: one.held_out for name, one in sources.items() if isinstance(one, SavedPolicy | OnnxPolicy)}
    rules = {name: Holdout.from_json(kept) for name, kept in learned.items()}
    part, _, notes = unseen_part(log, {name: rule for name, rule in rules.items() if rule is not None})
    targets = {name: _target(one, spec) for name, one in sources.items()}
    model = options.model(spec, named)
    folders = [*([] if folder is None else [folder]), *(run_folder(asked[name]) for name in saved)]
    working: dict[str, Any] = {"memory": spec.memory, "engine": options.engine}
    with parts_folder(folder) as parts:
        (part,) = in_stores(read, {"evaluated": part}, parts)
        nuisances, taken = nuisances_of(part, model, options.seed, folders, folder, **working)
        with Evaluator(
            nuisances,
            {name: targets[name] for name in policies},
            {name: targets[name] for name in references},
            spec.asked(replace(asked_for, level=options.level, seed=options.seed)),
            options.engine,
        ) as evaluator:
            if folder is not None:
                _keep_propensities(nuisances, folder)
            models = evaluator.propensity_models() if options.propensity_models else []
            said = (
                *(*spec.notes, *dropped, *log.treated, *kind_notes(spec, log), *unused_propensities(spec, model)),
                *(*joined, *notes, *taken, *own_notes(evaluator)),
            )
            results = document("evaluate", clock.facts(options, said), spec, evaluator, propensity_models=models)
    files = {}
    if folder is not None:
        nuisances.save(folder)
        files["results"] = str(write_results(results, folder))
    return Finished(results, said, files)


def _keep_propensities(nuisances: Nuisances, folder: Path) -> None:
    """Keep β̂ as soon as it is there, so that a killed run does not fit it again."""
    mark_folder(folder, "evaluate")
    _ = nuisances.logging_policy
    nuisances.save(folder)


def with_columns(spec: LogSpec, sources: Mapping[str, Any]) -> LogSpec:
    """The log with the columns that policies need beside its rows: probabilities, and keys of files to join."""
    names = source_names(spec.source)
    keep, probabilities = list(spec.keep), list(spec.probabilities)
    for name, source in sources.items():
        if isinstance(source, str) and source != "uniform":
            if source not in names:
                raise LogError(
                    f"The policy {source!r} is no column of {spec.source}.{nearest(source, names)} A policy is "
                    f"{FORMS}. The columns are: {listed(names)}."
                )
            probabilities.append(source)
        if isinstance(source, TableSource):
            own = source_names(source.path)
            shared = spec.key or tuple(one for one in own if one in names and one not in (*spec.roles, *NO_KEYS))
            if not shared:
                raise ParameterError(
                    f"The policy {name!r} cannot be joined to the log: {source.path} has {listed(own)}, the log has "
                    f"{listed(names)}. Give both a column that identifies a request, and name it with --key."
                )
            keep += shared
    columns = tuple(dict.fromkeys(one for one in keep if one not in spec.context))
    return replace(spec, keep=columns, probabilities=tuple(dict.fromkeys(probabilities)))


def _others(spec: LogSpec) -> list[str]:
    """Columns of the log that are not read for another reason."""
    used = (*spec.context, *spec.keep, *spec.probabilities, *(name.partition("=")[0].strip() for name in spec.outcomes))
    return [name for name in source_names(spec.source) if name not in used]


def with_tables(log: LoggedData, sources: Mapping[str, Any], spec: LogSpec) -> tuple[LoggedData, tuple[str, ...]]:
    """The log with the actions that only the files of policies name, and without rows that they have no entry for."""
    notes: list[str] = []
    for name, source in sources.items():
        if not isinstance(source, TableSource):
            continue
        table = JoinedTable.read(source.path, log, name, key=spec.key, action=spec.action)
        frame = exploded(table.frame.select(pl.col(table.action).alias("action")), log.actions)
        new = frame["action"].filter(pl.Series(encoded(frame["action"], log.actions) < 0)).unique(maintain_order=True)
        if len(new) and spec.actions is None:
            known = log.actions.vocabulary.ids
            added = new.cast(known.dtype, strict=False).drop_nulls()
            log = log.with_actions(ActionTable(Vocabulary(pl.concat([known, added]))))
            notes.append(f"{name}: {len(added):,} of its actions were never logged; nothing is known of their rewards.")
        covered = table.requests(log) >= 0
        how = (
            f"lists share {1 - table.residual:.0%} of the probability"
            if table.probability is None
            else table.probability
        )
        notes.append(f"{name}: joined by {', '.join(table.key)} ({how}).")
        if not covered.any():
            raise ParameterError(
                f"{source.path} has no entry for any row of the log (joined by {', '.join(table.key)})."
            )
        if not covered.all():
            notes.append(f"{name} has no entry for {np.sum(~covered):,} of {log.n_rows:,} rows, which are left out.")
            log = log.take(covered)
    return log, tuple(notes)


def own_notes(evaluator: Evaluator) -> tuple[str, ...]:
    """What was done to further rewards, and a warning where the fit of β̂ did not converge."""
    note = evaluator.evaluation.logging.note
    nuisances, sampled = evaluator.nuisances, ""
    if nuisances.sample_share < 1:
        sampled = (
            f"The log is read in {evaluator.log.n_shards} shards: models of β̂ and of rewards are fitted to a sample of "
            f"{nuisances.fitted_log.n_rows:,} rows (whole units; a linear β̂ to all of them), values use all rows, and "
            f"errors come from at most {UNITS:,} groups of whole units."
        )
    treated = dict.fromkeys(said for log in evaluator.other_logs.values() for said in log.treated)
    return (*(said for said in treated if said not in evaluator.log.treated), *filter(None, (note, sampled)))


def run_folder(path: str | Path) -> Path:
    """The folder of the run that a policy belongs to: RUN, RUN/policy or RUN/policies/NAME."""
    folder = policy_folder(path)
    return folder.parent.parent if folder.parent.name == "policies" else folder.parent


def unused_propensities(spec: LogSpec, model: str) -> tuple[str, ...]:
    """A note where recorded propensities are not used."""
    if spec.propensity is None or model == "recorded":
        return ()
    return (f"The propensities in {spec.propensity} are not used; name them with --propensity to use them.",)


def filled_from_policies(spec: LogSpec, saved: Sequence[SavedPolicy]) -> LogSpec:
    """What the user left out, taken from the saved policies: columns, kinds, range and actions."""
    for policy in saved:
        roles = policy.recorded("roles")
        known: dict[str, Any] = roles if isinstance(roles, dict) else {}
        kinds = {column.name: column.kind for column in policy.context}
        gone = [name for name in kinds if source_of(name) in spec.exclude or name in spec.exclude]
        if gone:
            raise ParameterError(
                f"The policy was learned with {listed(gone)}, which --exclude leaves out. Do not exclude it, "
                "or learn again without it."
            )
        slates = ("request", "position") if known.get("position") else ()
        changes: dict[str, Any] = {
            name: known[name]
            for name in ("action", "reward", "cluster", "timestamp", *slates)
            if getattr(spec, name) is None and isinstance(known.get(name), str)
        }
        if isinstance(known.get("candidates"), str) and spec.candidates is None and spec.request is None:
            changes |= {
                "candidates": known["candidates"],
                "candidate_features": spec.candidate_features or tuple(known.get("candidate_features", ())),
            }
        context = tuple(dict.fromkeys([*spec.context, *kinds]))
        kept = known.get("missing")
        missing = {str(name): str(how) for name, how in kept.items()} if isinstance(kept, dict) else {}
        spec = replace(
            spec, context=context, kinds={**kinds, **spec.kinds}, missing={**missing, **spec.missing}, **changes
        )
        if spec.reward_range is None:
            spec = replace(spec, reward_range=policy.reward_range)
        if spec.actions is None:
            spec = replace(spec, actions=policy.actions)
    return spec


def _target(source: Any, spec: LogSpec) -> Any:
    """What an evaluation takes for a source."""
    if isinstance(source, TableSource):
        return {"rows": source.path, "key": spec.key, "action": spec.action}
    return source
