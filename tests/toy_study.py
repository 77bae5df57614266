"""A study whose answers are known, for tests of the runner; importable by spawned workers."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpolicy.errors import DivergedError, OffPolicyError
from offpolicy.paper.plan import Plan
from offpolicy.paper.recipe import Recipe
from offpolicy.paper.studies import Study
from offpolicy.registry import Registry

CALLS = "calls.txt"


@dataclass(frozen=True)
class ToyStudy:
    """Quality of a line = its height − (setting − 1)²; tuning sees it with the noise of one draw."""

    data: str | None = None
    redraw: str = "all"
    lift: float = 0.0
    pause: float = 0.0
    calls: str | None = None
    """Folder in which every call is noted."""
    fails: str = ""
    diverges: str = ""

    def labels(self) -> Mapping[str, str]:
        return {"plain": "Plain", "better": "Better & <best>", "fixed": "Nothing_to tune", "truth": "Truth"}

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[dict[str, Any]]:
        self._note("tune", line, seed)
        if line == "fixed":
            return []
        if storage is not None:
            storage.parent.mkdir(exist_ok=True)
            storage.write_text("trials")
        return [{"settings": {"x": x}, "validation": 0.5, "trials": trials, "pruned": 0} for x in (2.0, 1.0, 3.0)]

    def validate(self, line: str, settings: Mapping[str, Any], seed: int) -> float:
        self._note("validate", line, seed)
        return self._quality(line, settings, seed)

    def measure(self, line: str, settings: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        self._note("measure", line, seed)
        if line == self.fails:
            raise OffPolicyError("The data of this line are missing.")
        quality = self._quality(line, settings, seed)
        return [{"P@5": quality, "NDCG@5": quality / 2}, {"subset": "rare", "P@5": quality - 1, "NDCG@5": None}]

    def _quality(self, line: str, settings: Mapping[str, Any], seed: int) -> float:
        if line == self.diverges and (seed == 1 or settings.get("x") == 1.0):
            raise DivergedError("The loss is not finite.")
        height = {"plain": 0.5, "better": 0.7, "fixed": 0.6, "truth": 0.9}[line]
        noise = 0.01 * ((seed * 7 + len(line)) % 5)
        off: float = settings.get("x", 1.0) - 1.0
        return round(height + self.lift + noise - off**2, 6)

    def _note(self, *words: Any) -> None:
        time.sleep(self.pause)
        if self.calls is not None:
            with (Path(self.calls) / CALLS).open("a") as file:
                file.write(" ".join(map(str, (os.getpid(), *words))) + "\n")


STUDIES: Registry[type[Study]] = Registry("study", {"toy": ToyStudy})

RECIPE = Recipe(
    "toy",
    "Toys",
    study="toy",
    columns=("P@5", "NDCG@5"),
    parts={"low": {}, "high": {"lift": 1.0}},
    lines=("truth", "plain", "better", "fixed"),
    ours=("better",),
    aside=("truth",),
)


def plan(seeds: int = 3, trials: int = 4, **arguments: Any) -> Plan:
    return Plan.of(replace(RECIPE, arguments=arguments), STUDIES, seeds=seeds, trials=trials, quick=True)
