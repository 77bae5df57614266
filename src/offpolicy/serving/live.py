"""What the page of a running server shows: how fast, how much explored, and what the policy is worth so far."""

import json
import math
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from offpolicy.serving.decider import Decider
from offpolicy.serving.join import SECOND, Join, joined
from offpolicy.serving.store import EventStore, decisions, now

WINDOW, BUCKET = 300, 5
"""Seconds of traffic that the page draws, and of each of its bars."""
REFRESH = 1.0
MOST_PAGES = 20
"""Pages of decisions that one refresh reads; the next one continues there."""
LAST = 12
LARGEST_WEIGHT = 20.0


class ConfidenceSequence:
    """The mean of numbers in [0, bound] with an interval that holds at every moment at once, however often one looks.

    The empirical Bernstein confidence sequence of Waudby-Smith and Ramdas with predictable bets λ:
    Σλx/Σλ ± (ln(2/δ) + Σ(x − μ̂)²·(−ln(1 − λ) − λ))/Σλ, where μ̂ and λ come from the numbers before.
    """

    def __init__(self, bound: float = 1.0, miss: float = 0.05) -> None:
        """Start without numbers."""
        self.bound, self.miss = bound, miss
        self.count, self._sum, self._squares = 0, 0.0, 0.0
        self._bets, self._won, self._spent = 0.0, 0.0, math.log(2 / miss)
        self._low, self._high = 0.0, 1.0

    def add(self, numbers: npt.NDArray[np.float64]) -> None:
        """Take more numbers, in order."""
        if not len(numbers):
            return
        x = np.asarray(numbers, dtype=np.float64) / self.bound
        t = self.count + np.arange(1, len(x) + 1)
        sums = self._sum + x.cumsum()
        mean = (0.5 + sums) / (t + 1)
        before = np.concatenate([[(0.5 + self._sum) / (self.count + 1)], mean[:-1]])
        squares = self._squares + ((x - mean) ** 2).cumsum()
        variance = np.concatenate([[(0.25 + self._squares) / (self.count + 1)], ((0.25 + squares) / (t + 1))[:-1]])
        bets = np.minimum(np.sqrt(2 * math.log(2 / self.miss) / (variance * t * np.log1p(t))), 0.5)
        self._bets += float(bets.sum())
        self._won += float((bets * x).sum())
        self._spent += float(((x - before) ** 2 * (-np.log1p(-bets) - bets)).sum())
        self.count, self._sum, self._squares = int(t[-1]), float(sums[-1]), float(squares[-1])
        centre, reach = self._won / self._bets, self._spent / self._bets
        self._low, self._high = max(self._low, centre - reach), min(self._high, centre + reach)

    @property
    def mean(self) -> float | None:
        """The mean of the numbers."""
        return self._sum / self.count * self.bound if self.count else None

    @property
    def interval(self) -> tuple[float, float]:
        """Its interval."""
        return self._low * self.bound, self._high * self.bound


class LiveStatus:
    """Figures of a store for the policy that is served now, kept up to date by reading only what is new."""

    def __init__(self, store: EventStore, join: Join) -> None:
        """Start empty."""
        self.store, self.join = store, join
        self._lock = threading.Lock()
        self._at, self._status = 0.0, dict[str, Any]()
        self._setting: tuple[str, str, float] | None = None

    def get(self, decider: Decider) -> dict[str, Any]:
        """The figures, at most a second old; called from a thread."""
        with self._lock:
            if time.monotonic() - self._at > REFRESH:
                self._status = self._traffic() | {"value": self._value(decider), "last": self._last()}
                self._at = time.monotonic()
            return self._status

    def _traffic(self) -> dict[str, Any]:
        end = now()
        start = end - WINDOW * SECOND
        width = BUCKET * SECOND
        bucket = sa.cast((decisions.c.decided_at - start) // width, sa.Integer).label("bucket")
        recent = decisions.c.decided_at >= start
        query = sa.select(bucket, sa.func.count(), sa.func.sum(decisions.c.explored)).where(recent).group_by(bucket)
        bars = [0] * (WINDOW // BUCKET)
        explored = 0
        with self.store.reading() as connection:
            for place, count, odd in connection.execute(query):
                bars[min(max(int(place), 0), len(bars) - 1)] += int(count)
                explored += int(odd or 0)
            total = connection.scalar(sa.select(sa.func.count()).select_from(decisions)) or 0
        window = sum(bars)
        minute = bars[-60 // BUCKET :]
        return {
            "decisions": int(total),
            "per_second": sum(minute) / 60,
            "bars": bars,
            "bucket_seconds": BUCKET,
            "explored_share": explored / window if window else None,
        }

    def _value(self, decider: Decider) -> dict[str, Any]:
        """Means of rewards as served and as the policy alone would earn, by weights π/p from the record."""
        setting = (decider.policy.digest, decider.mode, decider.epsilon)
        low, high = decider.policy.reward_range
        if self._setting != setting:
            self._setting, self._after = setting, (0, "")
            bound = min(1.0 / max(1.0 - decider.epsilon, 1.0 / LARGEST_WEIGHT), LARGEST_WEIGHT)
            self._served, self._policy = ConfidenceSequence(), ConfidenceSequence(bound)
        waiting = self._read(setting, (low, high))

        def shown(sequence: ConfidenceSequence) -> dict[str, Any]:
            ends = [low + (high - low) * end for end in sequence.interval]
            mean = None if sequence.mean is None else low + (high - low) * sequence.mean
            limits = {"floor": low, "ceiling": high, "low": max(ends[0], low), "high": min(ends[1], high)}
            return {"mean": mean, "count": sequence.count} | limits

        found = {"served": shown(self._served), "horizon": self.join.horizon, "waiting": waiting}
        if decider.mode == "explore" and 0 < decider.epsilon < 1 - 1 / LARGEST_WEIGHT:
            found["policy"] = shown(self._policy)
        return found

    def _read(self, setting: tuple[str, str, float], limits: tuple[float, float]) -> bool:
        """Feed decisions whose rewards are final; whether some are still within the horizon."""
        for number, page in enumerate(joined(self.store, self.join, after=self._after)):
            rewards: list[float] = []
            weights: list[float] = []
            for one in page:
                if one.pending:
                    self._feed(rewards, weights, limits)
                    return True
                row = one.row
                self._after = (row["decided_at"], row["request_id"])
                mine = (row["policy"], row["mode"], row["epsilon"]) == setting
                if mine and one.reward is not None and row["source"] in ("policy", "baseline"):
                    rewards.append(one.reward)
                    drawn = row["mode"] == "explore" and row["probability"]
                    weights.append(row["policy_probability"] / row["probability"] if drawn else 1.0)
            self._feed(rewards, weights, limits)
            if number >= MOST_PAGES:
                break
        return False

    def _feed(self, rewards: list[float], weights: list[float], limits: tuple[float, float]) -> None:
        unit = np.clip((np.array(rewards) - limits[0]) / (limits[1] - limits[0]), 0.0, 1.0)
        self._served.add(unit)
        self._policy.add(np.minimum(unit * np.array(weights), self._policy.bound))

    def _last(self) -> list[dict[str, Any]]:
        query = decisions.select().order_by(decisions.c.decided_at.desc()).limit(LAST)
        with self.store.reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return [
            {
                "time": row["decided_at"] / SECOND,
                "request_id": row["request_id"],
                "action": json.loads(row["action"]),
                "probability": row["probability"],
                "source": row["source"],
                "explored": bool(row["explored"]),
                "notes": row["notes"],
            }
            for row in rows
        ]
