"""Options that several commands share."""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.config import config_values
from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from offpolicy.engine import Engine
    from offpolicy.workflows import RunOptions

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


def _load_config(context: typer.Context, path: str | None) -> str | None:
    if path is not None:
        context.default_map = config_values(Path(path), context.command.params, context.command.name or "the command")
    return path


def with_those_of_the_file(
    context: typer.Context, parameter: typer.CallbackParam, given: list[str] | None
) -> list[str] | None:
    """NAME=VALUE options of the command line, and those of the configuration file with other names."""
    of_file = (context.default_map or {}).get(parameter.name or "")
    if not of_file or not given:
        return given
    names = {one.rpartition("=")[0] for one in given}
    return [*(one for one in of_file if one.rpartition("=")[0] not in names), *given]


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
        "--set",
        metavar="NAME=VALUE",
        callback=with_those_of_the_file,
        help="A hyper-parameter of the method or a setting of learning; repeatable.",
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
