"""`offpolicy prepare`: logs of any size as a folder that every command takes in the place of a log."""

from typing import TYPE_CHECKING, Annotated

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import AsJson, Config

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec


@reads_log()
def prepare(
    ctx: typer.Context,
    *,
    log: Annotated[list[str], typer.Argument(help="Log files or globs, all of one format.", show_default=False)],
    out: Annotated[str, typer.Option("--out", help="Folder to write: the store.", show_default=False)],
    shards: Annotated[
        int,
        typer.Option("--shards", min=1, help="Parts of the store; each, some eight times over, must fit the memory."),
    ] = 64,
    append: Annotated[
        bool, typer.Option("--append", help="Add the files to the store; its shards stay as they are.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="COLUMN",
            help="A column to keep beside the rows: more rewards, keys, probabilities of policies; repeatable.",
        ),
    ] = None,
    spec: "LogSpec",
    config: Config = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a store that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write log files, however large, as a store: a folder that every command takes in the place of a log.

    A store is read shard by shard, so that memory is bounded whatever the number of rows. Rerun a killed command to
    resume it; tomorrow's files are added with --append, for which no columns need be named.
    """
    from dataclasses import replace

    from offpolicy.cli.options import Invocation
    from offpolicy.cli.printing import facts, lines, print_json
    from offpolicy.log import Preparing, byte_count
    from offpolicy.workflows import run_prepare

    limit = byte_count("2GB") if spec.memory is None else spec.memory
    command = Invocation.of(ctx).command
    how = Preparing(shards, limit, append, force, command, spec.drop_duplicates, spec.winsorise)
    found, notes = run_prepare(replace(spec, keep=tuple(keep or ())), log, out, how)
    if as_json:
        print_json(found | {"notes": notes})
        return
    lines("Noted", notes)
    facts("Prepared", found)
