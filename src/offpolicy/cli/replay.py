"""`offpolicy replay`: draw every recorded decision again."""

from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config, Since, Store, microseconds


def replay(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="The runs, policies or ONNX files that decided; former versions count too."
        ),
    ],
    store: Store = "events.db",
    since: Since = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Draw every recorded decision again and name the first that differs; exit code 1 if one does."""
    from offpolicy.cli.printing import facts, print_json
    from offpolicy.serving import EventStore, load_versions
    from offpolicy.serving import replay as run_replay

    policies = [policy for run in runs for policy in load_versions(run)]
    with EventStore(store, existing=True) as events:
        found = run_replay(events, policies, since=microseconds("since", since))
    said = found.to_json()
    if as_json:
        print_json(said)
    else:
        facts("Replayed", {name: value for name, value in said.items() if value not in (None, {})})
    if not found.agrees:
        raise typer.Exit(1)
