"""How long one exact epoch of β̂ and U of all rows take at 30,938 actions, against row-by-row autograd.

Run: python benchmarks/logging_policy.py [--json] [--quick]

The log has the Wiki10 shape: 11,146 contexts of 64 features, 100 rows each, 30,938 actions. The exact epoch goes over
all of it, with Adam, as `fit_logging_policy` does. The row-by-row epoch gives each row of a batch of 512 its own
log-softmax over all actions, by autograd and with the same Adam; a few of its batches are timed, in turns with the
exact epoch, and scaled to all rows. U is in the per-action form, from matrices to the number of every row.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from figures import Figure, arguments, extra_peak_bytes, output_of_child, seconds_in_turns
from offpolicy.datasets.synthetic import ExtremeShape, ExtremeWorld
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.models.epochs import ContextBatches, ascend
from offpolicy.models.normalisers import Full
from offpolicy.models.scorers import LinearScorer, linear_scorer
from offpolicy.policies import ScorerPolicy, tensor
from offpolicy.propensity import FittedModel
from offpolicy.threads import set_threads
from offpolicy.uncertainty import uncertainty_of

ROWS_PER_CONTEXT = 100
QUICK = ExtremeShape(n_contexts=1_000, n_actions=4_000)
BATCH_CONTEXTS, BATCH_ROWS = 348, 512  # what fit_logging_policy takes here, and what a row-by-row trainer takes
SLICE = 4  # batches of the row-by-row epoch that are timed
LEARNING_RATE = 0.02
THREADS = 2


def write_log(path: Path, shape: ExtremeShape) -> None:
    """Draw the world's log once, for this process and the one whose memory is measured."""
    world = ExtremeWorld.draw(0, shape)
    column = world.contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    np.savez(path, x=column.values, action=world.log(0, ROWS_PER_CONTEXT).action, n_actions=shape.n_actions)


def read_log(path: Path) -> LoggedData:
    with np.load(path) as saved:
        x, action, n_actions = saved["x"], saved["action"], int(saved["n_actions"])
    return LoggedData.from_arrays(
        contexts=FeatureTable({"x": EmbeddingColumn(x)}),
        context_index=np.repeat(np.arange(len(x)), ROWS_PER_CONTEXT),
        action=action,
        reward=np.zeros(len(action)),
        actions=n_actions,
    )


def exact_epoch(scorer: LinearScorer, log: LoggedData) -> Callable[[], None]:
    optimiser = torch.optim.Adam(scorer.parameters(), lr=LEARNING_RATE, weight_decay=1 / log.n_rows)
    batches = ContextBatches(log, BATCH_CONTEXTS)
    random = torch.Generator().manual_seed(0)

    def run() -> None:
        scorer.train()
        for batch in batches.epoch(random):
            ascend(scorer, optimiser, batch, torch.ones(len(batch.rows)), Full())

    return run


def slice_of_rows(scorer: LinearScorer, log: LoggedData) -> Callable[[], None]:
    """A few batches of rows drawn at random, every row with its own row of logits."""
    optimiser = torch.optim.Adam(scorer.parameters(), lr=LEARNING_RATE, weight_decay=1 / log.n_rows)
    states = scorer.states(log.contexts).detach()
    context, action = tensor(log.context_index).long(), tensor(log.action).long()
    random = torch.Generator().manual_seed(0)

    def run() -> None:
        for rows in torch.randint(log.n_rows, (SLICE, BATCH_ROWS), generator=random):
            weights, bias = scorer.actions()
            log_probs = torch.log_softmax(torch.addmm(bias, states[context[rows]], weights.T), 1)
            loss = -log_probs.gather(1, action[rows].unsqueeze(1)).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), 5.0)
            optimiser.step()

    return run


def uncertainty(scorer: LinearScorer, log: LoggedData) -> None:
    found = uncertainty_of(FittedModel(ScorerPolicy(scorer, log.actions), scorer), log, log, "per_action")
    if not bool(torch.isfinite(found).all()):
        raise SystemExit("Some U is not a number.")


def report_peak(path: Path) -> None:
    """In a fresh process: print by how much memory rises above the data's during an epoch and all U."""
    log = read_log(path)

    def job() -> None:
        scorer = linear_scorer(log)
        exact_epoch(scorer, log)()
        uncertainty(scorer, log)

    print(extra_peak_bytes(job))


def figures(path: Path, repeats: int, quick: bool) -> list[Figure]:
    log = read_log(path)
    scorer, plain = linear_scorer(log), linear_scorer(log)
    jobs = {"epoch": exact_epoch(scorer, log), "slice": slice_of_rows(plain, log)}
    times = {name: median(found) for name, found in seconds_in_turns(jobs, repeats, warm_ups=1).items()}
    by_rows = times["slice"] * log.n_rows / (SLICE * BATCH_ROWS)
    u_seconds = []
    for _ in range(max(1, repeats // 2)):
        start = time.perf_counter()
        uncertainty(scorer, log)
        u_seconds.append(time.perf_counter() - start)
    peak = int(output_of_child("--peak-of", str(path)))
    shape: dict[str, object] = {"contexts": log.n_contexts, "rows": log.n_rows, "actions": log.n_actions}
    scaled = shape | {"by_rows_seconds": round(by_rows, 1), "by_rows": f"{SLICE} batches of {BATCH_ROWS} rows, scaled"}
    limits = (None, None, None) if quick else (100.0, 20.0, 1.5)
    return [
        Figure("logging_policy.epoch_seconds", times["epoch"], facts=shape, note=f"{log.n_rows:,} rows"),
        Figure(
            "logging_policy.epoch_speedup",
            by_rows / times["epoch"],
            limits[0],
            "at least",
            facts=scaled,
            note=f"row by row: {by_rows:.0f} s, from {SLICE} batches of {BATCH_ROWS} rows, scaled",
        ),
        Figure(
            "logging_policy.uncertainty_epochs",
            median(u_seconds) / times["epoch"],
            limits[1],
            facts=shape | {"seconds": round(median(u_seconds), 2)},
            note=f"{median(u_seconds):.1f} s",
        ),
        Figure("logging_policy.extra_memory_gb", peak / 1e9, limits[2], facts=shape),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 contexts and 4,000 actions")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_threads(THREADS)
    if options.peak_of is not None:
        report_peak(options.peak_of)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.npz"
        write_log(path, QUICK if options.quick else ExtremeShape())
        for figure in figures(path, options.repeats, options.quick):
            figure.show(options.json)


if __name__ == "__main__":
    main()
