"""Logs with every kind of column, scorers with drawn weights, and contexts with ids that no log has met."""

from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from offpolicy.log import LoggedData, read_log
from offpolicy.models.scorers import LinearScorer, TwoTowerScorer, linear_scorer, two_tower_scorer

COLUMNS = ("user", "segment", "age", "taste", "history")
KINDS: dict[str, Any] = {"history": "bag", "taste": "embedding", "segment": "categorical"}
ACTIONS = [f"item-{i}" for i in range(23)]


def frame(rows: int, seed: int = 0, *, strangers: bool = False) -> pl.DataFrame:
    """Contexts: string users (null among them), integer segments, numbers, vectors and bags of strings."""
    random = np.random.default_rng(seed)
    users = 90 if strangers else 60
    segments = 9 if strangers else 6
    tags = ["rock", "jazz", "folk", "new wave", "é ü"] + (["polka", ""] if strangers else [])
    user = [None if i % 17 == 3 else f"u{i}" for i in random.integers(users, size=rows)]
    bags = [[tags[j] for j in random.integers(len(tags), size=n)] for n in random.integers(0, 5, size=rows)]
    return pl.DataFrame(
        {
            "user": user,
            "segment": random.integers(segments, size=rows) * 10 - 20,
            "age": random.normal(40, 12, size=rows).round(3),
            "taste": pl.Series(random.normal(size=(rows, 3)).astype(np.float32)),
            "history": pl.Series(bags, dtype=pl.List(pl.String)),
        }
    )


def action_frame() -> pl.DataFrame:
    random = np.random.default_rng(5)
    n = len(ACTIONS)
    topics = [[int(t) for t in random.integers(4, size=size)] for size in random.integers(0, 3, size=n)]
    return pl.DataFrame(
        {
            "item": ACTIONS,
            "price": random.uniform(size=n),
            "brand": [f"b{i % 4}" for i in range(n)],
            "look": pl.Series(random.normal(size=(n, 2)).astype(np.float32)),
            "topics": pl.Series(topics, dtype=pl.List(pl.Int64)),
        }
    )


def a_log(rows: int = 300, seed: int = 0) -> LoggedData:
    random = np.random.default_rng(seed + 100)
    logged = frame(rows, seed).with_columns(
        pl.Series("item", [ACTIONS[i] for i in random.integers(len(ACTIONS), size=rows)]),
        pl.Series("reward", random.uniform(-1, 3, size=rows)),
    )
    return read_log(
        logged, context=COLUMNS, action="item", reward="reward", actions=action_frame(), reward_range=(-1, 3)
    )


def jolted(scorer: Any, seed: int = 0) -> Any:
    """The scorer with weights and batch-norm statistics as after some training."""
    generator = torch.Generator().manual_seed(seed)
    assert isinstance(scorer, nn.Module)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for module in scorer.modules():
            if isinstance(module, nn.BatchNorm1d):
                mean, variance = module.running_mean, module.running_var
                assert mean is not None
                assert variance is not None
                mean.add_(torch.randn(mean.shape, generator=generator) * 0.2)
                variance.mul_(torch.rand(variance.shape, generator=generator) + 0.5)
    return scorer.eval()


def a_linear(log: LoggedData, max_categories: int = 16) -> LinearScorer:
    scorer: LinearScorer = jolted(linear_scorer(log, max_categories))
    return scorer


def a_two_tower(log: LoggedData) -> TwoTowerScorer:
    user = {"linear": {"history": 5}, "columns": {"user": 6}}
    scorer: TwoTowerScorer = jolted(two_tower_scorer(log, dim=8, id_dim=6, feature_dim=4, user=user))
    return scorer
