"""Do bands [β̂e^{−γU}, β̂e^{γU}] with γ from the data cover the true β* as often as they promise?

Run: python benchmarks/uncertainty_coverage.py [--json] [--quick] [--seeds 5] [--first 0]

In worlds whose β* is known, one row a context, propensities hidden from the fit. `linear`: β* is a linear softmax, as
the model supposes. `bent`: its logits are linear in x + 0.4(|x| − E|x|), which the linear model cannot express. Each
cell is the share of logged rows whose β* the band covers, averaged over worlds; the worst world stands beside it.
`coverage_of_u.worst_error` is the largest distance from nominal, in points, over forms, sizes and levels of the
default method in the linear worlds.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from figures import Figure, arguments
from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.engine import Job, WorkerPool
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.policies import tensor
from offpolicy.propensity import fit_logging_policy
from offpolicy.threads import set_threads
from offpolicy.uncertainty import (
    FORMS,
    METHODS,
    Form,
    bootstrap_errors,
    calibrate_gamma,
    covered,
    held_out_errors,
    row_uncertainty,
)
from offpolicy.uncertainty.calibration import Method

LEVELS = (0.80, 0.90, 0.95)
WORLDS = ("linear", "bent")
DEFAULT: Method = "bootstrap"
LIMIT = 4.0  # points
BEND = 0.4
ENSEMBLE, ENSEMBLE_ROWS = "bootstrap, auto", 3_000
"""The ensemble's rows in the table, and the largest log they are computed for."""


@dataclass(frozen=True)
class Task:
    world: str
    rows: int
    seed: int


@dataclass(frozen=True)
class Cell:
    task: Task
    method: str
    form: Form
    level: float
    coverage: float
    gamma: float
    width: float


def draw(task: Task) -> LoggedData:
    """A log with its propensities."""
    world = LinearSoftmaxWorld.draw(task.seed)
    if task.world == "linear":
        return world.log(task.seed, task.rows)
    contexts = world.contexts(task.seed, task.rows)
    column = contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    bent = column.values + BEND * (np.abs(column.values) - (2 / np.pi) ** 0.5)
    probs = world.logging_policy.log_probs(FeatureTable({"x": EmbeddingColumn(bent.astype(np.float32))})).exp()
    action = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(task.seed))
    return LoggedData.from_arrays(
        contexts=contexts,
        context_index=np.arange(task.rows),
        action=action.flatten().numpy(),
        reward=np.zeros(task.rows),
        actions=probs.shape[1],
        logging_prob=probs.gather(1, action).flatten().numpy(),
    )


def cells(task: Task) -> list[Cell]:
    """Fit once, find the errors of each method once, and judge every form and level."""
    set_threads(1)
    log = draw(task)
    assert log.logging_prob is not None
    truth = tensor(log.logging_prob).log()
    whole = fit_logging_policy(log.without_propensities(), "linear")
    halves = fit_logging_policy(log.without_propensities(), "linear", folds=2)
    errors = {"held_out": held_out_errors(whole), "bootstrap": bootstrap_errors(whole), "binned": None}
    found = []
    for method, form in itertools.product(METHODS, FORMS):
        fitted = halves if method == "binned" else whole
        u = row_uncertainty(fitted, form)
        off = fitted.row_log_prob - truth
        for level in LEVELS:
            band = calibrate_gamma(fitted, form, level, uncertainty=u, method=method, errors=errors[method])
            found.append(Cell(task, method, form, level, covered(u, band.gamma, off), band.gamma, band.width))
    return found + (ensemble_cells(task, log, truth) if task.rows <= ENSEMBLE_ROWS else [])


def ensemble_cells(task: Task, log: LoggedData, truth: Tensor) -> list[Cell]:
    """The default β̂ with the default form, calibrated by bootstrap as the others are."""
    fitted = fit_logging_policy(log.without_propensities(), "auto")
    u, errors = row_uncertainty(fitted), bootstrap_errors(fitted, draws=5)
    found = []
    for level in LEVELS:
        band = calibrate_gamma(fitted, level=level, uncertainty=u, errors=errors)
        coverage = covered(u, band.gamma, fitted.row_log_prob - truth)
        found.append(Cell(task, ENSEMBLE, "per_action", level, coverage, band.gamma, band.width))
    return found


@dataclass(frozen=True)
class Summary:
    world: str
    rows: int
    method: str
    form: Form
    level: float
    coverage: float
    worst: float
    """Coverage in the world where it is furthest from nominal."""
    gamma: float
    width: float

    @property
    def error(self) -> float:
        return 100 * abs(self.coverage - self.level)


def summaries(every: list[Cell], sizes: tuple[int, ...]) -> Iterator[Summary]:
    for world, rows, method, form, level in itertools.product(WORLDS, sizes, (*METHODS, ENSEMBLE), FORMS, LEVELS):
        mine = [c for c in every if (c.task.world, c.task.rows) == (world, rows)]
        mine = [c for c in mine if (c.method, c.form, c.level) == (method, form, level)]
        if not mine:
            continue
        worst = max((c.coverage for c in mine), key=lambda found: abs(found - level))
        coverage, gamma, width = (mean(getattr(c, name) for c in mine) for name in ("coverage", "gamma", "width"))
        yield Summary(world, rows, method, form, level, coverage, worst, gamma, width)


def show_table(found: list[Summary]) -> None:
    """Markdown: coverage in per cent (in the worst world), γ and mean half-width at 95 %."""
    print("| world | rows | method | form | 80 % | 90 % | 95 % | γ at 95 % | half-width |")
    print("|---|---|---|---|---|---|---|---|---|")
    for _, group in itertools.groupby(found, key=lambda s: (s.world, s.rows, s.method, s.form)):
        three = list(group)
        first, last = three[0], three[-1]
        shares = " | ".join(f"{100 * s.coverage:.1f} ({100 * s.worst:.0f})" for s in three)
        place = f"{first.world} | {first.rows:,} | {first.method} | {first.form}"
        print(f"| {place} | {shares} | {last.gamma:.2f} | {last.width:.2f} |")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="two linear worlds of 1,000 rows")
    parser.add_argument("--seeds", type=int, default=5, help="worlds of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of them")
    options = parser.parse_args()
    sizes = (1_000,) if options.quick else (3_000, 30_000)
    worlds, seeds = (WORLDS[:1], 2) if options.quick else (WORLDS, options.seeds)
    drawn = range(options.first, options.first + seeds)
    tasks = [Task(*each) for each in itertools.product(worlds, sizes, drawn)]
    with WorkerPool(2) as pool:
        every = [
            cell
            for done in pool.work([Job(cells, (task,), name=str(task)) for task in reversed(tasks)])
            for cell in done.result
        ]
    found = list(summaries(every, sizes))
    if options.json:
        for s in found:
            facts = {"world": s.world, "rows": s.rows, "method": s.method, "form": s.form, "level": s.level}
            facts |= {"worst_world": round(s.worst, 3), "gamma": round(s.gamma, 3), "width": round(s.width, 4)}
            Figure("coverage_of_u.coverage", s.coverage, facts=facts).show(True)
    else:
        show_table(found)
    for world in worlds:
        for method in (*METHODS, ENSEMBLE):
            worst = max(s.error for s in found if (s.world, s.method) == (world, method))
            if (world, method) == (WORLDS[0], DEFAULT):
                limit = None if options.quick else LIMIT
                Figure("coverage_of_u.worst_error", worst, limit, facts={"worlds": seeds}, note="points").show(
                    options.json
                )
            else:
                Figure(f"coverage_of_u.worst_error_{method.replace(', ', '_')}_{world}", worst, note="points").show(
                    options.json
                )


if __name__ == "__main__":
    main()
