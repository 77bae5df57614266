"""What the commands do: learn from a log file, evaluate policies on one, and write what was found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.artifacts import SavedPolicy, load_policy, save_policy
from offpolicy.errors import ParameterError
from offpolicy.evaluation import PolicyRows, auto_estimate, compare, evaluate
from offpolicy.learning import LearnedPolicy, find_method, learn_policy
from offpolicy.log import LoggedData
from offpolicy.policies import ColumnPolicy, Policy, as_policy
from offpolicy.progress import progress
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import row_uncertainty
from offpolicy.workflows.results_file import Clock, Judged, RunOptions, judged_parts, results, write_results
from offpolicy.workflows.roles import LogSpec, kind_notes, probability_column, resolve

FEWEST_GROUPS = 5
"""Contexts (or clusters) below which none can be held out."""
REFUSED = "run an experiment"


@dataclass(frozen=True)
class Run:
    """A finished run: the document, what was noted on the way, and where things were written."""

    results: dict[str, Any]
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """Whether the log cannot answer for one of the policies."""
        policies = (self.results["evaluation"] or {"policies": {}})["policies"]
        return any(found["preflight"]["verdict"]["answer"] == REFUSED for found in policies.values())


def policy_folder(path: str | Path) -> Path:
    """The folder of a saved policy: the one named, or `policy` inside the folder of a run."""
    folder = Path(path).expanduser()
    return folder / "policy" if (folder / "policy").is_dir() else folder


def run_evaluate(
    spec: LogSpec,
    policies: Mapping[str, str],
    options: RunOptions,
    *,
    compare_with: Mapping[str, str] | None = None,
    out: str | Path | None = None,
) -> Run:
    """Evaluate policies (folders, columns of the log, or "uniform"), each named, on a log file."""
    clock = Clock()
    others = compare_with or {}
    asked = {**policies, **others}
    saved = {name: load_policy(policy_folder(what)) for name, what in asked.items() if _is_folder(what)}
    explicit = spec.propensity is not None
    spec = resolve(_as_policies_say(spec, list(saved.values())))
    log = spec.read()
    rows, notes = _unseen_rows(log, saved)
    part = log if rows is None else log.take(rows)
    targets = {name: _target(spec, log, part, rows, what, saved.get(name), name) for name, what in asked.items()}
    model = _model(spec, options, explicit)
    judged = _judged(part, targets, model, options)
    parts = judged_parts(judged, options.ladder, options.seed)
    parts["evaluation"]["comparisons"] += _comparisons(judged, list(policies), list(others))
    said = (*spec.notes, *kind_notes(spec, log), *_unused(spec, model), *notes)
    document = results("evaluate", clock.facts(options, said), spec, part, parts)
    files = {} if out is None else {"results": str(write_results(document, out))}
    return Run(document, said, files)


def run_learn(
    spec: LogSpec,
    methods: Sequence[str],
    out: str | Path,
    options: RunOptions,
    *,
    held_out: float = 0.2,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Learn policies from one part of a log file and evaluate them on the other; a killed run goes on.

    `settings` are fields of `LearnerConfig` and hyper-parameters. Several methods are all kept under `policies`; the
    one with the highest low end is the run's `policy`.
    """
    clock = Clock()
    names = [find_method(method).name for method in dict.fromkeys(methods)]
    if not names:
        raise ParameterError("Name at least one method to learn with, such as uips.")
    explicit = spec.propensity is not None
    spec = resolve(spec)
    log = spec.read()
    train_rows, valid_rows, notes = _divided(log, held_out, options.seed)
    train = log.take(train_rows)
    model = _model(spec, options, explicit)
    folder = Path(out).expanduser()
    learned = _learned(train, names, folder, model, options.seed, settings or {})
    held = log.take(valid_rows)
    targets: dict[str, Policy] = {name: one.policy for name, one in learned.items()}
    judged = _judged(held, targets, model, options)
    best = judged.evaluation.best
    about = {"roles": spec.to_json(), "held_out": {"share": held_out, "seed": options.seed, "log": log.fingerprint}}
    for name, one in learned.items():
        if len(learned) > 1:
            _save(one, log, folder / "policies" / name, about)
    policy = _save(learned[best], log, folder / "policy", about)
    parts = judged_parts(judged, options.ladder, options.seed)
    parts["learning"] = {name: one.history for name, one in learned.items()}
    kept = f"Learned from {train.n_rows:,} rows, evaluated on the {held.n_rows:,} others."
    said = (*spec.notes, *kind_notes(spec, log), *_unused(spec, model), *(notes or (kept,)))
    document = results("learn", clock.facts(options, said), spec, held, parts)
    files = {"policy": str(policy), "results": str(write_results(document, folder))}
    return Run(document, said, files)


def run_tune(
    spec: LogSpec,
    method: str,
    options: RunOptions,
    *,
    trials: int = 20,
    space: str = "effective",
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Search hyper-parameters on a log file; with a folder, finished trials are kept and a killed search goes on."""
    from offpolicy.learning import LearnerConfig
    from offpolicy.tuning import tune

    explicit = spec.propensity is not None
    spec = resolve(spec)
    log = spec.read()
    config = LearnerConfig(**({"held_out": 0.2, "seed": options.seed} | dict(settings or {})))
    folder = None if out is None else Path(out).expanduser()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    found = tune(
        log,
        method,
        trials=trials,
        seed=options.seed,
        storage=folder,
        space=space,
        config=config,
        logging_policy=_model(spec, options, explicit),
    )
    return {
        "method": found.method,
        "settings": dict(found.settings),
        "value": log.reward_to_user_scale(found.value),
        "trials": found.table(),
    }, spec.notes


def _model(spec: LogSpec, options: RunOptions, explicit: bool) -> str:
    if options.logging_model is not None:
        return options.logging_model
    return "recorded" if explicit and spec.propensity is not None else "auto"


def _unused(spec: LogSpec, model: str) -> tuple[str, ...]:
    """A word on recorded propensities that are estimated all the same."""
    if spec.propensity is None or model == "recorded":
        return ()
    return (f"The propensities in {spec.propensity} are not used; name them with --propensity to use them.",)


def _is_folder(what: str) -> bool:
    return what != "uniform" and (Path(what).expanduser().is_dir() or "/" in what)


def _as_policies_say(spec: LogSpec, saved: Sequence[SavedPolicy]) -> LogSpec:
    """What the user left open, as the saved policies were learned: columns, kinds, range and actions."""
    for policy in saved:
        roles = (policy.metadata.model_extra or {}).get("roles")
        known: dict[str, Any] = roles if isinstance(roles, dict) else {}
        kinds = {column.name: column.kind for column in policy.context}
        changes: dict[str, Any] = {
            name: known[name]
            for name in ("action", "reward", "cluster", "timestamp")
            if getattr(spec, name) is None and isinstance(known.get(name), str)
        }
        context = tuple(dict.fromkeys([*spec.context, *kinds]))
        spec = replace(spec, context=context, kinds={**kinds, **spec.kinds}, **changes)
        if spec.reward_range is None:
            spec = replace(spec, reward_range=policy.reward_range)
        if spec.actions is None:
            spec = replace(spec, actions=policy.actions)
    return spec


def _unseen_rows(
    log: LoggedData, saved: Mapping[str, SavedPolicy]
) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...]]:
    """Where a policy was learned from this very log, the rows it was not learned from."""
    for name, policy in saved.items():
        kept = (policy.metadata.model_extra or {}).get("held_out")
        if not isinstance(kept, dict) or kept.get("log") != log.fingerprint:
            continue
        share, seed = kept.get("share"), kept.get("seed")
        if isinstance(share, float) and isinstance(seed, int):
            _, rows, notes = _divided(log, share, seed)
            said = f"{name} was learned from this log: evaluated on the {len(rows):,} rows it was not learned from."
            return rows, notes or (said,)
    return None, ()


def _divided(
    log: LoggedData, share: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], tuple[str, ...]]:
    """Rows to learn from and rows to judge by; a handful of contexts cannot be divided."""
    if not 0 < share < 1:
        raise ParameterError(f"held_out must be a share between 0 and 1, but it is {share}.")
    groups = int(log.cluster_index.max()) + 1
    if groups < FEWEST_GROUPS:
        every = np.arange(log.n_rows)
        said = f"With {groups} contexts none can be held out: the evaluation uses rows that were learned from."
        return every, every, (said,)
    share = min(max(share, 1 / groups), 1 - 1 / groups)
    (train, _), (valid, _) = log.divide((1 - share, share), seed=seed)
    return train, valid, ()


def _target(
    spec: LogSpec,
    log: LoggedData,
    part: LoggedData,
    rows: npt.NDArray[np.int64] | None,
    what: str,
    saved: SavedPolicy | None,
    name: str,
) -> Policy:
    if saved is not None:
        return as_policy(saved.aligned(log.actions), part, name)
    if what == "uniform":
        return as_policy(what, part, name)
    column = probability_column(spec, what).to_numpy()
    return as_policy(column if rows is None else column[rows], part, name)


def _judged(log: LoggedData, targets: Mapping[str, Policy], model: str, options: RunOptions) -> Judged:
    beta = fit_logging_policy(log, model, seed=options.seed)
    columns = all(isinstance(target, ColumnPolicy) for target in targets.values())
    with progress("uncertainty and rewards", None):
        uncertainty = row_uncertainty(beta)
        rewards = None if columns else PooledRewardModel.fit(log, beta.whole.design)
    known: dict[str, Any] = {"uncertainty": uncertainty, "reward_model": rewards}
    found = evaluate(log, dict(targets), beta, level=options.level, seed=options.seed, **known)
    return Judged(log, targets, beta, uncertainty, rewards, found)


def _comparisons(judged: Judged, candidates: Sequence[str], references: Sequence[str]) -> list[dict[str, Any]]:
    """Paired differences of the candidates with each reference, on the user's scale."""
    if not references:
        return []
    evaluation, log = judged.evaluation, judged.log
    estimates = {}
    for name in (*candidates, *references):
        known: dict[str, Any] = {"uncertainty": judged.uncertainty, "reward_model": judged.rewards}
        rows = PolicyRows.of(log, judged.targets[name], judged.beta, **known)
        estimates[name] = auto_estimate(rows, evaluation.level)
    found = []
    for reference in references:
        against = {name: estimates[name] for name in candidates}
        for one in compare(against, estimates[reference], reference, evaluation.level):
            scaled = {name: evaluation.scale.width(getattr(one, name)) for name in ("difference", "low", "high")}
            found.append(one.to_json() | scaled)
    return found


def _learned(
    train: LoggedData, names: Sequence[str], folder: Path, model: str, seed: int, settings: Mapping[str, Any]
) -> dict[str, LearnedPolicy]:
    """One policy a method; β̂ is fitted once for all of them, on the rows they learn from."""
    alternates = settings.get("schedule") == "alternate"
    needed = any(find_method(name).needs_logging_policy for name in names) and not alternates
    beta: LoggingPolicy | None = fit_logging_policy(train, model, seed=seed) if needed else None
    return {
        name: learn_policy(
            train, name, logging_policy=beta, directory=folder / "training" / name, **{"seed": seed, **settings}
        )
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
