"""`offpolicy collect`: the log of what was served, with its propensities."""

from dataclasses import asdict
from typing import Annotated

import typer

from offpolicy.cli.options import AsJson, Config, Force, Since, Store, microseconds, seconds


def collect(
    out: Annotated[str, typer.Option("--out", help="Parquet file to write.", show_default=False)],
    store: Store = "events.db",
    since: Since = None,
    horizon: Annotated[
        str, typer.Option("--horizon", help="Time after a decision in which its rewards count: 90s, 15m, 1h, 7d.")
    ] = "1h",
    rule: Annotated[str, typer.Option("--rewards", help="Of several rewards: first, last, sum or max.")] = ("first"),
    default_reward: Annotated[
        float, typer.Option("--default-reward", help="Reward of a decision that got none within the horizon.")
    ] = 0.0,
    everything: Annotated[
        bool, typer.Option("--all", help="Also decisions that were not drawn by chance or have no known probability.")
    ] = False,
    pending: Annotated[
        bool, typer.Option("--pending", help="Also decisions within the horizon, marked and without reward.")
    ] = False,
    config: Config = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the served decisions joined with their rewards as a log that `evaluate --propensity` and `learn` take."""
    from offpolicy.cli.printing import facts, print_json
    from offpolicy.serving import EventStore, Join
    from offpolicy.serving import collect as run_collect

    join = Join.checked(seconds("horizon", horizon), rule, default_reward)
    start = microseconds("since", since)
    with EventStore(store, existing=True) as events:
        found = run_collect(
            events, out, join=join, since=start, everything=everything, keep_pending=pending, force=force
        )
    written = {"out": out} | asdict(found)
    if as_json:
        print_json(written)
    else:
        facts("Collected", {name: value for name, value in written.items() if value not in (0, None)})
