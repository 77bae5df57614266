"""`offpolicy tune`: search hyper-parameters on a log file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offpolicy.learning import LearnerConfig, held_out_unit
from offpolicy.tuning import tune
from offpolicy.workflows.log_spec import LogSpec, without_duplicates
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.run import RunOptions, in_stores, nuisances_of, parts_folder


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
    """Search hyper-parameters on a log file; with a folder, finished trials are kept: rerun to resume.

    The folder may be that of a learn run with the same seed: β̂ of its training part is then reused.
    """
    named = spec.propensity is not None
    spec = resolve(spec)
    log, _, read = without_duplicates(spec, spec.read())
    config = LearnerConfig(**({"held_out": 0.2, "seed": options.seed} | dict(settings or {})))
    folder = None if out is None else Path(out).expanduser()
    model, notes = options.model(spec, named), (*spec.notes, *read)
    given: Any = model
    shares = (1 - config.held_out, config.held_out)
    with parts_folder(folder) as parts:
        train, held = log.split(shares, by=held_out_unit(log), seed=config.seed)
        train, held = in_stores(log, {"train": train, "held_out": held}, parts)
        if folder is not None and config.schedule == "pretrained":
            folder.mkdir(parents=True, exist_ok=True)
            working: dict[str, Any] = {"memory": spec.memory, "engine": options.engine}
            known, taken = nuisances_of(train, model, options.seed, [folder], **working)
            given, notes = known.logging_policy, (*notes, *taken)
            known.save(folder)
        found = tune(
            train,
            method,
            trials=trials,
            seed=options.seed,
            storage=folder,
            space=space,
            validation=held,
            config=config,
            logging_policy=given,
            engine=options.engine,
        )
    return {
        "method": found.method,
        "settings": dict(found.settings),
        "value": log.reward_to_user_scale(found.value),
        "trials": found.table(),
    }, notes
