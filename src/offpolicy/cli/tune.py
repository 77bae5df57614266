"""`offpolicy tune`: search the hyper-parameters of a method, scored on held-out contexts."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.learn import Epochs, Scorer, learning_settings
from offpolicy.cli.options import (
    Address,
    AsJson,
    Config,
    EngineName,
    Invocation,
    LoggingModel,
    Seed,
    Settings,
    Workers,
    working,
)

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec


@reads_log("guardrail")
def tune(
    ctx: typer.Context,
    *,
    spec: "LogSpec",
    method: Annotated[str, typer.Option("--method", help="The method whose hyper-parameters to search.")] = "uips",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Settings to try.")] = 20,
    space: Annotated[str, typer.Option("--space", help="Search space: effective or paper.")] = "effective",
    scorer: Scorer = None,
    epochs: Epochs = None,
    set_: Settings = None,
    logging_model: LoggingModel = None,
    out: Annotated[str | None, typer.Option("--out", help="Folder in which finished trials are kept.")] = None,
    seed: Seed = 0,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Search the hyper-parameters and the learning rate of a method.

    Every trial learns on one part of the log and is scored on the other. With --out, rerun a killed
    search to resume it. The settings found are ready for `offpolicy learn --set NAME=VALUE`. Needs the extra `tuning`.
    """
    from offpolicy.cli.printing import lines, print_json, table
    from offpolicy.workflows import run_tune

    options = Invocation.of(ctx).options(seed, 0.95, logging_model, False, False)
    changes = learning_settings(scorer, epochs, set_)
    more: dict[str, Any] = {"trials": trials, "space": space, "settings": changes, "out": out}
    with working(ctx) as started:
        results, notes = run_tune(spec, method, replace(options, engine=started), **more)
    if as_json:
        print_json(results)
        return
    lines("Noted", notes)
    names = list(dict.fromkeys(name for trial in results["trials"] for name in trial))
    first = results["trials"][:10]
    table(f"Best of {len(results['trials'])} trials", names, [[trial.get(name) for name in names] for trial in first])
    flags = " ".join(f"--set {name}={value}" for name, value in results["settings"].items())
    lines("Learn with", [f"offpolicy learn ... --method {results['method']} {flags}"])
