"""What an epoch of learning costs: UIPS beside likelihood, beside row-by-row autograd, in memory, and as data grow.

Run: python benchmarks/learning.py [--json] [--quick] [--growth]

The shape is that of the paper's synthetic experiment: 11,146 contexts × 100 rows, 30,938 actions, d = 64, true log β*
and a made-up U given, 512 contexts a step. `--quick` takes 1,500 contexts. Steps of UIPS and likelihood take turns; the
time of an epoch is the lower quartile of its steps (other work on the machine only ever adds) times their number. The
row-by-row epoch (batches of 512 rows, each with its own full softmax, by plain autograd) is a slice measured in between
and scaled to all rows. `--growth` prints the time of a UIPS epoch against rows a context, actions and contexts instead,
with a reward in every row so that none can be left out.
"""

import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import torch
from torch import Tensor

import figures
from offpolicy.datasets.synthetic import ExtremeShape, ExtremeWorld
from offpolicy.estimators import weight
from offpolicy.learning import Trainer, prepare_training
from offpolicy.log import LoggedData
from offpolicy.policies import RecordedPolicy
from offpolicy.threads import set_threads

THREADS = 2
CONTEXTS, QUICK_CONTEXTS, ACTIONS, D, ROWS = 11_146, 1_500, 30_938, 64, 100
HYPER = {"lam": 20.0, "gamma": 2.0, "eta1": 1.0, "eta2": 1.0}
BATCH_ROWS, SLICE_EVERY = 512, 4
LIMITS = {"uips_over_ce": 1.15, "epoch_speedup": 100.0, "extra_memory_gb": 1.5}


def uncertainty_of(log: LoggedData) -> Tensor:
    """A made-up U between 0 and 0.5."""
    return torch.rand(log.n_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2


def training(log: LoggedData, method: str) -> Trainer:
    """A training that is ready for its first step."""
    given: dict[str, Any] = {}
    if method == "uips":
        given = {"logging_policy": RecordedPolicy(log.actions), "uncertainty": uncertainty_of(log), **HYPER}
    return prepare_training(log, method, epochs=1, batch_contexts=512, show_progress=False, **given)


def epoch_seconds(log: LoggedData, method: str) -> float:
    """Seconds of one epoch, set-up apart."""
    trainer = training(log, method)
    start = time.perf_counter()
    for _ in trainer.steps(0):
        pass
    return time.perf_counter() - start


class RowByRow:
    """UIPS as one would write it: a batch is rows, and every row has a softmax of its own."""

    def __init__(self, log: LoggedData) -> None:
        self.states = torch.from_numpy(np.array(log.contexts["x"].values))  # type: ignore[union-attr]
        self.context = torch.from_numpy(log.context_index.astype(np.int64))
        self.action = torch.from_numpy(log.action.astype(np.int64))
        self.reward = torch.from_numpy(log.reward.astype(np.float32))
        assert log.logging_prob is not None
        self.log_logging = torch.from_numpy(np.log(log.logging_prob)).float()
        self.uncertainty = uncertainty_of(log).float()
        self.weights = torch.zeros(log.n_actions, D, requires_grad=True)
        self.bias = torch.zeros(log.n_actions, requires_grad=True)
        self.optimiser = torch.optim.Adam([self.weights, self.bias], lr=0.01)
        self.order = torch.randperm(log.n_rows, generator=torch.Generator().manual_seed(0))
        self.done = 0

    def batch(self) -> None:
        """One step."""
        rows = self.order[self.done : self.done + BATCH_ROWS]
        self.done += BATCH_ROWS
        log_probs = torch.log_softmax(torch.addmm(self.bias, self.states[self.context[rows]], self.weights.T), 1)
        log_prob = log_probs.gather(1, self.action[rows, None]).squeeze(1)
        ratio = (log_prob - self.log_logging[rows]).detach()
        scale = weight("uips", log_ratio=ratio, uncertainty=self.uncertainty[rows], **HYPER)
        self.optimiser.zero_grad()
        loss = -(scale * self.reward[rows] * log_prob).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()


def compare(log: LoggedData, epochs: int, as_json: bool) -> None:
    """The two ratios: steps of UIPS, of likelihood and of row-by-row UIPS take turns, so all meet the same spells."""
    naive = RowByRow(log)
    trainers = {method: training(log, method) for method in ("ce", "uips")}
    for trainer in trainers.values():
        next(trainer.steps(0))
    naive.batch()
    seconds: dict[str, list[float]] = {"ce": [], "uips": [], "naive": []}
    batches = len(trainers["ce"].batches)
    for epoch in range(epochs):
        passes = {method: trainer.steps(epoch) for method, trainer in trainers.items()}
        for number in range(batches - 1):  # the last batch is smaller
            jobs = {method: functools.partial(next, steps) for method, steps in passes.items()}
            order = ("ce", "uips") if number % 2 else ("uips", "ce")
            turn: dict[str, Callable[[], object]] = {method: jobs[method] for method in order}
            turn |= {"naive": naive.batch} if number % SLICE_EVERY == 0 else {}
            for name, taken in figures.seconds_in_turns(turn, 1, 0).items():
                seconds[name] += taken
    typical: dict[str, float] = {name: quantiles(values, n=4)[0] for name, values in seconds.items()}
    for method in ("ce", "uips"):
        typical[method] *= log.n_contexts / 512
    rewarded = float((log.reward > 0).mean())
    naive_epoch = typical["naive"] * log.n_rows / BATCH_ROWS
    shape: dict[str, object] = {"contexts": log.n_contexts, "rows": log.n_rows, "actions": log.n_actions}
    figures.Figure(
        "learning.uips_over_ce",
        typical["uips"] / typical["ce"],
        LIMITS["uips_over_ce"],
        facts=shape | {"uips_epoch_seconds": round(typical["uips"], 3), "ce_epoch_seconds": round(typical["ce"], 3)},
        note=f"epochs of {typical['uips']:.2f} s and {typical['ce']:.2f} s",
    ).show(as_json)
    how = f"{len(seconds['naive'])} batches of {BATCH_ROWS} rows measured and scaled to {log.n_rows} rows"
    figures.Figure(
        "learning.epoch_speedup",
        naive_epoch / typical["uips"],
        LIMITS["epoch_speedup"],
        "at least",
        facts=shape
        | {
            "row_by_row": how,
            "row_by_row_epoch_seconds": round(naive_epoch, 1),
            "rows_with_reward": round(rewarded, 3),
            "if_both_leave_out_rows_without_reward": round(rewarded * naive_epoch / typical["uips"], 1),
        },
        note=f"row by row {naive_epoch:.0f} s: {how}",
    ).show(as_json)


def kept_data(log: LoggedData, folder: Path) -> None:
    """The log as plain arrays, so that another process starts with the data alone."""
    arrays = {"context": log.contexts["x"].values, "index": log.context_index, "action": log.action}  # type: ignore[union-attr]
    for name, values in (arrays | {"reward": log.reward, "prob": log.logging_prob}).items():
        np.save(folder / f"{name}.npy", np.asarray(values))


def child(folder: Path, actions: int) -> None:
    """The memory of one UIPS epoch above the data, in this fresh process."""
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    log = LoggedData.from_arrays(
        {"x": arrays["context"]},
        arrays["action"],
        arrays["reward"],
        context_index=arrays["index"],
        actions=actions,
        logging_prob=arrays["prob"],
    )
    epoch_seconds(small_log(64, 100, 2), "uips")  # libraries are loaded and warm
    print(figures.extra_peak_bytes(lambda: epoch_seconds(log, "uips")))


def memory(log: LoggedData, as_json: bool) -> None:
    """Peak memory above the data."""
    with tempfile.TemporaryDirectory() as folder:
        kept_data(log, Path(folder))
        extra = int(figures.output_of_child("--child", folder, "--actions", str(log.n_actions)))
    value = extra / 1e9
    figures.Figure("learning.extra_memory_gb", value, LIMITS["extra_memory_gb"], facts={"rows": log.n_rows}).show(
        as_json
    )


def small_log(contexts: int, actions: int, rows: int) -> LoggedData:
    """Random rows, each with a reward."""
    random = np.random.default_rng(0)
    n = contexts * rows
    return LoggedData.from_arrays(
        {"x": random.standard_normal((contexts, D)).astype(np.float32)},
        random.integers(actions, size=n),
        np.ones(n),
        context_index=np.repeat(np.arange(contexts), rows),
        actions=actions,
        logging_prob=random.uniform(1e-5, 1e-2, size=n),
    )


def growth(as_json: bool, quick: bool) -> None:
    """Seconds of a UIPS epoch as one size grows and the others stay."""
    contexts = QUICK_CONTEXTS if quick else CONTEXTS
    table = {
        "rows_per_context": [(contexts, ACTIONS, rows) for rows in (1, 10, 100)],
        "actions": [(contexts, actions, 10) for actions in (1_000, 3_000, 10_000, ACTIONS)],
        "contexts": [(count, ACTIONS, 10) for count in (contexts // 8, contexts // 4, contexts // 2, contexts)],
    }
    for name, sizes in table.items():
        first = 0.0
        for size in sizes:
            log = small_log(*size)
            seconds = min(epoch_seconds(log, "uips") for _ in range(3))
            first = first or seconds
            facts = dict(zip(("contexts", "actions", "rows_per_context"), size, strict=True))
            line = {"growth": name, **facts, "seconds": round(seconds, 3), "times_the_first": round(seconds / first, 2)}
            print(json.dumps(line) if as_json else "  ".join(f"{k} {v}" for k, v in line.items()), flush=True)


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="1,500 contexts instead of 11,146")
    parser.add_argument("--growth", action="store_true", help="a table of epoch times instead of the figures")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--child", type=Path, help="measure memory on the data in this folder")
    parser.add_argument("--actions", type=int, default=ACTIONS)
    chosen = parser.parse_args()
    set_threads(THREADS)
    if chosen.child is not None:
        child(chosen.child, chosen.actions)
        return
    if chosen.growth:
        growth(chosen.json, chosen.quick)
        return
    world = ExtremeWorld.draw(0, ExtremeShape(n_contexts=QUICK_CONTEXTS if chosen.quick else CONTEXTS))
    log = world.log(0, ROWS)
    compare(log, chosen.epochs * (4 if chosen.quick else 1), chosen.json)
    memory(log, chosen.json)


if __name__ == "__main__":
    main()
