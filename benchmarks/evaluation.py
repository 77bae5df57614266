"""What evaluation costs: rows a second and memory at 10 million rows, and memory of DR with 10,000 actions.

Run: python benchmarks/evaluation.py [--json] [--quick]

The long log has 10 rows a context, recorded propensities and a target given as a column of probabilities; eight
estimators with clustered intervals, verdict, comparison and sensitivity are all part of `evaluate`. Memory is the peak
of a fresh process above its level with the log and the column in it. The wide log has one row a context and a softmax
target over 10,000 actions, so that DR needs every action of every context; its memory is all the process ever held.
`gb_per_million_rows` is what a million rows more add to the memory of the default estimators on three softmax policies,
β̂ and q̂ estimated on the way: the peak of resident memory above its level with the log in it, at 1 and at 3 million
rows, each in a process of its own; with ten rows a context, and with as many contexts as rows.
`gb_per_million_of_3m_rows` is all of that peak over the rows, with the libraries that are loaded on the way (0.17 GB).
`--quick` takes a tenth of the rows of the long log, and 0.5 and 1 million of the others.
"""

import resource
import time

import numpy as np
import torch

import figures
from offpolicy.evaluation import evaluate
from offpolicy.log import EmbeddingColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.log.actions import ActionTable
from offpolicy.policies import LinearSoftmaxPolicy
from offpolicy.threads import set_threads

THREADS = 2
ROWS, QUICK_ROWS, ROWS_PER_CONTEXT, FEW = 10_000_000, 1_000_000, 10, 50
WIDE_ROWS, WIDE_ACTIONS, D = 20_000, 10_000, 10
ESTIMATORS = ("ips", "snips", "clipped", "shrinkage", "sn_shrinkage", "uips", "snuips", "uips_tight")
LIMIT_GB = 1.0
PER_MILLION_ROWS, QUICK_PER_MILLION_ROWS = (1_000_000, 3_000_000), (500_000, 1_000_000)
PER_MILLION_LIMIT, PER_MILLION_CONTEXTS_LIMIT = 0.22, 0.3


def long_log(rows: int) -> tuple[LoggedData, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """A log of many rows, its propensities recorded, and a target's probability of each logged action."""
    random = np.random.default_rng(0)
    contexts = rows // ROWS_PER_CONTEXT
    x = random.standard_normal(contexts)
    action = random.integers(0, FEW, rows, dtype=np.int32)
    log = LoggedData(
        contexts=FeatureTable({"x": NumericColumn(x)}),
        context_index=np.repeat(np.arange(contexts, dtype=np.int32), ROWS_PER_CONTEXT),
        action=action,
        reward=(random.random(rows) < 0.1 + 0.2 * (action % 3 == 0)).astype(np.float64),
        actions=ActionTable(Vocabulary(np.arange(FEW))),
        logging_prob=np.full(rows, 1 / FEW),
    )
    return log, random.gamma(0.5, 2.0, rows).clip(max=FEW) / FEW


def long_run(rows: int) -> None:
    """Print extra memory and seconds of evaluating the long log in this process."""
    set_threads(THREADS)
    log, column = long_log(rows)
    start = time.perf_counter()
    extra = figures.extra_peak_bytes(
        lambda: evaluate(log, {"target": column}, "recorded", estimators=ESTIMATORS, intervals=("normal",))
    )
    print(extra, time.perf_counter() - start)


def three_policies_run(rows: int, rows_per_context: int = ROWS_PER_CONTEXT) -> None:
    """Print extra memory of the default estimators on three softmax policies over a log without propensities."""
    set_threads(1)
    random = np.random.default_rng(0)
    x = random.standard_normal((rows // rows_per_context, 8)).astype(np.float32)
    action = random.integers(0, FEW, rows, dtype=np.int32)
    log = LoggedData.from_arrays(
        contexts=FeatureTable({"x": EmbeddingColumn(x)}),
        context_index=np.repeat(np.arange(len(x), dtype=np.int32), rows_per_context),
        action=action,
        reward=(random.random(rows) < 0.1 + 0.2 * (action % 3 == 0)).astype(np.float64),
        actions=FEW,
    )
    bias = torch.zeros(FEW, dtype=torch.float64)
    weights = [torch.from_numpy(random.standard_normal((FEW, 8)) * 0.3) for _ in range(3)]
    policies = {f"policy {i}": LinearSoftmaxPolicy("x", one, bias) for i, one in enumerate(weights)}
    print(figures.extra_peak_bytes(lambda: evaluate(log, policies)))


def wide_run() -> None:
    """Print the most memory this process ever held in evaluating DR over many actions."""
    set_threads(THREADS)
    random = np.random.default_rng(0)
    x = random.standard_normal((WIDE_ROWS, D)).astype(np.float32)
    action = (random.pareto(1.0, WIDE_ROWS) * 100).astype(np.int64) % WIDE_ACTIONS
    log = LoggedData.from_arrays(
        contexts=FeatureTable({"x": EmbeddingColumn(x)}),
        context_index=np.arange(WIDE_ROWS),
        action=action,
        reward=(random.random(WIDE_ROWS) < 0.3).astype(np.float64),
        actions=WIDE_ACTIONS,
    )
    weights = torch.from_numpy(random.standard_normal((WIDE_ACTIONS, D)) * 0.3)
    target = LinearSoftmaxPolicy("x", weights, torch.zeros(WIDE_ACTIONS, dtype=torch.float64))
    evaluate(log, {"target": target}, "popularity", estimators=("dr", "sndr"))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


class Counted:
    """A policy that counts the contexts whose probabilities of all actions it was asked for."""

    def __init__(self, base: LinearSoftmaxPolicy) -> None:
        self.base, self.actions, self.asked = base, base.actions, 0

    def log_probs(self, contexts: FeatureTable) -> torch.Tensor:
        self.asked += contexts.n_rows
        return self.base.log_probs(contexts)


def passes() -> float:
    """Times a policy's probabilities of all actions are computed in one `evaluate` with everything it offers."""
    random = np.random.default_rng(0)
    contexts, actions = 2_000, 20
    x = random.standard_normal((contexts, D)).astype(np.float32)
    log = LoggedData.from_arrays(
        contexts=FeatureTable({"x": EmbeddingColumn(x)}),
        action=random.integers(0, actions, contexts),
        reward=(random.random(contexts) < 0.3).astype(np.float64),
        actions=actions,
    )
    weights = torch.from_numpy(random.standard_normal((actions, D)) * 0.3)
    bias = torch.zeros(actions, dtype=torch.float64)
    policies = {f"policy {i}": Counted(LinearSoftmaxPolicy("x", weights * i, bias)) for i in (1, 2)}
    evaluate(log, policies, "linear", estimators=(*ESTIMATORS, "dm", "dr", "minvar"), references={"even": "uniform"})
    return max(one.asked for one in policies.values()) / log.n_contexts


def per_million(sizes: tuple[int, int], rows_per_context: int, name: str, limit: float, as_json: bool) -> float:
    """Print what a million rows add to the memory of evaluating three policies; the peak of the longer log."""
    given = ("--child", "three", "--rows-per-context", str(rows_per_context), "--rows")
    small, large = (float(figures.output_of_child(*given, str(rows))) for rows in sizes)
    facts: dict[str, object] = {"rows": list(sizes), "rows_per_context": rows_per_context, "policies": 3}
    facts["peak_gb"] = [round(small / 1e9, 3), round(large / 1e9, 3)]
    shape = f"{sizes[0]:,} to {sizes[1]:,} rows, {rows_per_context} a context, three policies, the default estimators"
    value = (large - small) / (sizes[1] - sizes[0]) * 1e6 / 1e9
    figures.Figure(f"evaluation.{name}", value, limit, facts=facts, note=shape).show(as_json)
    return large


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows instead of {ROWS:,}")
    parser.add_argument(
        "--child", choices=("long", "wide", "three"), help="measure in this process; used by the benchmark"
    )
    parser.add_argument("--rows", type=int, default=PER_MILLION_ROWS[-1], help="rows of the child `three`")
    parser.add_argument("--rows-per-context", type=int, default=ROWS_PER_CONTEXT, help="the same of a context")
    options = parser.parse_args()
    rows = QUICK_ROWS if options.quick else ROWS
    if options.child == "long":
        long_run(rows)
        return
    if options.child == "three":
        three_policies_run(options.rows, options.rows_per_context)
        return
    if options.child == "wide":
        wide_run()
        return
    extra, seconds = map(
        float, figures.output_of_child("--child", "long", *(["--quick"] if options.quick else [])).split()
    )
    facts = {"rows": rows, "estimators": len(ESTIMATORS)}
    shape = f"{rows:,} rows, {len(ESTIMATORS)} estimators"
    figures.Figure("evaluation.rows_per_second", rows / seconds, facts=facts, note=shape, digits=0).show(options.json)
    figures.Figure("evaluation.extra_memory_gb", extra / 1e9, LIMIT_GB, facts=facts, note=shape).show(options.json)
    sizes = QUICK_PER_MILLION_ROWS if options.quick else PER_MILLION_ROWS
    peak = per_million(sizes, ROWS_PER_CONTEXT, "gb_per_million_rows", PER_MILLION_LIMIT, options.json)
    per_million(sizes, 1, "gb_per_million_rows_and_contexts", PER_MILLION_CONTEXTS_LIMIT, options.json)
    if not options.quick:
        name, whole = "evaluation.gb_per_million_of_3m_rows", peak / sizes[1] * 1e6 / 1e9
        figures.Figure(name, whole, PER_MILLION_LIMIT, note="all of the peak").show(options.json)
    figures.Figure("evaluation.policy_passes", passes(), 1.0, note="all actions, one evaluate").show(options.json)
    wide = float(figures.output_of_child("--child", "wide"))
    facts = {"rows": WIDE_ROWS, "actions": WIDE_ACTIONS}
    shape = f"{WIDE_ROWS:,} rows × {WIDE_ACTIONS:,} actions, the whole process"
    figures.Figure("evaluation.dr_memory_gb", wide / 1e9, LIMIT_GB, facts=facts, note=shape).show(options.json)


if __name__ == "__main__":
    main()
