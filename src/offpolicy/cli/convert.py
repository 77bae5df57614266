"""`offpolicy convert`: a log as one of Vowpal Wabbit."""

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
    KeepProbColumn,
    Kinds,
    Log,
    Memory,
    PropensityColumn,
    RequestColumn,
    RewardRange,
    Rewards,
    RowWeightColumn,
    ShownColumn,
    TimestampColumn,
    log_spec,
)


def convert(
    ctx: typer.Context,
    log: Log,
    out: Annotated[str, typer.Option("--out", help="File to write.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="Format: dsjson or cb_adf.")] = "dsjson",
    context: ContextColumns = None,
    action: ActionColumn = None,
    reward: Rewards = None,
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
    keep_prob: KeepProbColumn = None,
    row_weight: RowWeightColumn = None,
    drop_duplicates: DropDuplicates = False,
    memory: Memory = None,
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a log as Vowpal Wabbit's DSJSON or cb_adf text, its candidates and their features with it."""
    from offpolicy.cli.printing import facts, lines, print_json
    from offpolicy.workflows import run_convert

    found, notes = run_convert(log_spec(ctx), out, to, force=force)
    if as_json:
        print_json(found)
        return
    lines("Noted", notes)
    facts("Converted", found)
