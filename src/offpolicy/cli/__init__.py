"""The command line: one file per command, argument parsing and printing only."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from offpolicy import __version__
from offpolicy.cli import convert, demo, evaluate, export, inspect, learn, recommend, report, reproduce, tune
from offpolicy.errors import OffPolicyError

app = typer.Typer(
    name="offpolicy",
    help="Learn and evaluate policies from logs whose logging probabilities nobody recorded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("inspect")(inspect.inspect)
app.command("learn")(learn.learn)
app.command("evaluate")(evaluate.evaluate)
app.command("tune")(tune.tune)
app.command("recommend")(recommend.recommend)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("convert")(convert.convert)
app.command("reproduce")(reproduce.reproduce)
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error the user can fix is one paragraph on stderr and exit code 1.

    `--debug` may be given anywhere and shows the traceback instead.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave a busy machine's cores to others
    try:
        code = app([word for word in given if word != "--debug"], standalone_mode=False)
    except Exception as error:
        message = _paragraph(error)
        if debug or message is None:
            raise
        typer.echo(message, err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _paragraph(error: Exception) -> str | None:
    """The message for an error that the user can fix; None for any other."""
    if isinstance(error, OffPolicyError):
        return f"offpolicy: {error}"
    if type(error).__name__ == "Abort":
        return "offpolicy: stopped."
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    if hasattr(error, "format_message"):  # a wrong command, option or value
        return f"offpolicy: {error.format_message()} See offpolicy --help."
    if isinstance(error, OSError):
        return f"offpolicy: {error}. Check the path, your permission and the space on the disk."
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return f"offpolicy: {error} Write the path without ~."
    return None
