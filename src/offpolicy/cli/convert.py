"""`offpolicy convert`: a log as one of Vowpal Wabbit."""

from typing import TYPE_CHECKING, Annotated

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import AsJson, Config, Force

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec


@reads_log("guardrail", "position")
def convert(
    ctx: typer.Context,
    *,
    out: Annotated[str, typer.Option("--out", help="File to write.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="Format: dsjson or cb_adf.")] = "dsjson",
    spec: "LogSpec",
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a log as Vowpal Wabbit's DSJSON or cb_adf text, its candidates and their features with it."""
    from offpolicy.cli.printing import facts, lines, print_json
    from offpolicy.workflows import run_convert

    found, notes = run_convert(spec, out, to, force=force)
    if as_json:
        print_json(found)
        return
    lines("Noted", notes)
    facts("Converted", found)
