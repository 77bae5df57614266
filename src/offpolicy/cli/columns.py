"""The log of a command: its file, the roles of its columns and how it is read, as options of every command."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.options import pairs, with_those_of_the_file
from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec

Log = Annotated[
    str,
    typer.Argument(
        help="Log file or glob (Parquet, CSV, NDJSON, or Vowpal Wabbit's DSJSON or cb text), or a prepared folder.",
        show_default=False,
    ),
]
ContextColumns = Annotated[
    list[str] | None,
    typer.Option("--context", help="A context column; repeat it for more. Without any, all columns without a role."),
]
ActionColumn = Annotated[str | None, typer.Option("--action", help="The column with the action that was taken.")]
Rewards = Annotated[
    list[str] | None,
    typer.Option(
        "--reward",
        metavar="[NAME=]WHAT",
        help="The column with the reward that followed, or an expression such as 0.1*click+purchase. Repeat it to "
        "evaluate more rewards beside the first.",
    ),
]
Guardrails = Annotated[
    list[str] | None,
    typer.Option(
        "--guardrail",
        metavar="WHAT[<=+2%]",
        help="A reward that must not get worse: returns<=+2% may rise, margin>=-2% may fall by at most 2 %; "
        "repeatable.",
    ),
]
Winsorise = Annotated[
    float,
    typer.Option(
        "--winsorise",
        metavar="SHARE",
        help="Set this share of the largest and smallest rewards to their "
        "quantile (0 values and yes/no rewards are left alone).",
    ),
]
PropensityColumn = Annotated[
    str | None, typer.Option("--propensity", help="The column with recorded probabilities of the logged actions.")
]
ClusterColumn = Annotated[
    str | None, typer.Option("--cluster", help="The column of the unit of independence, such as the user.")
]
TimestampColumn = Annotated[str | None, typer.Option("--timestamp", help="The column with the time of each row.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="COLUMN=KIND",
        callback=with_those_of_the_file,
        help="Kind of a column: numeric, categorical, embedding or bag; repeatable.",
    ),
]
Excluded = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="COLUMN", help="A column that is not context; repeatable.")
]
MissingValues = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        callback=with_those_of_the_file,
        metavar="[COLUMN=]WHAT",
        help="What to do where a value is missing: drop the row, fill in zero, or fill in and flag it by an indicator; "
        "for one column, or for all context columns (drop: for all columns); repeatable.",
    ),
]
RewardRange = Annotated[
    str | None, typer.Option("--reward-range", metavar="LOW,HIGH", help="Range of the rewards, if it is not 0,1.")
]
Actions = Annotated[
    str | None, typer.Option("--actions", help="File with all actions (column as in the log) and their features.")
]
CandidateColumn = Annotated[
    str | None, typer.Option("--candidates", help="The column with the list of actions that were on offer.")
]
CandidateFeatures = Annotated[
    list[str] | None,
    typer.Option("--candidate-feature", help="A column of lists with one value for each candidate; repeatable."),
]
RequestColumn = Annotated[
    str | None,
    typer.Option(
        "--request",
        help="The column with the request's id: in a table with a row a candidate or several shown a request, or "
        "beside --candidates. Requests are the units of independence unless --cluster names a larger one.",
    ),
]
ShownColumn = Annotated[
    str | None, typer.Option("--shown", help="In a table with a row a candidate: whether it was the one shown.")
]
PositionColumn = Annotated[
    str | None,
    typer.Option("--position", help="Where requests show several actions: the column with the place of each, from 1."),
]
KeepProbColumn = Annotated[
    str | None, typer.Option("--keep-prob", help="The column with the probability with which a row was kept.")
]
RowWeightColumn = Annotated[
    str | None, typer.Option("--row-weight", help="The column with the number of events that a row stands for.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory that a log may take, such as 2GB (default: half of what is free); a larger one is prepared as a "
        "store.",
        show_default=False,
    ),
]
DropDuplicates = Annotated[
    bool, typer.Option("--drop-duplicates", help="Drop rows that are exact copies of earlier ones, and say how many.")
]


def log_spec(
    log: Log,
    context: ContextColumns = None,
    exclude: Excluded = None,
    action: ActionColumn = None,
    reward: Rewards = None,
    guardrail: Guardrails = None,
    winsorise: Winsorise = 0.0,
    propensity: PropensityColumn = None,
    cluster: ClusterColumn = None,
    timestamp: TimestampColumn = None,
    kind: Kinds = None,
    reward_range: RewardRange = None,
    missing: MissingValues = None,
    actions: Actions = None,
    candidates: CandidateColumn = None,
    candidate_feature: CandidateFeatures = None,
    request: RequestColumn = None,
    shown: ShownColumn = None,
    position: PositionColumn = None,
    keep_prob: KeepProbColumn = None,
    row_weight: RowWeightColumn = None,
    drop_duplicates: DropDuplicates = False,
    memory: Memory = None,
) -> "LogSpec":
    """The log and its columns; these parameters are the options of every command that reads a log."""
    from offpolicy.workflows import LogSpec

    return LogSpec(
        source=log,
        context=tuple(context or ()),
        exclude=tuple(exclude or ()),
        action=action,
        reward=reward[0] if reward else None,
        rewards=tuple(reward[1:]) if reward else (),
        guardrails=tuple(guardrail or ()),
        winsorise=winsorise,
        propensity=propensity,
        cluster=cluster,
        timestamp=timestamp,
        kinds=pairs("kind", kind or ()),
        reward_range=two_numbers(reward_range),
        missing=pairs("missing", (one if "=" in one else f"*={one}" for one in missing or ())),
        actions=actions,
        candidates=candidates,
        candidate_features=tuple(candidate_feature or ()),
        request=request,
        shown=shown,
        position=position,
        keep_prob=keep_prob,
        row_weight=row_weight,
        drop_duplicates=drop_duplicates,
        memory=bytes_of(memory),
    )


def reads_log(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `log_spec`, but for some, in the place of its parameter `spec`, which they make.

    Where the command has a parameter of the same name, such as a `log` that may be left out, that one counts.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        columns, own = inspect.signature(log_spec).parameters, inspect.signature(command).parameters
        added = [one for name, one in columns.items() if name not in own and name not in without]
        shown = [one for parameter in own.values() for one in (added if parameter.name == "spec" else [parameter])]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            spec = log_spec(**{name: given[name] for name in columns if name in given})
            command(spec=spec, **{name: given[name] for name in own if name in given})

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
        )
        run.__annotations__ = {one.name: one.annotation for one in shown}
        return run

    return decorate


def bytes_of(memory: str | None) -> int | None:
    """A size such as 2GB in bytes."""
    if memory is None:
        return None
    from offpolicy.log import byte_count

    return byte_count(memory)


def two_numbers(text: str | None) -> tuple[float, float] | None:
    """LOW,HIGH of --reward-range."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(f"--reward-range takes two numbers, LOW,HIGH, but it is {text!r}.") from None
    return low, high
