"""`offpolicy evaluate`: read a log, reuse saved nuisances, evaluate policies on rows they have not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpolicy.artifacts import SavedPolicy, load_policy
from offpolicy.evaluation import Evaluator, Options
from offpolicy.results import RESULTS, write_results
from offpolicy.workflows.findings import document
from offpolicy.workflows.holdout import Holdout, Rows, unseen_part
from offpolicy.workflows.roles import LogSpec, kind_notes, probability_column, resolve, without_duplicates
from offpolicy.workflows.run import Clock, Finished, RunOptions, check_folder, mark_folder, nuisances_of


def run_evaluate(
    spec: LogSpec,
    policies: Mapping[str, str],
    options: RunOptions,
    *,
    compare_with: Mapping[str, str] | None = None,
    asked_for: Options | None = None,
    out: str | Path | None = None,
) -> Finished:
    """Evaluate policies (folders, columns of the log, or "uniform"), each named, on a log file.

    Rows that any of the saved policies was learned from are left out; β̂, U and q̂ that their runs saved for the other
    rows are reused. `asked_for` are options of the evaluation beyond level and seed.
    """
    clock = Clock()
    references = dict(compare_with or {})
    folder = None if out is None else check_folder(out, "evaluate", (RESULTS,), options.force)
    asked = {**policies, **references}
    saved = {name: load_policy(policy_folder(what)) for name, what in asked.items() if is_folder(what)}
    named = spec.propensity is not None
    spec = resolve(filled_from_policies(spec, list(saved.values())))
    log, kept, dropped = without_duplicates(spec, spec.read())
    rules = {name: Holdout.from_json((one.metadata.model_extra or {}).get("held_out")) for name, one in saved.items()}
    part, rows, notes = unseen_part(log, {name: rule for name, rule in rules.items() if rule is not None})
    if kept is not None:
        rows = kept if rows is None else kept[rows]
    targets = {name: _target(spec, rows, what, saved.get(name)) for name, what in asked.items()}
    model = options.model(spec, named)
    folders = [*([] if folder is None else [folder]), *(run_folder(what) for what in asked.values() if is_folder(what))]
    nuisances, taken = nuisances_of(part, model, options.seed, folders)
    evaluator = Evaluator(
        nuisances,
        {name: targets[name] for name in policies},
        {name: targets[name] for name in references},
        replace(asked_for or Options(), level=options.level, seed=options.seed),
    )
    models = evaluator.propensity_models() if options.propensity_models else []
    said = (
        *spec.notes,
        *dropped,
        *kind_notes(spec, log),
        *unused_propensities(spec, model),
        *notes,
        *taken,
        *fit_note(evaluator),
    )
    results = document("evaluate", clock.facts(options, said), spec, evaluator, propensity_models=models)
    files = {}
    if folder is not None:
        mark_folder(folder, "evaluate")
        nuisances.save(folder)
        files["results"] = str(write_results(results, folder))
    return Finished(results, said, files)


def fit_note(evaluator: Evaluator) -> tuple[str, ...]:
    """A warning where the fit of β̂ did not converge."""
    note = evaluator.evaluation.logging.note
    return (note,) if note else ()


def policy_folder(path: str | Path) -> Path:
    """The folder of a saved policy: the one named, or `policy` inside the folder of a run."""
    folder = Path(path).expanduser()
    return folder / "policy" if (folder / "policy").is_dir() else folder


def run_folder(path: str | Path) -> Path:
    """The folder of the run that a policy belongs to: RUN, RUN/policy or RUN/policies/NAME."""
    folder = policy_folder(path)
    return folder.parent.parent if folder.parent.name == "policies" else folder.parent


def is_folder(what: str) -> bool:
    """Whether a policy is named by its folder rather than by a column or a word."""
    return what != "uniform" and (Path(what).expanduser().is_dir() or "/" in what)


def unused_propensities(spec: LogSpec, model: str) -> tuple[str, ...]:
    """A note where recorded propensities are not used."""
    if spec.propensity is None or model == "recorded":
        return ()
    return (f"The propensities in {spec.propensity} are not used; name them with --propensity to use them.",)


def filled_from_policies(spec: LogSpec, saved: Sequence[SavedPolicy]) -> LogSpec:
    """What the user left out, taken from the saved policies: columns, kinds, range and actions."""
    for policy in saved:
        roles = (policy.metadata.model_extra or {}).get("roles")
        known: dict[str, Any] = roles if isinstance(roles, dict) else {}
        kinds = {column.name: column.kind for column in policy.context}
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
        spec = replace(spec, context=context, kinds={**kinds, **spec.kinds}, **changes)
        if spec.reward_range is None:
            spec = replace(spec, reward_range=policy.reward_range)
        if spec.actions is None:
            spec = replace(spec, actions=policy.actions)
    return spec


def _target(spec: LogSpec, rows: Rows | None, what: str, saved: SavedPolicy | None) -> Any:
    if saved is not None or what == "uniform":
        return saved or what
    column = probability_column(spec, what).to_numpy()
    return column if rows is None else column[rows]
