"""`offpolicy learn`: from a log to a policy, evaluated on contexts it was not learned from."""

from typing import Annotated, Any

import typer

from offpolicy.cli.options import (
    ActionColumn,
    Actions,
    AsJson,
    CandidateColumn,
    CandidateFeatures,
    ClusterColumn,
    Config,
    ContextColumns,
    DropDuplicates,
    Force,
    Invocation,
    KeepProbColumn,
    Kinds,
    Level,
    Log,
    LoggingModel,
    PositionColumn,
    PropensityColumn,
    PropensityModels,
    RequestColumn,
    RewardColumn,
    RewardRange,
    RowWeightColumn,
    Seed,
    Settings,
    ShownColumn,
    Strict,
    TimestampColumn,
    log_spec,
    settings,
)
from offpolicy.errors import ParameterError

Scorer = Annotated[str | None, typer.Option("--scorer", help="Model of the policy: linear (default) or two_tower.")]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Maximum number of passes over the log.")]


def learn(
    ctx: typer.Context,
    log: Log,
    out: Annotated[str, typer.Option("--out", help="Folder for the policy and the results.", show_default=False)],
    context: ContextColumns = None,
    action: ActionColumn = None,
    reward: RewardColumn = None,
    propensity: PropensityColumn = None,
    cluster: ClusterColumn = None,
    timestamp: TimestampColumn = None,
    kind: Kinds = None,
    reward_range: RewardRange = None,
    actions: Actions = None,
    candidates: CandidateColumn = None,
    candidate_feature: CandidateFeatures = None,
    request: RequestColumn = None,
    shown: ShownColumn = None,
    position: PositionColumn = None,
    keep_prob: KeepProbColumn = None,
    row_weight: RowWeightColumn = None,
    drop_duplicates: DropDuplicates = False,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="How to learn: uips (default), ce, bips_cap, dr, ...; repeat it to try several."),
    ] = None,
    scorer: Scorer = None,
    epochs: Epochs = None,
    set_: Settings = None,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of contexts (or clusters) kept for the evaluation.")
    ] = 0.2,
    logging_model: LoggingModel = None,
    level: Level = 0.95,
    propensity_models: PropensityModels = True,
    seed: Seed = 0,
    config: Config = None,
    strict: Strict = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn a policy from a log and estimate its value on contexts it was not learned from.

    Rerun a killed command to resume it. OUT/policy is the policy, OUT/results.json what `offpolicy report OUT` shows.
    Of several methods the one with the highest lower confidence bound is OUT/policy.
    """
    from offpolicy.cli.printing import lines, print_json, show_evaluation
    from offpolicy.workflows import run_learn

    options = Invocation.of(ctx).options(seed, level, logging_model, propensity_models, force)
    changes = learning_settings(scorer, epochs, set_)
    run = run_learn(log_spec(ctx), method or ["uips"], out, options, held_out=held_out, settings=changes)
    if as_json:
        print_json(run.results.to_json())
    else:
        lines("Noted", run.notes)
        assert run.results.evaluation is not None
        show_evaluation(run.results.evaluation)
        lines("Written", run.files.values())
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
