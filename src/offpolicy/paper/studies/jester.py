"""Jester: users rated every joke, so that the truth is known on real rewards; logs hide their propensities."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.checks import check_choice
from offpolicy.datasets import JesterDesign, JesterWorld, load_jester, simulate_log
from offpolicy.evaluation import evaluate
from offpolicy.log import EmbeddingColumn
from offpolicy.paper.studies.study import Row, Settings, Untuned, known
from offpolicy.policies import EpsilonGreedyPolicy, LinearSoftmaxPolicy, Policy

SHOWN = ("ips", "snips", "dr", "sndr", "snuips")
KEPT_SEED = 0
LINES: Mapping[str, str] = {
    "auto": "the estimate to rely on",
    "snips_true": "SNIPS, true propensities",
    "ips_bootstrap": "IPS, bootstrap",
    "ips": "IPS",
    "snips": "SNIPS",
    "dr": "DR",
    "sndr": "SNDR",
    "snuips": "SNUIPS",
}
"""What is printed for each estimate; propensities are estimated but for one line, intervals normal but for two."""
TARGETS = ("softmax", "greedy")


@dataclass(frozen=True)
class Jester(Untuned):
    """The study; its fields are what a recipe may set."""

    lines: ClassVar[Mapping[str, Any]] = LINES

    target: str = "softmax"
    """The policy that is asked about: "softmax" of scores fitted to all ratings, or 0.1-"greedy" on them."""
    rows_per_user: int = 1
    """Rows of each user in a log."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: the log; with "policy" it stays, and only fits and cross-fitting vary."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("target", self.target, TARGETS)
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """The estimates."""
        return LINES

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """Error, squared error, coverage and width of the interval: their means over seeds are bias, MSE and so on."""
        known(line, LINES)
        drawn = KEPT_SEED if self.redraw == "policy" else seed
        found = _answers(self.data, drawn, self.rows_per_user, seed)[self.target]
        value, low, high = found["intervals"][line]
        error = value - found["truth"]
        return [
            {
                "bias": error,
                "MSE": error**2,
                "coverage": float(low <= found["truth"] <= high),
                "width": high - low,
                "answered": float(found["answer"] == "answerable"),
                "truth": found["truth"],
            }
        ]


@lru_cache(maxsize=1)
def _ratings(data: str | None) -> npt.NDArray[np.float64]:
    return load_jester(data)


@lru_cache(maxsize=4)
def _answers(data: str | None, drawn: int, rows_per_user: int, seed: int) -> dict[str, Row]:
    return answers(_ratings(data), drawn, rows_per_user, seed)


def jester_targets(world: JesterWorld) -> dict[str, Policy]:
    """Two policies worth asking about: a softmax of scores fitted to all ratings, and 0.1-greedy on them."""
    column = world.log.contexts["x"]
    assert isinstance(column, EmbeddingColumn)
    states = np.column_stack([column.values.astype(np.float64), np.ones(world.log.n_contexts)])
    fitted = np.linalg.lstsq(states, world.rewards, rcond=None)[0].T
    spread = float((states @ fitted.T).std())
    weights, bias = torch.from_numpy(fitted[:, :-1].copy()), torch.from_numpy(fitted[:, -1].copy())
    softmax = LinearSoftmaxPolicy("x", weights, bias, temperature=spread)
    return {"softmax": softmax, "greedy": EpsilonGreedyPolicy(softmax, 0.1)}


def answers(ratings: npt.NDArray[np.float64], drawn: int, rows_per_user: int, seed: int) -> dict[str, Row]:
    """By target: its true value, the verdict, and every line's estimate with its interval, from one simulated log."""
    world = simulate_log(ratings, drawn, JesterDesign(rows_per_user=rows_per_user))
    targets = jester_targets(world)
    shown: dict[str, Any] = {"intervals": ("normal", "bootstrap"), "seed": seed}
    hidden = evaluate(world.log.without_propensities(), targets, "auto", estimators=SHOWN, **shown)
    recorded = evaluate(world.log, targets, "recorded", estimators=("snips",), **shown)
    found = {}
    for name, target in targets.items():
        one, estimates = hidden[name], {each.name: each for each in hidden[name].estimates}
        true = recorded[name].estimates[0]
        intervals = {
            "auto": (one.value, one.interval.low, one.interval.high),
            "snips_true": _numbers(true, "normal"),
            "ips_bootstrap": _numbers(estimates["ips"], "bootstrap"),
            **{key: _numbers(each, "normal") for key, each in estimates.items()},
        }
        answer = one.preflight.verdict.answer
        found[name] = {"truth": world.value(target), "answer": answer, "intervals": intervals}
    return found


def _numbers(estimate: Any, method: str) -> tuple[float, float, float]:
    interval = estimate.intervals[method]
    return estimate.value, interval.low, interval.high
