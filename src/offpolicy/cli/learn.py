"""`offpolicy learn`: from a log to a policy, evaluated on contexts it was not learned from."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import (
    Address,
    AsJson,
    Config,
    EngineName,
    Force,
    Format,
    HeldOutAfter,
    Invocation,
    Level,
    LoggingModel,
    PrintFormat,
    PropensityModels,
    Seed,
    Settings,
    Strict,
    Workers,
    settings,
    working,
)
from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec

Scorer = Annotated[
    str | None,
    typer.Option("--scorer", help="Model of the policy: linear, two_tower, spectral."),
]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum number of passes over the log.")]


@reads_log()
def learn(
    ctx: typer.Context,
    *,
    out: Annotated[str, typer.Option("--out", help="Folder for the policy and the results.", show_default=False)],
    spec: "LogSpec",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="How to learn: auto (default: the best of several), dm, uips, ...; repeat it to try several.",
        ),
    ] = None,
    scorer: Scorer = None,
    epochs: Epochs = None,
    set_: Settings = None,
    held_out: Annotated[
        float,
        typer.Option(
            "--held-out", help="Share of the clusters (of the contexts without --cluster) kept for the evaluation."
        ),
    ] = 0.2,
    held_out_after: HeldOutAfter = None,
    logging_model: LoggingModel = None,
    level: Level = 0.95,
    propensity_models: PropensityModels = True,
    seed: Seed = 0,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    config: Config = None,
    strict: Strict = False,
    force: Force = False,
    as_json: AsJson = False,
    form: PrintFormat = Format.table,
) -> None:
    """Learn a policy from a log and estimate its value on contexts it was not learned from.

    Rerun a killed command to resume it. OUT/policy is the policy, OUT/results.json what `offpolicy report OUT` shows.
    Of several methods the one with the highest value is OUT/policy; whether it is better than logging is said.
    """
    from offpolicy.cli.printing import show_run
    from offpolicy.workflows import run_learn

    options = Invocation.of(ctx).options(seed, level, logging_model, propensity_models, force)
    changes = learning_settings(scorer, epochs, set_)
    with working(ctx) as started:
        run = run_learn(
            spec,
            method or ["auto"],
            out,
            replace(options, engine=started),
            held_out=held_out,
            held_out_after=held_out_after,
            settings=changes,
        )
    show_run(run, Format.json if as_json else form)
    if strict and run.refused:
        raise typer.Exit(2)


def learning_settings(scorer: str | None, epochs: int | None, given: list[str] | None) -> dict[str, Any]:
    """What --set, --scorer and --epochs say, each thing once."""
    named = {name: value for name, value in (("scorer", scorer), ("epochs", epochs)) if value is not None}
    changes = settings(given or ())
    own = next((name for name in ("seed", *named) if name in changes), None)
    if own is not None:
        raise ParameterError(f"--set {own} repeats the option --{own}. Give one of them.")
    return named | changes
