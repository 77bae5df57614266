"""`offpolicy inspect`: what a log holds, what was inferred, and whether it can answer questions at all."""

from typing import TYPE_CHECKING, Any

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import AsJson, Config, Seed

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec


@reads_log()
def inspect(
    ctx: typer.Context,
    *,
    spec: "LogSpec",
    seed: Seed = 0,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what a log holds and whether it can answer questions at all.

    Columns that are not named get their roles from their names: action, item_id, arm, ...; reward, click, ...;
    propensity, pscore, ...; timestamp; every other column is context, unless it looks like an outcome, an id, a
    probability, a time after the decision or a description of the action. Where values are missing or out of range, the
    log is looked at as the options that are printed would have it; the other commands ask for them.
    """
    from offpolicy.workflows import run_inspect

    inspected = run_inspect(spec, seed)
    if as_json:
        from offpolicy.cli.printing import print_json

        print_json(inspected)
    else:
        _show(inspected)


def _show(inspected: dict[str, Any]) -> None:
    from offpolicy.cli.printing import facts, lines, table

    log, about, model = inspected["log"], inspected["facts"], inspected["logging_model"]
    listed = ("columns", "source", "context_features", "action_features")
    facts(f"The log {log['source']}", {name: log[name] for name in log if name not in listed})
    table("Columns", ("column", "role or kind"), list(log["columns"].items()))
    lines("Inferred", inspected["inferred"])
    lines("Problems, fixed for this look", inspected["problems"])
    facts("Before any policy", about)
    names = ("model", "log_likelihood", "popularity_log_likelihood", "uniform_log_likelihood", "calibration_error")
    facts(
        f"A quick model of the logging policy ({inspected['looked_at']})",
        {name: model[name] for name in (*names, "mean_weight", "mean_weight_error", "certain_rows")},
    )
    if inspected["audit"] is not None:
        hidden = ("deciles", "advice")
        facts("Recorded propensities", {k: v for k, v in inspected["audit"].items() if k not in hidden})
    lines("What to make of it", inspected["advice"])
    if inspected["options"]:
        lines("Give these options to the other commands", [" ".join(inspected["options"])])
