"""`offpolicy demo`: the main job on an embedded synthetic log whose truth is known."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from offpolicy.experiments.demo import DemoResult


def demo(
    seed: Annotated[int, typer.Option(help="Seed of the world and of the log.")] = 0,
    contexts: Annotated[int, typer.Option(min=100, help="Contexts to draw.")] = 5_000,
    actions: Annotated[int, typer.Option(min=2, help="Actions to choose among.")] = 50,
) -> None:
    """Draw a log with hidden propensities, summarise it, and compare every estimate with the known truth."""
    from offpolicy.experiments.demo import run_demo

    _show(run_demo(seed, contexts, actions))


def _show(result: "DemoResult") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print("[bold]A synthetic log[/bold] (propensities hidden)")
    for fact, what in result.summary.items():
        console.print(f"  {fact.replace('_', ' ')}: {what}", markup=False, highlight=False)
    table = Table(title=f"What is the target policy worth?  Truth: {result.truth:.4f}, logging: {result.logging:.4f}")
    for column in ("estimator", "estimate", "error", "mean weight"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for row in result.estimates:
        error = row.value - result.truth
        table.add_row(row.name, f"{row.value:.4f}", f"{error:+.4f}", f"{row.mean_weight:.3f}")
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False)
