"""A small log on disk, in every format, whose logger depends on the context, and a way to run commands in process."""

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from offpolicy.cli import main

ACTIONS = ("tea", "coffee", "juice", "<script>alert(1)</script>")


def a_frame(rows: int = 500, seed: int = 0) -> pl.DataFrame:
    chance = np.random.default_rng(seed)
    segment = chance.integers(0, 3, rows)
    age = chance.normal(size=rows).round(3)
    logits = np.stack([0.8 * (segment == a) + 0.3 * age * (a - 1.5) for a in range(4)], 1)
    prob = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    action = (prob.cumsum(1) < chance.random(rows)[:, None]).sum(1)
    click = chance.random(rows) < 0.2 + 0.5 * ((segment + 1) % 4 == action)
    every = np.arange(rows)
    return pl.DataFrame(
        {
            "user": [f"u{i // 2}" for i in every],
            "segment": [f"s{s}" for s in segment],
            "age": age,
            "item": [ACTIONS[a] for a in action],
            "click": click.astype(np.int64),
            "pscore": prob[every, action],
            "better": 0.7 * ((segment + 1) % 4 == action) + 0.075,
            "far": (every < 3).astype(np.float64),
        }
    )


def dsjson_lines(frame: pl.DataFrame) -> str:
    lines = []
    for row in frame.iter_rows(named=True):
        place = ACTIONS.index(row["item"])
        context = {"User": {"segment": row["segment"], "age": row["age"]}, "_multi": [{"_tag": a} for a in ACTIONS]}
        label = {"_label_cost": -row["click"], "_label_probability": row["pscore"], "_labelIndex": place}
        lines.append(json.dumps({**label, "a": [place + 1], "p": [row["pscore"]], "c": context}))
    return "\n".join(lines) + "\n"


def cb_lines(frame: pl.DataFrame) -> str:
    return "".join(
        f"{ACTIONS.index(row['item']) + 1}:{1 - row['click']}:{row['pscore']} "
        f"|User segment={row['segment']} age:{row['age']}\n"
        for row in frame.iter_rows(named=True)
    )


@dataclass(frozen=True)
class Finished:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def run(*arguments: str | Path) -> Finished:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*(str(word) for word in arguments), "--quiet"])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
    return Finished(code, out.getvalue(), err.getvalue())


def refused(*arguments: str | Path) -> str:
    """The paragraph of a command that must fail cleanly."""
    found = run(*arguments)
    assert found.code == 1, found
    assert found.out == ""
    assert "Traceback" not in found.err
    assert found.err.startswith("offpolicy: ")
    assert found.err.count("\n") == 1, found.err
    return found.err
