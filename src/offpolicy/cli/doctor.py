"""`offpolicy doctor`: will it run here, how long will it take, what to fix, and what to paste into an issue."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import AsJson, Config

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec


@reads_log()
def doctor(
    ctx: typer.Context,
    *,
    log: Annotated[
        str | None,
        typer.Argument(help="Log file or glob, as for the other commands; without it, the environment only."),
    ] = None,
    spec: "LogSpec",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Look at the environment and a log in seconds: columns, what will be slow, what to fix, what to report.

    Nothing is fitted, and of a large log only the first rows are read. The summary at the end holds versions, sizes and
    kinds of columns but no names and no values, so it can be pasted into an issue.
    """
    from offpolicy.workflows import run_doctor

    found = run_doctor(None if log is None else spec)
    if as_json:
        from offpolicy.cli.printing import print_json

        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    from offpolicy.cli.printing import facts, lines, table
    from offpolicy.drawing import duration

    here, log = found["environment"], found.get("log")
    missing = [name for name, there in here["extras"].items() if not there]
    facts("Environment", {name: value for name, value in here.items() if name != "extras"})
    lines("Extras that are not installed", [f"pip install 'offpolicy[{name}]'" for name in missing])
    if log is not None and "error" in log:
        lines("The log cannot be read", log["error"].splitlines())
    elif log is not None:
        facts("The log", {name: log[name] for name in ("rows", "rows_read", "contexts", "actions")})
        table("Columns", ("column", "role or kind"), list(log["columns"].items()))
        lines("Inferred", log["notes"])
        costs = log["costs"]
        times = {name: duration(costs[f"{name}_seconds"]) for name in ("evaluate", "learn")}
        facts("About what it will cost, on one core", times | {"memory": f"{costs['memory_gb']} GB"})
        lines("What will be slow", log["slow"])
        lines("Problems", log["problems"])
        if log["options"]:
            lines("Give these options to the other commands", [" ".join(log["options"])])
        lines("What to make of it", log["advice"])
    lines("To paste into an issue (no names, no values)", found["summary"].splitlines())
