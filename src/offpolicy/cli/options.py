"""Options that several commands share, and configuration files that hold any of them."""

import json
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from offpolicy.engine import Engine
    from offpolicy.workflows import LogSpec, RunOptions

LOGGING_MODELS = (
    *(
        "auto",
        "recorded",
        "uniform",
        "popularity",
        "counts",
        "linear",
        "quadratic",
        "greedy_linear",
        "top_k",
        "network",
    ),
    *("towers", "trees", "two_tower"),
)
"""For completion, which must not load torch."""
NOT_IN_FILES = ("config", "help")
SINGLE = ("action", "propensity", "cluster", "timestamp", "actions")
REQUESTS = ("candidates", "request", "shown", "position", "keep_prob", "row_weight")


def _load_config(context: typer.Context, path: str | None) -> str | None:
    if path is not None:
        context.default_map = config_values(Path(path), context.command.params, context.command.name or "the command")
    return path


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
        "--kind", metavar="COLUMN=KIND", help="Kind of a column: numeric, categorical, embedding or bag; repeatable."
    ),
]
Excluded = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="COLUMN", help="A column that is not context; repeatable.")
]
MissingValues = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
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
        help="The column with the request's id, in a table with a row a candidate or several shown a request.",
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
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        callback=_load_config,
        is_eager=True,
        help="TOML file with any of these options; the command line wins.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    md = "md"


PrintFormat = Annotated[
    Format,
    typer.Option("--format", help="How to print the results: table for people, json, csv or md (Markdown)."),
]
HeldOutAfter = Annotated[
    str | None,
    typer.Option("--held-out-after", metavar="TIME", help="Evaluate on the rows from this date or time on only."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with code 2 if the log cannot answer.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Fixes everything random.")]
Level = Annotated[float, typer.Option("--level", help="Confidence level of the intervals.")]
LoggingModel = Annotated[
    str | None,
    typer.Option(
        "--logging-model",
        autocompletion=lambda: list(LOGGING_MODELS),
        help="Model of the logging policy: auto (an ensemble), recorded, uniform, popularity, counts, linear, "
        "quadratic, greedy_linear, top_k, network, towers, trees or two_tower. Default: recorded if --propensity is "
        "given, else auto.",
        show_default=False,
    ),
]
PropensityModels = Annotated[
    bool,
    typer.Option(
        "--propensity-models/--no-propensity-models", help="Also estimate under other models of the logging policy."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that this command did not write.")]
Store = Annotated[
    str,
    typer.Option("--store", help="The event store: a path (SQLite), sqlite:///path or postgresql://user@host/name."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only decisions from this time on: 2026-01-31T12:00 or '7d ago'."),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Who works on the shards of a log: local (processes of this machine) or ray (actors on a cluster); "
        "default: this process. The answer is the same.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="How many work at the same time, one thread each; default: one a core."),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="With --engine ray: the address of a cluster; default: a local Ray is started."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A hyper-parameter of the method or a setting of learning; repeatable."
    ),
]


@contextmanager
def working(context: typer.Context) -> Iterator["Engine | None"]:
    """The engine that the options of a command name, for as long as the command runs; None where they name none."""
    name, workers, address = (context.params.get(option) for option in ("engine", "workers", "address"))
    if name is None and workers is None and address is None:
        yield None
        return
    from offpolicy.engine import make_engine

    with make_engine(name, workers, address) as engine:
        yield engine


@dataclass(frozen=True)
class Invocation:
    """The options of this call, for the record."""

    command: str
    config: Mapping[str, Any]

    @classmethod
    def of(cls, context: typer.Context) -> "Invocation":
        """The arguments as typed and as parsed."""
        typed = [word for word in sys.argv[1:] if word not in ("--debug", "--quiet")]
        hidden = ("config", "as_json", "strict", "force")
        values = {name: value for name, value in context.params.items() if name not in hidden and value is not None}
        return cls(shlex.join(["offpolicy", *typed]), values)

    def options(
        self, seed: int, level: float, logging_model: str | None, propensity_models: bool, force: bool
    ) -> "RunOptions":
        """The same, as the workflows take them."""
        from offpolicy.workflows import RunOptions

        return RunOptions(seed, level, logging_model, propensity_models, self.command, self.config, force)


def log_spec(context: typer.Context) -> "LogSpec":
    """The log and its columns, from the options of a command."""
    from offpolicy.workflows import LogSpec

    given = context.params
    single: dict[str, Any] = {name: given.get(name) for name in SINGLE}
    requests: dict[str, Any] = {name: given.get(name) for name in REQUESTS}
    rewards = tuple(given.get("reward") or ())
    return LogSpec(
        source=given["log"],
        context=tuple(given.get("context") or ()),
        kinds=pairs("kind", given.get("kind") or ()),
        reward_range=reward_range(given.get("reward_range")),
        exclude=tuple(given.get("exclude") or ()),
        missing=pairs("missing", (one if "=" in one else f"*={one}" for one in given.get("missing") or ())),
        drop_duplicates=bool(given.get("drop_duplicates")),
        candidate_features=tuple(given.get("candidate_feature") or ()),
        reward=rewards[0] if rewards else None,
        rewards=rewards[1:],
        guardrails=tuple(given.get("guardrail") or ()),
        winsorise=float(given.get("winsorise") or 0.0),
        key=tuple(given.get("key") or ()),
        memory=bytes_of(given.get("memory")),
        **single,
        **requests,
    )


def bytes_of(memory: str | None) -> int | None:
    """A size such as 2GB in bytes."""
    if memory is None:
        return None
    from offpolicy.log import byte_count

    return byte_count(memory)


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE options as a mapping."""
    mapping: dict[str, str] = {}
    for one in given:
        name, equals, value = one.rpartition("=") if option in ("kind", "missing") else one.partition("=")
        if not equals or not name:
            raise ParameterError(f"--{option} takes NAME=VALUE, but it is {one!r}.")
        if name in mapping:
            raise ParameterError(f"--{option} gives {name!r} twice. Give it once.")
        mapping[name] = value
    return mapping


def settings(given: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE options whose values are numbers, true, false, null or text."""
    return {name: _value(text) for name, text in pairs("set", given).items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def reward_range(text: str | None) -> tuple[float, float] | None:
    """LOW,HIGH as two numbers."""
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ParameterError(f"--reward-range takes two numbers, LOW,HIGH, but it is {text!r}.") from None
    return low, high


def seconds(option: str, text: str) -> float:
    """A duration such as 90s, 15m, 1h or 7d; a bare number is in seconds."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:].lower())
    try:
        value = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ParameterError(f"--{option} takes a duration such as 90s, 15m, 1h or 7d, but it is {text!r}.")
    return value


def microseconds(option: str, text: str | None) -> int:
    """A time (UTC unless it names a zone), or a duration before now, in microseconds since 1970; 0 without one."""
    if text is None:
        return 0
    if text.endswith("ago"):
        return int((datetime.now(UTC).timestamp() - seconds(option, text.removesuffix("ago").strip())) * 1_000_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ParameterError(
            f"--{option} takes a time such as 2026-01-31T12:00 or '7d ago', but it is {text!r}."
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def config_values(path: Path, parameters: Iterable[Any], command: str) -> dict[str, Any]:
    """The options in a TOML file by the name of their parameter; a key that names none is an error."""
    try:
        document = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ParameterError(f"--config: {path} cannot be read: {reason}. Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParameterError(f"--config: {path} is not valid TOML: {error}. Fix the file.") from None
    known = {_key(parameter): parameter for parameter in parameters if parameter.name not in NOT_IN_FILES}
    values: dict[str, Any] = {}
    for key, value in document.items():
        parameter = known.get(key.replace("-", "_"))
        if parameter is None:
            raise ParameterError(
                f"--config: {path} sets {key!r}, which is not an option of {command}. Its options are: "
                f"{', '.join(known)}."
            )
        if parameter.name in values:
            raise ParameterError(f"--config: {path} sets {key!r} twice, with a dash and with an underscore.")
        values[parameter.name] = _checked(path, key, value, parameter)
    return values


def _key(parameter: Any) -> str:
    long = [name for name in parameter.opts if name.startswith("--")]
    return (long[0] if long else str(parameter.name)).lstrip("-").replace("-", "_").lower()


def _checked(path: Path, key: str, value: Any, parameter: Any) -> Any:
    """A value of the file as the command line would have given it."""
    if getattr(parameter, "multiple", False):
        if isinstance(value, dict):
            return [f"{name}={_word(path, key, one)}" for name, one in value.items()]
        items = value if isinstance(value, list) else [value]
        return [_word(path, key, one) for one in items]
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise ParameterError(f"--config: {path} must set {key!r} to true or false, but it is {value!r}.")
        return value
    if parameter.name == "reward_range" and isinstance(value, list):
        return ",".join(_word(path, key, one) for one in value)
    if isinstance(value, bool):
        raise ParameterError(f"--config: {path} sets {key!r} to {str(value).lower()}, but it is not a switch.")
    return _word(path, key, value)


def _word(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ParameterError(f"--config: {path} must set {key!r} to text or a number, but it holds {value!r}.")
    text = value if isinstance(value, str) else json.dumps(value)
    if "\0" in text:
        raise ParameterError(f"--config: {path} sets {key!r} to text with a NUL character. Take it out.")
    return text
