"""`offpolicy demo`: the main job, from a log file to a report, on a synthetic log with known ground truth."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from offpolicy.cli import printing
from offpolicy.cli.options import Config

if TYPE_CHECKING:
    from offpolicy.workflows import DemoResult, Propensities


def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the world and of the log.")] = 0,
    n_contexts: Annotated[int, typer.Option(min=100, help="Contexts to draw.")] = 5_000,
    n_actions: Annotated[int, typer.Option(min=2, max=1000, help="Actions to choose among.")] = 50,
    out: Annotated[str, typer.Option(help="Folder for the log, the policies and the report.")] = "offpolicy-demo",
    all_: Annotated[bool, typer.Option("--all", help="Show every estimator, not the ten that matter.")] = False,
    config: Config = None,
) -> None:
    """Write a log without propensities, inspect it, learn, evaluate and report, and compare with the known truth."""
    from offpolicy.report import write_report
    from offpolicy.workflows import run_demo

    result = run_demo(out, seed, n_contexts, n_actions)
    page = write_report(result.evaluated, result.evaluated / "report.html")
    _show(result, all_)
    printing.facts("The report, to open in a browser", {"report": str(page)})


def _show(result: "DemoResult", every: bool) -> None:
    from offpolicy.workflows import SHOWN

    shown = ("source", "rows", "contexts", "actions", "actions_never_logged", "reward_mean", "propensities_recorded")
    printing.facts("A synthetic log", {name: result.inspected["log"][name] for name in shown})
    printing.lines("What to make of it", _wrapped(result.inspected["advice"]))
    _show_propensities(result.propensities)
    rows = [
        (
            row.name,
            f"{row.fitted:.4f}",
            f"{row.fitted - result.truth:+.4f}",
            f"{row.mean_weight:.3f}",
            f"{row.known:.4f}",
            f"{row.known - result.truth:+.4f}",
        )
        for row in result.estimates
        if every or row.name in SHOWN
    ]
    title = f"What is the target policy worth? Truth: {result.truth:.4f}, logging: {result.logging:.4f}"
    printing.table(title, ("estimator", "with β̂", "error", "mean w", "with β*", "error"), rows)
    learned = [
        (
            one.label,
            f"{one.truth:.4f}",
            f"{one.found.value:.4f}",
            f"{one.found.interval.low:.3f} – {one.found.interval.high:.3f}",
            "–" if one.improvement is None else f"{one.improvement:.0%}",
            one.found.preflight.verdict.answer,
        )
        for one in result.learned
    ]
    title = "Policies learned on 70 % of the contexts, evaluated on the others"
    printing.table(title, ("method", "truth", "estimate", "95 % interval", "better", "verdict"), learned)
    printing.lines("Notes", _wrapped(result.notes))
    printing.lines("The same on your own file", _wrapped(result.commands, "    "))


def _wrapped(texts: Iterable[str], indent: str = "") -> Iterator[str]:
    for text in texts:
        yield from textwrap.wrap(text, 76, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _show_propensities(propensities: "Propensities") -> None:
    quality, band = propensities.quality, propensities.calibration
    printing.facts(
        f"The logging policy β̂, on {quality.rows:,} rows held out",
        {
            "log-likelihood": f"{quality.log_likelihood:.3f} (uniform {quality.uniform_log_likelihood:.3f}, "
            f"popularity {quality.popularity_log_likelihood:.3f}, the truth {propensities.true_log_likelihood:.3f})",
            "calibration error": f"{quality.calibration_error or 0.0:.1%} of the mass in the wrong bin",
            "mean weight": f"{quality.mean_weight:.3f} ± {quality.mean_weight_error:.3f} (1 where β̂ is right)",
        },
    )
    printing.facts(
        "Its uncertainty U, per action, over all rows",
        {
            "mean U": f"{propensities.mean_uncertainty:.3f}",
            "γ": f"{band.gamma:.2f}, by {band.method}, for {band.level:.0%} bands β̂e^±γU",
            "bands that hold the true β*": f"{propensities.coverage:.1%}",
        },
    )
