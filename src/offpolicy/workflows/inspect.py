"""What a log holds and whether it can answer questions at all, before there is any policy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError
from offpolicy.evaluation import audit, shown_one_action
from offpolicy.json_writer import jsonable
from offpolicy.log import LoggedData, Reading, Table
from offpolicy.propensity import FitConfig, fit_logging_policy, repeat_test, shortened
from offpolicy.workflows.log_spec import LogSpec, columns_of, without_duplicates
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.roles import kind_notes

QUICK_ROWS = 10_000
"""Rows for the quick fits; of a longer log a random share of contexts is taken."""
QUICK_NUMBERS = 1_000_000
"""Numbers (contexts × actions) for the quick fits; of a log with more, fewer rows are taken."""
DETERMINISTIC = 0.9
"""Share of repeated contexts with one action beyond which the logger looks deterministic."""
RARE = 10
"""Rows below which an action is called rare."""
ON_REPEATS = {
    False: "Add what it looked at to the context, the id itself if need be.",
    True: "There are too few rows of each id to estimate it: add the features that the logger looked at, or more rows.",
}
"""What to do where units repeat their actions, by whether their ids are in the context."""
DAMAGED = 0.05
"""Mean weight this far from 1, beyond three of its errors, says that β̂ misses something."""


def run_inspect(spec: LogSpec, seed: int = 0) -> dict[str, Any]:
    """Facts, signs of trouble, a quick β̂ and (where propensities are recorded) their audit; plain values."""
    spec, read, needed = read_with_fixes(spec)
    log, _, dropped = without_duplicates(spec, read)
    quick, looked_at = _quick(log, seed)
    found: dict[str, Any] = {
        "log": log.summary() | {"source": spec.source, "columns": columns_of(spec, log)},
        "inferred": [*spec.notes, *dropped, *kind_notes(spec, log)],
        "problems": [one.typed() for one in needed],
        "options": [one.fix.typed for one in needed if one.fix is not None],
        "facts": facts_of(log),
        "logging_model": _quick_fit(quick, seed),
        "audit": None if log.logging_prob is None else audit(quick, seed=seed).to_json(),
    }
    return dict(jsonable(found | {"quick_rows": quick.n_rows, "looked_at": looked_at, "advice": _advice(log, found)}))


def read_with_fixes(spec: LogSpec) -> tuple[LogSpec, Reading, tuple[LogError, ...]]:
    """The log; where options would fix all that is wrong with it, they are taken for this look, and returned."""
    resolved = resolve(spec)
    table = resolved.table
    columns = None if table is None else Table(dict(table.series), table.origin)  # `read` uses up its own
    try:
        return resolved, resolved.read(), ()
    except LogError as error:
        if not error.fixes:
            raise
        fixed = replace(resolved.fixed(error.fixes), table=columns)
        return fixed, fixed.read(), error.problems or (error,)


def _quick(log: LoggedData, seed: int) -> tuple[LoggedData, str]:
    """The rows for the quick fits, and which they are: none twice, few enough, without times where those are costly."""
    once = log.take(~log.duplicates) if log.duplicates.any() else log
    quick = shortened(once, seed, QUICK_ROWS, QUICK_NUMBERS)
    said = f"{quick.n_rows:,} of {log.n_rows:,} rows"
    if quick.timestamp is not None and quick.n_rows * quick.n_actions > QUICK_NUMBERS:  # each row is a context in time
        return replace(quick, timestamp=None), f"{said}, without their times"
    return quick, said


def facts_of(log: LoggedData) -> dict[str, Any]:
    """Counts of contexts, actions and copies, without any fit."""
    per_context = np.bincount(log.context_index, minlength=log.n_contexts)
    never = np.flatnonzero(log.action_count == 0)
    return {
        "rows_per_context": {name: float(np.quantile(per_context, q)) for name, q in _QUANTILES.items()},
        "contexts_repeated": int((per_context > 1).sum()),
        "contexts_shown_one_action": shown_one_action(log),
        "rows_per_action": {name: float(np.quantile(log.action_count, q)) for name, q in _QUANTILES.items()},
        "rare_actions": int(((log.action_count > 0) & (log.action_count < RARE)).sum()),
        "never_logged": log.actions.vocabulary.decode(never[:10].tolist()) if len(never) else [],
        "most_logged_share": float(log.action_count.max()) / log.n_rows,
        "duplicates": int(log.duplicates.sum()),
        "reward_varies": bool(log.reward.min() < log.reward.max()),
    }


_QUANTILES = {"least": 0.0, "median": 0.5, "most": 1.0}


def _quick_fit(log: LoggedData, seed: int) -> dict[str, Any]:
    config = FitConfig.quick(seed)
    if log.n_contexts * log.width > QUICK_NUMBERS:
        config = replace(config, epochs=min(config.epochs, 4))
    beta = fit_logging_policy(log, "auto", config=config, seed=seed)
    certain = _certain(beta.row_log_prob.numpy() > np.log(0.99), log)
    quality = beta.quality.to_json()
    quality.pop("bins")
    repeats = repeat_test(beta, seed=seed) if log.n_rows >= log.n_actions else None  # else β̂ itself is too rough
    return {
        "model": beta.description,
        "certain_rows": certain,
        "note": beta.note,
        "repeats": None if repeats is None else repeats.to_json(),
        **quality,
    }


def _certain(certain: npt.NDArray[np.bool_], log: LoggedData) -> float:
    """The share of rows, of those that offered a choice, whose action was as good as certain."""
    if log.candidates is not None:
        certain = certain[log.candidates.sizes[log.context_index] > 1]
    return float(certain.mean()) if len(certain) else 1.0


def _advice(log: LoggedData, found: Mapping[str, Any]) -> list[str]:
    model = found["logging_model"]
    said = advice_before_fitting(log, found["facts"], model["certain_rows"])
    if abs(model["mean_weight"] - 1) > 3 * model["mean_weight_error"] + DAMAGED:
        said.append(
            f"The estimated logging policy is off: weights that should average 1 average {model['mean_weight']:.2f} "
            "on rows it did not see. Add the columns that the logger looked at to the context."
        )
    repeats = model["repeats"]
    if repeats is not None and repeats["flagged"]:
        said.append(
            f"The same {'user (cluster)' if log.cluster is not None else 'context'} got the same action "
            f"{repeats['ratio']:.2f} times as often as the estimated propensities say: the logger knew more than they "
            f"do, and every estimate is biased by what it knew. {ON_REPEATS[repeats['ids_given']]}"
        )
    if model["note"]:
        said.append(model["note"])
    if log.logging_prob is None:
        said.append("Propensities are not recorded: they are estimated, and their error is part of every interval.")
    elif found["audit"] is not None:
        said.append(found["audit"]["advice"])
    return said


def advice_before_fitting(log: LoggedData, facts: Mapping[str, Any], certain_rows: float = 0.0) -> list[str]:
    """What the facts about a log say already; `certain_rows` is the share of rows that β̂ calls certain, if fitted."""
    said = []
    if not facts["reward_varies"]:
        said.append("Every reward is the same: nothing can be learned. Check that the reward column is the right one.")
    if facts["duplicates"]:
        said.append(_on_duplicates(log, facts["duplicates"]))
    single = facts["contexts_shown_one_action"]
    if (single is not None and single > DETERMINISTIC) or certain_rows > DETERMINISTIC:
        said.append(
            "The logger looks deterministic: contexts are shown one action only. Without any exploration the log "
            "cannot tell what other actions are worth."
        )
    if facts["never_logged"]:
        said.append(
            f"{int((log.action_count == 0).sum())} actions were never logged: no estimate covers them. Leave "
            "them out, or explore them."
        )
    if facts["rare_actions"] > 0.2 * log.n_actions:
        said.append(
            f"{facts['rare_actions']} of {log.n_actions} actions have fewer than {RARE} rows: their logging "
            "probabilities are uncertain. Methods that weigh by uncertainty, such as uips, are made for this."
        )
    return said


def _on_duplicates(log: LoggedData, count: int) -> str:
    rows = "1 row is an exact copy" if count == 1 else f"{count:,} rows are exact copies"
    told_apart = " and time" if log.timestamp is not None else ""
    return (
        f"{rows} of an earlier one (same context, action, reward{told_apart}). If events were written twice, drop them "
        "with --drop-duplicates; if the columns are simply too few to tell events apart, keep them."
    )
