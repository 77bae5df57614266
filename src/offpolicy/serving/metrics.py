"""Counters of one server process, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from offpolicy.serving.decider import Decision
from offpolicy.serving.writer import Writer

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
PATHS = frozenset({"/decide", "/reward", "/activate", "/healthz", "/readyz", "/metrics", "/policy", "/status", "/"})


class Metrics:
    """What a process has done since it started."""

    def __init__(self) -> None:
        """Start at zero."""
        self.answers: Counter[tuple[str, int]] = Counter()
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.explored, self.repeated, self.rewards = 0, 0, 0
        self.reloads, self.reloads_failed = 0, 0
        self.seconds, self._buckets = 0.0, [0] * (len(BOUNDS) + 1)

    def answered(self, path: str, status: int) -> None:
        """Count an answer; paths that do not exist share one name."""
        self.answers[path if path in PATHS else "other", status] += 1

    def decided(self, decisions: Sequence[Decision], repeated: int, seconds: float) -> None:
        """Count the decisions of one request and the time it took."""
        for one in decisions:
            self.decisions[one.mode, one.source] += 1
            self.explored += one.explored
        self.repeated += repeated
        self.seconds += seconds
        self._buckets[bisect_left(BOUNDS, seconds)] += 1

    def rewarded(self, count: int) -> None:
        """Count rewards."""
        self.rewards += count

    def text(self, writer: Writer | None, policy: str) -> str:
        """All of it."""
        lines: list[str] = []

        def metric(name: str, kind: str, about: str, values: dict[str, float]) -> None:
            lines.extend((f"# HELP offpolicy_{name} {about}", f"# TYPE offpolicy_{name} {kind}"))
            lines.extend(f"offpolicy_{name}{labels} {value:g}" for labels, value in values.items())

        answers = {f'{{path="{p}",status="{s}"}}': float(n) for (p, s), n in sorted(self.answers.items())}
        decisions = {f'{{mode="{m}",source="{s}"}}': float(n) for (m, s), n in sorted(self.decisions.items())}
        metric("requests_total", "counter", "Answers by path and status.", answers)
        metric("decisions_total", "counter", "Decisions by mode and source.", decisions)
        metric("explored_total", "counter", "Draws that were not the most probable action.", {"": self.explored})
        metric("repeated_total", "counter", "Decisions answered from the record.", {"": self.repeated})
        metric("rewards_total", "counter", "Rewards accepted.", {"": self.rewards})
        metric("reloads_total", "counter", "Policies taken up while serving.", {"": self.reloads})
        metric("reloads_ignored_total", "counter", "New policies that could not be served.", {"": self.reloads_failed})
        if writer is not None:
            metric("rows_waiting", "gauge", "Rows that wait to be durable.", {"": writer.waiting})
            metric("rows_written_total", "counter", "Rows made durable.", {"": writer.rows_written})
            metric("commits_total", "counter", "Transactions of the event store.", {"": writer.batches})
            metric("commits_failed_total", "counter", "Transactions that failed.", {"": writer.failures})
        metric("policy_info", "gauge", "The policy that decides.", {f'{{digest="{policy}"}}': 1})
        metric("decide_seconds", "histogram", "Time to answer /decide.", self._histogram())
        return "\n".join(lines) + "\n"

    def _histogram(self) -> dict[str, float]:
        """Cumulative buckets; the names of sum and count are completed by their suffix."""
        values: dict[str, float] = {}
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            values[f'_bucket{{le="{bound}"}}'] = total
        return values | {"_sum": self.seconds, "_count": total}
