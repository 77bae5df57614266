"""`offpolicy evaluate`: the values of policies on a log, with intervals and a verdict."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

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
    ShownColumn,
    Strict,
    TimestampColumn,
    log_spec,
)
from offpolicy.errors import ParameterError


def evaluate(
    ctx: typer.Context,
    log: Log,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="[NAME=]WHAT",
            help="Folder of a saved policy or of a run, a column with π(a|x) of the logged action, or uniform; "
            "repeatable.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="[NAME=]WHAT", help="A policy to compare the others with; as --policy."),
    ] = None,
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
    logging_model: LoggingModel = None,
    level: Level = 0.95,
    propensity_models: PropensityModels = True,
    segments: Annotated[
        str | None,
        typer.Option("--segments", metavar="COLUMN", help="Also by segment: a context column, or time for periods."),
    ] = None,
    guaranteed: Annotated[
        bool,
        typer.Option("--guaranteed", help="Also an interval with a proof; takes some 40 fits of the logging model."),
    ] = False,
    action_groups: Annotated[
        str | None,
        typer.Option(
            "--action-groups", metavar="COLUMN", help="Also estimators that weigh groups: a column of --actions."
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="Also how strong hidden information must have been; refits without columns."
        ),
    ] = False,
    user_model: Annotated[
        str,
        typer.Option(
            "--user-model",
            help="How users look at slates: any, cascade (from the top), independent (each position by itself), or "
            "auto, the weakest assumption that the log can carry.",
        ),
    ] = "auto",
    out: Annotated[str | None, typer.Option("--out", help="Folder for results.json.")] = None,
    seed: Seed = 0,
    config: Config = None,
    strict: Strict = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what policies would have earned, against the logging policy.

    The columns of a saved policy need not be named again. Rows that one of the policies was learned from are left out,
    also in a later version of its log. A policy given with --compare is a reference and never recommended.
    """
    from offpolicy.cli.printing import lines, print_json, show_evaluation
    from offpolicy.evaluation import DEFAULT_ESTIMATORS, GROUPED, Options
    from offpolicy.workflows import run_evaluate

    named = named_policies(policy or ())
    if not named:
        raise ParameterError("Name at least one policy with --policy: a folder, a column of the log, or uniform.")
    others = named_policies(compare or ())
    twice = next((name for name in others if name in named), None)
    if twice is not None:
        raise ParameterError(f"--policy and --compare both name {twice!r}. Give one of them another name.")
    options = Invocation.of(ctx).options(seed, level, logging_model, propensity_models, force)
    asked_for = Options(
        estimators=DEFAULT_ESTIMATORS if action_groups is None else (*DEFAULT_ESTIMATORS, *GROUPED),
        action_groups=action_groups,
        interval="guaranteed" if guaranteed else "auto",
        segments=segments,
        sensitivity_columns=sensitivity,
        user_model=user_model,
    )
    run = run_evaluate(log_spec(ctx), named, options, compare_with=others, asked_for=asked_for, out=out)
    if as_json:
        print_json(run.results.to_json())
    else:
        lines("Noted", run.notes)
        assert run.results.evaluation is not None
        show_evaluation(run.results.evaluation)
        lines("Written", run.files.values())
    if strict and run.refused:
        raise typer.Exit(2)


def named_policies(given: Iterable[str]) -> dict[str, str]:
    """[NAME=]WHAT as names and what they name; a folder is called by its name, that of a run by the run's."""
    named: dict[str, str] = {}
    for one in given:
        name, equals, what = one.partition("=")
        if not equals or not name or Path(one).is_dir():
            name, what = Path(one).name or one, one
        if name in named:
            raise ParameterError(f"Two policies are called {name!r}. Name them, as in --policy first={what}.")
        if not what:
            raise ParameterError(f"--policy and --compare take [NAME=]WHAT, but one is {one!r}.")
        named[name] = what
    return named
