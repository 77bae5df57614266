"""Close the loop: a log without propensities, a policy served with exploration, and logs that need no estimate.

Run: python examples/loop.py [FOLDER]

A simulated shop shows one of twelve products to each visitor. Its old system kept no probabilities, so the first
policy is judged by estimated ones. The policy is then served by `offpolicy serve` with 10 % exploration; every
decision is recorded with the exact probability of its draw, and the collected log is learned from and judged without
any estimate of it. The shop is made up, so the true value of every policy is known. Runs in about half a minute.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import offpolicy
from offpolicy.serving import Decider, EventStore, Join, collect, replay

VISITS, LOGGED, BATCH = 3_000, 5_000, 200
EPSILON = 0.1
HORIZON = 1.0  # seconds after which a visitor no longer buys
SEGMENTS = ("new", "regular", "lapsed")
PRODUCTS = [f"product-{i:02d}" for i in range(12)]


class Shop:
    """Visitors with a segment, an age and a taste; what they buy depends on these and on what they see."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.appeal = self.random.normal(-1.6, 0.8, size=(len(SEGMENTS), len(PRODUCTS)))
        self.taste = self.random.normal(size=(2, len(PRODUCTS)))
        self.everyone = self.visitors(3_000)

    def visitors(self, n: int) -> list[dict[str, Any]]:
        """Who comes."""
        return [
            {
                "segment": SEGMENTS[self.random.integers(3)],
                "age": float(self.random.normal(40, 12)),
                "interest": float(self.random.normal()),
            }
            for _ in range(n)
        ]

    def rates(self, visitor: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The probability that a visitor buys each product."""
        features = np.array([(visitor["age"] - 40) / 12, visitor["interest"]])
        logits = self.appeal[SEGMENTS.index(visitor["segment"])] + features @ self.taste
        return np.asarray(1 / (1 + np.exp(-logits)))

    def buys(self, visitor: dict[str, Any], product: str) -> bool:
        """Whether this one does."""
        return bool(self.random.random() < self.rates(visitor)[PRODUCTS.index(product)])

    def old_log(self, path: Path) -> Path:
        """What the old system wrote: it half knows what sells, and keeps no probabilities."""
        rows = []
        for visitor in self.visitors(LOGGED):
            score = 6 * self.rates(visitor) + self.appeal[0]
            shown = str(self.random.choice(PRODUCTS, p=np.exp(score) / np.exp(score).sum()))
            rows.append(visitor | {"product": shown, "bought": int(self.buys(visitor, shown))})
        pl.DataFrame(rows).write_parquet(path)
        return path

    def truth(self, policy: Path) -> float:
        """What a policy is really worth, without exploration: its probabilities times the rates, over everyone."""
        decider = Decider.load(policy)
        worth = []
        for visitor in self.everyone:
            scores = decider.policy.scores(visitor, None, [])
            prob = np.exp(scores - scores.max())
            order = [PRODUCTS.index(str(name)) for name in decider.catalogue]
            worth.append(float(prob @ self.rates(visitor)[order] / prob.sum()))
        return float(np.mean(worth))


def read(path: Path, propensity: str | None = None) -> offpolicy.LoggedData:
    """A log of the shop."""
    return offpolicy.read_log(
        path,
        context=["segment", "age", "interest"],
        action="product",
        reward="bought",
        propensity=propensity,
        actions=PRODUCTS,
    )


def learned(log: offpolicy.LoggedData, policy: Path, logging: str) -> Path:
    """A policy learned from a log and saved; a running server takes it up."""
    found = offpolicy.learn_policy(log, logging_policy=logging)
    roles = {"action": "product", "reward": "bought"}
    return offpolicy.save_policy(found, log, policy, metadata={"method": found.method, "roles": roles})


def post(port: int, path: str, body: Any) -> Any:
    """Ask the server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    assert answer.status == 200, content
    return content


def serve(shop: Shop, policy: Path, store: Path, name: str) -> None:
    """A day of the shop with the policy in charge."""
    words = ["serve", str(policy), "--store", str(store), "--epsilon", str(EPSILON), "--salt", "shop", "--port", "0"]
    command = [sys.executable, "-c", "from offpolicy.cli import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
            for start in range(0, VISITS, BATCH):
                visitors = {f"{name}-{start + i}": visitor for i, visitor in enumerate(shop.visitors(BATCH))}
                asked = [{"request_id": key, "context": visitor} for key, visitor in visitors.items()]
                shown = {one["request_id"]: one["action"] for one in post(port, "/decide", asked)}
                bought = [key for key, visitor in visitors.items() if shop.buys(visitor, shown[key])]
                if bought:
                    post(port, "/reward", [{"request_id": key, "reward": 1.0} for key in bought])
        finally:
            server.terminate()


def main(folder: Path) -> list[dict[str, Any]]:
    """Two turns of the loop; what is said about each policy and what is true."""
    shop, store = Shop(), folder / "events.db"
    rounds: list[dict[str, Any]] = []

    def judged(name: str, log: offpolicy.LoggedData, policy: Path, logging: str) -> None:
        found = offpolicy.evaluate(log, {"policy": offpolicy.load_policy(policy)}, logging)["policy"]
        interval = found.interval
        line = {"round": name, "value": found.value, "low": interval.low, "high": interval.high}
        rounds.append(line | {"propensity_part": interval.propensity, "truth": shop.truth(policy)})
        said = "{round:34} {value:.3f}  [{low:.3f}, {high:.3f}]  ± {propensity_part:.3f}         {truth:.3f}"
        print(said.format(**rounds[-1]))

    print(f"{'':34} value  interval        propensities    truth")
    train, test = read(shop.old_log(folder / "old.parquet")).split((1 - VISITS / LOGGED, VISITS / LOGGED), seed=0)
    policy = learned(train, folder / "policy", "linear")
    judged("1, old log, estimated propensities", test, policy, "auto")
    for turn in ("1", "2"):
        since = time.time_ns() // 1000
        serve(shop, policy, store, f"day-{turn}")
        time.sleep(HORIZON)
        with EventStore(str(store)) as events:
            log_file = folder / f"day-{turn}.parquet"
            done = collect(events, log_file, join=Join(HORIZON), since=since, force=True)
            again = replay(events, [Decider.load(policy).policy], since=since)
        assert done.rows == again.confirmed == VISITS
        log = read(log_file, "propensity")
        judged(f"{turn}, served, exact propensities", log, policy, "recorded")
        if turn == "1":
            policy = learned(log, folder / "policy", "recorded")
    return rounds


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
