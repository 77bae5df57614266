"""Which column of a log file plays which role: as the user says, the rest inferred from names, and reported."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from offpolicy.errors import LogError
from offpolicy.evaluation import Guardrail
from offpolicy.log import (
    ROLES,
    CategoricalColumn,
    Known,
    LoggedData,
    Table,
    VowpalLog,
    choose_context,
    column_names,
    expanded,
    expression,
    flags,
    format_of,
    leaks,
    listed,
    nearest,
    range_of_rewards,
    read_table,
    vowpal_log,
)
from offpolicy.progress import progress
from offpolicy.workflows.log_spec import LogSpec

NAMES: Mapping[str, tuple[str, ...]] = {
    "action": ("action", "action_id", "item", "item_id", "arm", "arm_id", "chosen_action", "shown", "variant"),
    "reward": ("reward", "click", "clicked", "clicks", "is_click", "converted", "conversion", "rating", "label"),
    "propensity": (
        "propensity",
        "pscore",
        "propensity_score",
        "logging_prob",
        "action_prob",
        "probability",
        "prob",
        "p",
    ),
    "timestamp": ("timestamp", "time", "ts", "datetime", "date", "event_time"),
}
"""Column names that imply a role, the most specific first; case is ignored."""


def infer(spec: LogSpec) -> LogSpec:
    """The same log with every role filled in; `notes` say which were inferred, and how costs became rewards.

    Where the log's first rows were read before, its roles are inferred from them.
    """
    path = expanded(spec.source)[0]
    form = format_of(path)
    names = column_names(path, form)
    if not names:
        raise LogError(f"{path} is empty: it has no columns. A log needs at least one row.")
    notes: list[str] = []
    if form == "dsjson" or form == "cb":
        found = vowpal_log(expanded(spec.source), form)
        spec, names = _with_candidates(spec, found), found.frame.columns
        notes += found.notes
        if spec.candidates is not None:
            notes.append("candidates: those listed with each decision")
    given = {role: getattr(spec, role) for role in ROLES}
    taken = {*spec.context, *spec.exclude, *spec.probabilities, *(name for name in given.values() if name is not None)}
    outcomes = ([] if spec.reward is None else [spec.reward]) + list(spec.outcomes)
    taken |= {name for one in outcomes for name in expression(one, names).columns} | set(spec.requests)
    for role, candidates in NAMES.items():
        if given[role] is None:
            given[role] = _named_like(candidates, [name for name in names if name not in taken])
            if given[role] is not None:
                taken.add(given[role])
                notes.append(f"{role}: {given[role]} (by its name)")
    for role in ("action", "reward"):
        if given[role] is None:
            raise LogError(
                f"{path} has no column whose name suggests the {role}. Name it with --{role}; the columns are: "
                f"{listed(names)}."
            )
    resolved = replace(spec, **given)
    with progress("looking at the columns", None):
        resolved, chosen = _with_context(resolved, names, path)
    notes += [*chosen, *(said for one in spec.guardrails if (said := Guardrail.parse(one).inferred))]
    if form in ("dsjson", "cb") and spec.reward_range is None and resolved.reward == "reward":
        limits = range_of_rewards(found, spec.source)
        note = "−cost, costs being in [−1, 0]" if limits == (0.0, 1.0) else "−cost in [−1, 0], costs being in [0, 1]"
        resolved, notes = replace(resolved, reward_range=limits), [*notes, f"reward: {note}"]
    return replace(resolved, notes=(*spec.notes, *notes))


def _with_context(spec: LogSpec, names: Sequence[str], path: Path) -> tuple[LogSpec, list[str]]:
    """The context that was named, or every column that may be one; and what to know about it."""
    strange = next((name for name in spec.exclude if name not in names), None)
    if strange is not None:
        raise LogError(f"--exclude: {path} has no column {strange!r}.{nearest(strange, names)}")
    single = {role: column for role in ROLES if (column := getattr(spec, role)) is not None}
    reward = expression(single.pop("reward"), names)
    followed = {name for one in (spec.reward, *spec.outcomes) if one for name in expression(one, names).columns}
    beside = {name for one in spec.beside for name in expression(one, names).columns}
    if reward.is_column:
        single["reward"] = reward.name
    context = tuple(name for name in spec.context if name not in spec.exclude)
    needed = dict.fromkeys([*single.values(), *followed, *beside, *spec.requests, *context])
    if spec.table is None:
        table = read_table(spec.source, tuple(needed), everything=not spec.context, kinds=spec.written)
    else:
        table = read_table(spec.table, tuple(needed if spec.context else dict.fromkeys([*needed, *names])))
    columns = _of_requests(table, spec)
    known = Known(*(columns.get(single.get(role, "")) for role in ("action", "reward", "timestamp")))
    if context:
        suspicious = leaks({name: columns[name] for name in context}, known)
        notes = [f"context {name}: {why}." for name, why in suspicious.items()]
        return replace(spec, context=context, table=table), notes
    taken = {*single.values(), *followed, *spec.probabilities, *spec.requests}
    others = {name: columns[name] for name in names if name in columns and name not in taken}  # as in the file
    chosen = choose_context(others, known, spec.exclude)
    if not chosen.context:
        why = "".join(f" {name!r} is left out: {reason}." for name, reason in chosen.left_out.items())
        raise LogError(
            f"{path} has no column left for the context, which is what a policy decides by.{why} Name the columns to "
            "use with --context."
        )
    notes = [f"context: {', '.join(chosen.context)} (every other column)"]
    for name, why in chosen.left_out.items():
        respelled = table.origin.respelled.get(name)
        notes.append(f"left out: {name or repr(name)} ({why}{f'; {respelled}' if respelled else ''})")
    notes += [f"context {name}: {why}; --exclude {name} leaves it out" for name, why in chosen.suspicious.items()]
    for name in set(chosen.left_out).difference(beside):
        del table.series[name]
    kinds = {name: kind for name, kind in spec.kinds.items() if name not in chosen.left_out}
    return replace(spec, context=chosen.context, kinds=kinds, table=table), notes


def _of_requests(table: Table, spec: LogSpec) -> Mapping[str, pl.Series]:
    """The columns with a row a request: of a table with a row a candidate, those of the candidate that was shown."""
    if spec.shown is None:
        return table.series
    shown = pl.Series(flags(spec.shown, table.series[spec.shown], table.origin))
    return {name: values.filter(shown) for name, values in table.series.items()}


def _with_candidates(spec: LogSpec, found: VowpalLog) -> LogSpec:
    """The roles that Vowpal Wabbit's files tell themselves, where the user says nothing else."""
    roles = found.roles
    if "keep_prob" in roles and spec.keep_prob is None and spec.row_weight is None:
        spec = replace(spec, keep_prob="keep_prob")
    if "candidates" not in roles or spec.candidates is not None:
        return spec
    actions = found.actions if spec.actions is None else spec.actions
    return replace(spec, candidates="candidates", candidate_features=found.candidate_features, actions=actions)


def _named_like(candidates: tuple[str, ...], names: list[str]) -> str | None:
    whole = {name.lower().strip(): name for name in reversed(names)}
    fields = {name.rpartition(".")[2]: column for name, column in whole.items()}
    return next((known[candidate] for known in (whole, fields) for candidate in candidates if candidate in known), None)


def kind_notes(spec: LogSpec, log: LoggedData) -> tuple[str, ...]:
    """A note on integer columns, which are read as ids unless declared otherwise."""
    taken = [
        name
        for name, column in log.contexts.items()
        if name not in (*spec.kinds, spec.position)
        and isinstance(column, CategoricalColumn)
        and column.vocabulary.ids.dtype.is_integer()
    ]
    if not taken:
        return ()
    return (
        f"categorical: {', '.join(taken)} (integers, read as ids; --kind {taken[0]}=numeric if they are quantities)",
    )
