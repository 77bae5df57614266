"""`offpolicy export`: a policy as one ONNX file."""

from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config, Force


def export(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of a run or of a saved policy.", show_default=False)
    ],
    onnx: Annotated[str, typer.Option("--onnx", help="File to write.", show_default=False)],
    check: Annotated[
        str | None, typer.Option("--check", help="File of contexts on which the export must agree with the library.")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Actions that the export ranks for each context.")] = 10,
    candidates: Annotated[
        bool, typer.Option("--candidates", help="Also take the candidates of each context and choose among them.")
    ] = False,
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a policy as ONNX, with the encoding of the columns and all ids inside. Needs the extra `onnx`."""
    from offpolicy.cli.printing import facts, print_json
    from offpolicy.workflows import run_export

    exported = run_export(directory, onnx, check=check, k=k, candidates=candidates, force=force)
    if as_json:
        print_json(exported)
    else:
        facts("Exported", exported)
