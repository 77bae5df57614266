"""The command line: one file a command, argument parsing and printing only."""

import sys
from typing import Annotated

import typer

from offpolicy import __version__
from offpolicy.cli import demo
from offpolicy.errors import OffPolicyError

app = typer.Typer(
    name="offpolicy",
    help="Learn and evaluate policies from logs whose logging probabilities nobody recorded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"offpolicy {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line; what the user can mend is one paragraph on stderr and exit code 1."""
    try:
        app()
    except OffPolicyError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"offpolicy: {error}", err=True)
        sys.exit(1)
