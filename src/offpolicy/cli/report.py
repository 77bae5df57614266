"""`offpolicy report`: one HTML page about a run."""

from pathlib import Path
from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config, Force
from offpolicy.errors import OffPolicyError


def report(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder with the results.json of a run.", show_default=False)
    ],
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write DIR/report.html, a page that opens offline, from DIR/results.json.

    Runs are made by `offpolicy learn --out DIR` and `offpolicy evaluate --out DIR`.
    """
    from offpolicy.cli.printing import facts, print_json
    from offpolicy.report import is_report, write_report

    folder = Path(directory).expanduser()
    results = folder / "results.json"
    if not results.is_file():
        raise OffPolicyError(f"{results} does not exist. Make it with offpolicy learn or offpolicy evaluate --out DIR.")
    page = folder / "report.html"
    if not is_report(page) and not force:
        raise OffPolicyError(f"{page} exists and is not a report of this command. Move it, or give --force.")
    write_report(results, page)
    written = {"report": str(page)}
    if as_json:
        print_json(written)
    else:
        facts("Written", written)
