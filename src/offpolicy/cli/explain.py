"""`offpolicy explain`: what a run found, in plain sentences."""

from pathlib import Path
from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config
from offpolicy.errors import OffPolicyError


def explain(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of a run, or its results.json.", show_default=False)
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Explain this policy; the best candidate unless named.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say in plain sentences what a run found: the answer, what to do, how sure it is, what would flip it.

    The sentences come from RUN/results.json alone, and are those of the report's first screen.
    """
    from offpolicy.cli.printing import ANSWERS, lines, print_json, styled
    from offpolicy.results import explain as explained
    from offpolicy.results import parse_results, read_results

    path = Path(run).expanduser()
    results = parse_results(read_results(path), str(path))
    found = None if results.evaluation is None else explained(results.evaluation, policy)
    if found is None:
        raise OffPolicyError(
            f"{path} holds no evaluation, so there is nothing to explain. Evaluate a policy on its log with offpolicy "
            "evaluate --out DIR."
        )
    if as_json:
        print_json(found.to_json())
        return
    styled(found.title, ANSWERS[found.badge.lower()])
    lines("In numbers", [found.lead])
    for about, sentences in found.parts.items():
        lines(about, sentences)
