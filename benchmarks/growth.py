"""How the cost of one evaluation grows with the rows of a log and with its actions.

Run: python benchmarks/growth.py [--json] [--quick] > docs/results/growth.jsonl

Propensities are estimated by the linear model; the candidate knows all actions. Each size is evaluated in a process of
its own: seconds of one core (of work, not of waiting), and by how much its memory rises above that of the log.
`python benchmarks/pictures.py` draws what is found.
"""

import time

import figures
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.evaluation import evaluate
from offpolicy.threads import set_threads

ROWS, FEW = (3_000, 10_000, 30_000, 100_000, 300_000), 20
ACTIONS, SOME = (10, 100, 1_000, 10_000), 5_000


def one_size(rows: int, actions: int) -> None:
    """Print seconds and extra bytes of evaluating one log in this process."""
    set_threads(1)
    world = LinearSoftmaxWorld.draw(0, n_actions=actions)
    log = world.log(1, rows).without_propensities()
    start = time.process_time()
    extra = figures.extra_peak_bytes(lambda: evaluate(log, {"target": world.target_policy()}, "linear"))
    print(time.process_time() - start, extra)


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="the small sizes only")
    parser.add_argument("--size", nargs=2, type=int, help="one size, in this process")
    chosen = parser.parse_args()
    if chosen.size:
        one_size(*chosen.size)
        return
    few = 2 if chosen.quick else None
    for rows, actions in [*((rows, FEW) for rows in ROWS[:few]), *((SOME, actions) for actions in ACTIONS[:few])]:
        seconds, extra = map(float, figures.output_of_child("--size", str(rows), str(actions)).split())
        facts = {"rows": rows, "actions": actions, "extra_mb": round(extra / 1e6)}
        note = f"{rows:,} rows, {actions:,} actions, {extra / 1e6:.0f} MB above the log"
        figures.Figure("growth.seconds", seconds, facts=facts, note=note).show(chosen.json)


if __name__ == "__main__":
    main()
