"""One epoch of learning among candidates against merely reading the candidates' embeddings, and do both kernels agree?

Run: python benchmarks/request_sets.py [--json] [--quick] [--requests N] [--coverage [--runs 40] [--out FILE]]

Requests with 20 candidates each from 100,000 items, d = 64. The epoch is what learning does: batches of requests,
the softmax over each one's own candidates, its gradient and an Adam step. The yardstick gathers the same candidates'
embeddings batch by batch and multiplies them with the same states, once and without any gradient, in the same run.

With --coverage instead: how often the default interval of a policy's value covers the truth on three worlds with
candidates (sets that vary, eligibility that depends on the context, retrieval by a model), among the runs that the
verdict calls answerable; and what becomes of the same logs when the sets are withheld. These are then logs in which all
actions are always on offer, so their intervals are compared with the value of the policy there, too. Finished runs are
kept in --out and not computed again.
"""

import argparse
import json
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from figures import Figure, arguments, output_of_child
from offpolicy.datasets.request_worlds import KINDS, Kind, RequestWorld, without_sets
from offpolicy.evaluation import evaluate
from offpolicy.log import ActionTable, Candidates, EmbeddingColumn, FeatureTable, LoggedData
from offpolicy.models import (
    ContextBatches,
    DesignMatrix,
    Full,
    LinearScorer,
    Offered,
    candidate_logits,
    gradient_step,
    weighted_log_likelihood,
)
from offpolicy.threads import set_threads

FULL, QUICK = 1_000_000, 100_000
ITEMS, CANDIDATES, WIDTH = 100_000, 20, 64
BATCH = 16_384
ROWS, WORLDS = 2_500, 8
"""Rows of a log whose interval is asked for, and how many worlds of each kind there are."""
LIMITS = {"requests.epoch_over_gather": 3.0, "requests.memory_gb": 2.0, "requests.kernels_differ": 1e-10}


def make_log(n: int, seed: int = 0) -> LoggedData:
    """Requests whose candidates are distinct: one from each of 20 stretches of the catalogue."""
    random = np.random.default_rng(seed)
    stretch = ITEMS // CANDIDATES
    codes = random.integers(0, stretch, (n, CANDIDATES), dtype=np.int32)
    codes += np.arange(CANDIDATES, dtype=np.int32) * stretch
    table = ActionTable.numbered(ITEMS)
    sets = Candidates(np.arange(0, n * CANDIDATES + 1, CANDIDATES), codes.ravel(), table.vocabulary)
    states = random.standard_normal((n, WIDTH), dtype=np.float32)
    taken = codes[np.arange(n), random.integers(0, CANDIDATES, n)]
    del codes
    return LoggedData(
        contexts=FeatureTable({"x": EmbeddingColumn(states)}, sets),
        context_index=np.arange(n, dtype=np.int32),
        action=taken,
        reward=np.ones(n),
        actions=table,
    )


def epoch_seconds(log: LoggedData) -> float:
    """One pass of the likelihood over all requests, a step for each batch."""
    scorer = LinearScorer(DesignMatrix.fit(log.contexts.take(slice(0, 1000))), log.n_actions)
    optimiser = torch.optim.Adam(scorer.parameters(), lr=1e-3, fused=True)
    batches, head = ContextBatches(log, BATCH), Full()
    start = time.perf_counter()
    for batch in batches.epoch(torch.Generator().manual_seed(0)):
        states, offered = batch.states(scorer), batch.offered(scorer)
        rows = (batch.row_context, batch.row_action)
        total = head.surrogate(states, *scorer.actions(), *rows, torch.ones(len(batch.rows)), offered=offered)
        gradient_step(optimiser, total / len(batch.rows))
    return time.perf_counter() - start


def gather_seconds(log: LoggedData) -> float:
    """Gather the same candidates' embeddings and multiply them with the requests' states."""
    assert log.candidates is not None
    weights = torch.randn(log.n_actions, WIDTH)
    states = torch.from_numpy(np.array(log.contexts["x"].values))  # type: ignore[union-attr]
    codes = log.candidates.codes.reshape(-1, CANDIDATES)
    start = time.perf_counter()
    for first in range(0, log.n_contexts, BATCH):
        part = slice(first, first + BATCH)
        found = torch.nn.functional.embedding(torch.from_numpy(codes[part].astype(np.int64)), weights)
        torch.bmm(found, states[part].unsqueeze(2))
    return time.perf_counter() - start


def largest_difference() -> float:
    """Of value and gradients by both kernels, in float64."""
    random = torch.Generator().manual_seed(1)
    n, actions, width, d = 300, 70, 9, 8
    sets = torch.stack([torch.randperm(actions, generator=random)[:width] for _ in range(n)])
    real = torch.arange(width) < torch.randint(1, width + 1, (n, 1), generator=random)
    offered = Offered(sets.masked_fill(~real, 0), real)
    head = [torch.randn(size, dtype=torch.float64, generator=random) for size in ((n, d), (actions, d), (actions,))]
    found = []
    for dense in (True, False):
        own = [part.clone().requires_grad_() for part in head]
        log_prob = candidate_logits(own[0], own[1], own[2], offered, dense=dense).log_softmax(1)[:, 0]
        found.append([log_prob.detach(), *torch.autograd.grad(log_prob.sum(), own)])
    fused = [part.clone().requires_grad_() for part in head]
    rows = (torch.arange(n), offered.actions[:, 0])
    ones = torch.ones(n, dtype=torch.float64)
    total = weighted_log_likelihood(fused[0], fused[1], fused[2], *rows, ones, offered=offered)
    found.append([found[0][0], *torch.autograd.grad(total, fused)])
    return max(float((a - b).abs().max()) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def one_run(kind: Kind, seed: int, model: str) -> dict[str, Any]:
    """A fresh log of a world, evaluated with its sets and without them."""
    world = RequestWorld.make(kind, seed % WORLDS)
    log = world.log(ROWS, 1000 + seed)
    found: dict[str, Any] = {"kind": kind, "seed": seed, "model": model, "truth": world.value(world.target, 50_000)}
    found["everything"] = world.value(world.target, 50_000, everything=True)
    blind = replace(log, contexts=without_sets(log.contexts))
    for name, one in (("given", log), ("withheld", blind)):
        result = evaluate(one, {"target": world.target}, logging_policy=model).policies["target"]
        verdict, checks = result.preflight.verdict, result.preflight.checks
        found[name] = [result.interval.low, result.interval.high, verdict.answerable]
        found[f"{name}_checks"] = {check.name: check.value for check in checks}
    return found


def coverage(runs: int, model: str, out: Path, as_json: bool) -> None:
    """Run what is missing and print the figures."""
    lines = out.read_text().splitlines() if out.exists() else []
    done = [one for one in map(json.loads, lines) if one["model"] == model]
    known = {(one["kind"], one["seed"]) for one in done}
    for seed in range(runs):
        for kind in KINDS:
            if (kind, seed) not in known:
                done.append(one_run(kind, seed, model))
                with out.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    for kind in KINDS:
        own = [one for one in done if one["kind"] == kind]
        for name in ("given", "withheld"):
            answered = [one for one in own if one[name][2]]
            truth = {"given": ("truth",), "withheld": ("truth", "everything")}[name]
            covered = [[one[name][0] <= one[of] <= one[name][1] for of in truth] for one in answered]
            width = float(np.median([one[name][1] - one[name][0] for one in own]))
            facts = {
                "model": model,
                "runs": len(own),
                "answered": len(answered) / len(own),
                "median_width": round(width, 4),
            }
            note = f"{len(answered)} of {len(own)} answered, median width {width:.3f}"
            limit = 0.93 if name == "given" else None
            for of, share in zip(truth, np.mean(covered, axis=0) if covered else (), strict=False):
                figure = f"requests.coverage.{kind}.{name}" + (".everything" if of == "everything" else "")
                Figure(figure, float(share), limit, "at least", facts, note).show(as_json)
            if not covered:
                Figure(f"requests.answered.{kind}.{name}", 0.0, facts=facts, note=note).show(as_json)


def peak_gigabytes() -> float:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    """Print the figures."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} requests instead of {FULL:,}")
    parser.add_argument("--requests", type=int, help="number of requests")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coverage", action="store_true", help="coverage of intervals instead of speed")
    parser.add_argument("--runs", type=int, default=40, help="logs of each world")
    parser.add_argument("--model", default="auto", help="model of the logging policy")
    parser.add_argument("--out", type=Path, default=Path("docs/results/requests_coverage.jsonl"), help="finished runs")
    options = parser.parse_args()
    if options.coverage:
        set_threads(1)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        coverage(options.runs, options.model, options.out, options.json)
        return
    if options.peak is not None:
        epoch_seconds(make_log(options.peak))
        print(peak_gigabytes())
        return
    n = options.requests or (QUICK if options.quick else FULL)
    log = make_log(n)
    gather, epoch = gather_seconds(log), epoch_seconds(log)
    del log
    memory = float(output_of_child("--peak", str(n)))
    facts = {"requests": n, "candidates": CANDIDATES, "items": ITEMS, "d": WIDTH}
    note = f"{n:,} requests: epoch {epoch:.1f} s, gathers {gather:.1f} s"
    measured = {
        "requests.epoch_over_gather": epoch / gather,
        "requests.memory_gb": memory,
        "requests.kernels_differ": largest_difference(),
    }
    for name, value in measured.items():
        Figure(name, value, LIMITS[name], facts=facts, note=note, digits=15 if name.endswith("differ") else 3).show(
            options.json
        )


if __name__ == "__main__":
    main()
