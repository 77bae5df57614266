"""The command line: one file per command, argument parsing and printing only."""

import codecs
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from offpolicy import __version__
from offpolicy.cli import (
    collect,
    convert,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    inspect,
    learn,
    prepare,
    recommend,
    replay,
    report,
    reproduce,
    serve,
    tune,
)
from offpolicy.errors import LogError, OffPolicyError, printable
from offpolicy.progress import command_progress

app = typer.Typer(
    name="offpolicy",
    help="Learn and evaluate policies from logs whose logging probabilities nobody recorded.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("inspect")(inspect.inspect)
app.command("doctor")(doctor.doctor)
app.command("prepare")(prepare.prepare)
app.command("learn")(learn.learn)
app.command("evaluate")(evaluate.evaluate)
app.command("tune")(tune.tune)
app.command("recommend")(recommend.recommend)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("export")(export.export)
app.command("convert")(convert.convert)
app.command("serve")(serve.serve)
app.command("collect")(collect.collect)
app.command("replay")(replay.replay)
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
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing about progress.")] = False,
) -> None:
    """Options of every command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error the user can fix is one paragraph on stderr and exit code 1.

    `--debug` may be given anywhere and shows the traceback instead; `--quiet` stops bars and lines about progress.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug, quiet = "--debug" in given, "--quiet" in given
    _show_any_letter()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave a busy machine's cores to others
    try:
        with command_progress(quiet=quiet):
            code = app([word for word in given if word not in ("--debug", "--quiet")], standalone_mode=False)
    except Exception as error:
        message = _paragraph(error)
        if debug or message is None:
            raise
        typer.echo(message, err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


PLAIN = {"±": "+/-", "−": "-", "–": "-", "…": "...", "β": "beta", "γ": "gamma", "Γ": "Gamma", "π": "pi", "Σ": "sum"}
PLAIN |= {"≤": "<=", "≥": ">=", "×": "x", "·": "*", "\u0302": "", "φ": "phi", "κ": "kappa", "∞": "infinity"}


def _show_any_letter() -> None:
    """Where the terminal has no letters but ASCII's, write others in words, or as question marks."""

    def in_words(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return "".join(PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end

    codecs.register_error("in_words", in_words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="in_words")


def _paragraph(error: Exception) -> str | None:
    """The message for an error that the user can fix; None for any other."""
    if isinstance(error, LogError):
        return f"offpolicy: {error.typed()}"
    if isinstance(error, OffPolicyError):
        return f"offpolicy: {printable(str(error))}"
    if type(error).__name__ == "Abort":
        return "offpolicy: stopped."
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)
    if hasattr(error, "format_message"):  # a wrong command, option or value
        message = printable(error.format_message())
        return f"offpolicy: {message}{'' if message.endswith(('.', '?')) else '.'} See offpolicy --help."
    if isinstance(error, OSError):
        return f"offpolicy: {printable(str(error))}. Check the path, your permission and the space on the disk."
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return f"offpolicy: {error} Write the path without ~."
    return None
