"""Small tables with ties, all kinds of columns, and users who share contexts."""

from typing import Any

import numpy as np
import polars as pl


def frame(rows: int = 600, seed: int = 0) -> pl.DataFrame:
    """Rows with ties, all kinds of columns, and users who share contexts."""
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": draw.integers(0, 5, rows) / 2,
            "country": draw.choice(["de", "fr", "it"], rows),
            "tags": [["a", "b"][: draw.integers(0, 3)] for _ in range(rows)],
            "action": draw.choice(["x", "y", "z"], rows),
            "reward": draw.integers(0, 2, rows).astype(float),
            "user": draw.integers(0, 60, rows),
            "when": draw.integers(0, 3, rows),
            "prob": draw.choice([0.25, 0.5], rows),
            "margin": draw.integers(0, 2, rows).astype(float),
            "request": np.arange(rows) // 2,
            "place": np.arange(rows) % 2 + 1,
        }
    )


COLUMNS: dict[str, Any] = {"context": ["age", "country", "tags"], "action": "action", "reward": "reward"}
WAYS: dict[str, dict[str, Any]] = {
    "contexts": {},
    "clusters": {"cluster": "user", "timestamp": "when", "propensity": "prob", "keep": ["margin"]},
    "slates": {"request": "request", "position": "place"},
}
