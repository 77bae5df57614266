"""The actions a policy recommends for encoded contexts, as rows in the user's own ids."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from offpolicy.artifacts.contexts import Mask
from offpolicy.log import ActionTable, FeatureTable
from offpolicy.models import iterate_log_probs, log_normaliser, top_k
from offpolicy.policies import ScorerPolicy

Mode: TypeAlias = Literal["greedy", "sample"]


def best(policy: ScorerPolicy, contexts: FeatureTable, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable actions of each context, best first, and their log π, both (contexts, k)."""
    states = policy.states(contexts)
    actions, scores = top_k(states, policy.weights, policy.bias, k)
    with torch.no_grad():
        total = log_normaliser(states, policy.weights, policy.bias)
    return actions, scores.double() - total.double().unsqueeze(1)


def drawn(policy: ScorerPolicy, contexts: FeatureTable, k: int, chance: np.random.Generator) -> tuple[Tensor, Tensor]:
    """k different actions of each context, in the order drawn from π without replacement, and their log π.

    The k largest of log π + Gumbel noise are such a draw. Noise is used up row by row, so that the batches in which
    contexts come do not change the result.
    """
    states = policy.states(contexts)
    actions = torch.empty(len(states), k, dtype=torch.int64)
    log_prob = torch.empty(len(states), k, dtype=torch.float64)
    for part, log_probs in iterate_log_probs(states, policy.weights, policy.bias):
        noise = torch.from_numpy(chance.standard_exponential(log_probs.shape)).log_().neg_()
        chosen = (log_probs.double() + noise).topk(k, 1).indices
        actions[part], log_prob[part] = chosen, log_probs.gather(1, chosen).double()
    return actions, log_prob


def recommendations(
    ranked: tuple[Tensor, Tensor],
    actions: ActionTable,
    unknown: Mapping[str, Mask],
    kept: Mapping[str, pl.Series],
    first_row: int,
    without: Mask | None = None,
) -> pl.DataFrame:
    """One row for each context and rank, the columns `kept` first.

    Among candidates a context has as many as there are; one `without` any that is known has a row without an action.
    """
    chosen, log_prob = ranked
    if without is not None:
        return _among(recommendations(ranked, actions, unknown, kept, first_row), without, first_row)
    n_rows, k = chosen.shape
    rows = np.repeat(np.arange(n_rows), k)
    note = notes(unknown, n_rows)
    columns = {name: values.gather(rows) for name, values in kept.items()} | {
        "row": pl.Series(rows + first_row, dtype=pl.Int64),
        "rank": pl.Series(np.tile(np.arange(1, k + 1), n_rows), dtype=pl.Int64),
        "action": actions.vocabulary.ids.gather(chosen.clamp(min=0).flatten().numpy()),
        "probability": pl.Series(log_prob.exp().flatten().numpy(), dtype=pl.Float64),
        "unknown": note.is_not_null().gather(rows),
        "note": note.gather(rows),
    }
    return pl.DataFrame([values.alias(name) for name, values in columns.items()])


def _among(frame: pl.DataFrame, without: Mask, first_row: int) -> pl.DataFrame:
    """The rows of real candidates; one row, without action and probability, for a context that has none."""
    lacking = pl.Series(without).gather(frame["row"] - first_row)
    frame = frame.filter((pl.Series(frame["probability"] > 0) & ~lacking) | (lacking & (frame["rank"] == 1)))
    lacking = pl.Series(without).gather(frame["row"] - first_row)
    return frame.with_columns(
        pl.when(lacking).then(None).otherwise(pl.col("action")).alias("action"),
        pl.when(lacking).then(None).otherwise(pl.col("probability")).alias("probability"),
        pl.when(lacking).then(pl.lit("none of its candidates is known")).otherwise(pl.col("note")).alias("note"),
    )


def notes(unknown: Mapping[str, Mask], n_rows: int) -> pl.Series:
    """For each context which of its columns hold an id that the policy does not know; null where all are known."""
    texts = np.full(1, None, dtype=object)
    pattern: npt.NDArray[np.int64] = np.zeros(n_rows, dtype=np.int64)
    for name, mask in unknown.items():
        keys, pattern = np.unique(pattern * 2 + mask, return_inverse=True)
        before = texts[keys // 2]
        texts = np.array(
            [
                f"{text}, {name}" if odd and text else name if odd else text
                for text, odd in zip(before, keys % 2, strict=True)
            ],
            dtype=object,
        )
    said = [None if text is None else f"unknown id in {text}" for text in texts]
    return pl.Series(said, dtype=pl.String).gather(pattern) if n_rows else pl.Series([], dtype=pl.String)
