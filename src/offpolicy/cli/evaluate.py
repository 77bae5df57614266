"""`offpolicy evaluate`: the values of policies on a log, with intervals and a verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offpolicy.cli.columns import reads_log
from offpolicy.cli.options import (
    Address,
    AsJson,
    Config,
    EngineName,
    Force,
    Format,
    HeldOutAfter,
    Invocation,
    Level,
    LoggingModel,
    PrintFormat,
    PropensityModels,
    Seed,
    Strict,
    Workers,
    working,
)
from offpolicy.errors import ParameterError

if TYPE_CHECKING:
    from offpolicy.workflows import LogSpec

INTERVAL_NAMES = ("normal", "bootstrap", "empirical_bernstein", "betting", "empirical_likelihood")
"""For completion, which must not load torch."""


@reads_log()
def evaluate(
    ctx: typer.Context,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="[NAME=]WHAT",
            help="A policy: the folder of a saved one or of a run, a file of top-k lists or of (key, action, "
            "probability) rows, an ONNX file, module:name of a Python function or classifier, a column with π(a|x) of "
            "the logged action (column:NAME where something else has that name), or uniform; repeatable.",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="[NAME=]WHAT", help="A policy to compare the others with; as --policy."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="COLUMN",
            help="A column by which files of policies are joined to the log; repeatable. Without any, what both have.",
        ),
    ] = None,
    spec: "LogSpec",
    logging_model: LoggingModel = None,
    level: Level = 0.95,
    propensity_models: PropensityModels = True,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="COLUMN",
            help="Also by the values of a column, by time (four periods), or by hour, weekday, day, week or month; "
            "repeatable.",
        ),
    ] = None,
    held_out_after: HeldOutAfter = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", help="An estimator to list beside the result, or all; repeatable."),
    ] = None,
    interval: Annotated[
        list[str] | None,
        typer.Option(
            "--interval",
            autocompletion=lambda: list(INTERVAL_NAMES),
            help="An interval of every listed estimator: normal (default), bootstrap, empirical_bernstein, betting, "
            "empirical_likelihood; repeatable.",
        ),
    ] = None,
    gamma: Annotated[
        str, typer.Option("--gamma", help="γ, how many standard deviations of β̂ count: a number, or calibrated.")
    ] = "2",
    refits: Annotated[
        int, typer.Option("--refits", min=0, help="Also an interval from this many refits of β̂ to resampled rows.")
    ] = 0,
    guaranteed: Annotated[
        bool,
        typer.Option("--guaranteed", help="Also an interval with a proof; takes some 40 fits of the logging model."),
    ] = False,
    action_groups: Annotated[
        str | None,
        typer.Option(
            "--action-groups", metavar="COLUMN", help="Also estimators that weigh groups: a column of --actions."
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="Also how strong hidden information must have been; refits without columns."
        ),
    ] = False,
    user_model: Annotated[
        str,
        typer.Option(
            "--user-model",
            help="How users look at slates: any, cascade (from the top), independent (each position by itself), or "
            "auto, the weakest assumption that the log can carry.",
        ),
    ] = "auto",
    out: Annotated[str | None, typer.Option("--out", help="Folder for results.json.")] = None,
    seed: Seed = 0,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    config: Config = None,
    strict: Strict = False,
    force: Force = False,
    as_json: AsJson = False,
    form: PrintFormat = Format.table,
) -> None:
    """Estimate what policies would have earned, against the logging policy.

    The columns of a saved policy need not be named again. Rows that one of the policies was learned from are left out,
    also in a later version of its log. A policy given with --compare is a reference and never recommended.
    """
    from offpolicy.cli.printing import show_run
    from offpolicy.evaluation import Options
    from offpolicy.workflows import run_evaluate

    named = named_policies(policy or ())
    if not named:
        raise ParameterError(
            "Name at least one policy with --policy: a folder, a file, a column of the log, or uniform."
        )
    others = named_policies(compare or ())
    twice = next((name for name in others if name in named), None)
    if twice is not None:
        raise ParameterError(f"--policy and --compare both name {twice!r}. Give one of them another name.")
    options = Invocation.of(ctx).options(seed, level, logging_model, propensity_models, force)
    asked_for = Options(
        estimators=_estimators(estimator or (), action_groups is not None),
        intervals=tuple(interval or ("normal",)),
        gamma=_gamma(gamma),
        refits=refits,
        action_groups=action_groups,
        interval="guaranteed" if guaranteed else "auto",
        by=tuple(by or ()),
        sensitivity_columns=sensitivity,
        user_model=user_model,
    )
    more: dict[str, Any] = {
        "compare_with": others,
        "asked_for": asked_for,
        "held_out_after": held_out_after,
        "out": out,
    }
    with working(ctx) as started:
        run = run_evaluate(replace(spec, key=tuple(key or ())), named, replace(options, engine=started), **more)
    show_run(run, Format.json if as_json else form)
    if strict and run.refused:
        raise typer.Exit(2)


def _estimators(given: Sequence[str], grouped: bool) -> tuple[str, ...]:
    """The estimators asked for; `all` of them, or the usual ones, with those of groups where there are groups."""
    from offpolicy.estimators import ESTIMATORS
    from offpolicy.evaluation import DEFAULT_ESTIMATORS, GROUPED

    chosen = tuple(ESTIMATORS) if "all" in given else tuple(dict.fromkeys(given)) or DEFAULT_ESTIMATORS
    return tuple(dict.fromkeys((*chosen, *(GROUPED if grouped else ()))))


def _own_name(what: str) -> str:
    path = Path(what)
    if path.is_dir() or path.suffix == "":
        return (path.name or what).rpartition(":")[2]
    return path.name.partition(".")[0] if path.exists() else path.name.rpartition(":")[2]


def _gamma(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def named_policies(given: Iterable[str]) -> dict[str, str]:
    """[NAME=]WHAT as names and what they name; without a name, a folder, file, function or column gives its own."""
    named: dict[str, str] = {}
    for one in given:
        name, equals, what = one.partition("=")
        if not equals or not name or Path(one).is_dir():
            name, what = _own_name(one), one
        if name in named:
            raise ParameterError(f"Two policies are called {name!r}. Name them, as in --policy first={what!r}.")
        if not what:
            raise ParameterError(f"--policy and --compare take [NAME=]WHAT, but one is {one!r}.")
        named[name] = what
    return named
