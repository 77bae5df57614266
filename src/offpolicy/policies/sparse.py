"""Policies given as lists: a few actions for each context, row or request, with their probabilities or without.

A list per row or per request may know more than the context does. What counts for a context is the mean of its rows'
lists: the value of a policy is that of this mean, as far as the logged action depended on the context alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import (
    ActionTable,
    CategoricalColumn,
    FeatureTable,
    LoggedData,
    NumericColumn,
    digest,
    is_path,
    read_table,
    source_names,
    split_text,
    table_hashes,
    typed_text,
)
from offpolicy.policies.policy import batch_log_probs, tensor

RESIDUAL = 0.05
"""Mass that lists without probabilities leave to all actions alike."""
EXCESS = 1e-4
"""By how much the probabilities of a request may sum to more than 1."""
PROBABILITIES = ("probability", "prob", "propensity", "pi", "p")
ACTIONS = ("action", "actions", "item", "items", "item_id", "items_ids", "arm", "list", "recommended")
IGNORED = ("row", "rank", "unknown", "note", *PROBABILITIES)
"""Columns of a file of recommendations that identify nothing."""


@dataclass(frozen=True)
class SparsePolicy:
    """Some actions of each context of a log with their probabilities; the rest is spread evenly over all actions."""

    actions: ActionTable
    contexts: str
    """Fingerprint of the contexts."""
    place: Tensor
    """(entries,) context · K + action, ascending."""
    probs: Tensor  # (entries,)
    rest: Tensor
    """(contexts,) the mass that is spread over all K actions."""

    @classmethod
    def of_lists(cls, actions: ActionTable, contexts: str, lists: Tensor, residual: float = RESIDUAL) -> "SparsePolicy":
        """Lists of actions' codes, (contexts, k), each at most once; −1 pads a shorter list, an empty one says nothing.

        The actions of a list share all but the residual.
        """
        listed = (lists >= 0).sum(1)
        rest = torch.where(listed > 0, residual, 1.0).double()
        share = ((1 - rest) / listed.clamp(min=1))[:, None].expand(lists.shape)[lists >= 0]
        place = (torch.arange(len(lists))[:, None] * len(actions) + lists)[lists >= 0]
        order = place.argsort()
        return cls(actions, contexts, place[order], share[order], rest)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return len(self.actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """Probabilities of all actions for all contexts of the log."""
        self._check(digest(table_hashes(contexts, contexts.n_rows)))
        return self.log_probs_at(slice(None))

    def log_probs_at(self, contexts: slice) -> Tensor:
        """Probabilities of all actions for some contexts of the log."""
        start, stop, _ = contexts.indices(len(self.rest))
        first, last = torch.searchsorted(self.place, torch.tensor([start, stop]) * self.n_actions).tolist()
        probs = (self.rest[start:stop] / self.n_actions)[:, None].repeat(1, self.n_actions)
        probs.view(-1)[self.place[first:last] - start * self.n_actions] += self.probs[first:last]
        return probs.log()

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """π of the logged actions, without looking at the others."""
        self._check(digest(log.context_hashes))
        if log.candidates is not None:
            result = torch.empty(log.n_rows, dtype=torch.float64)
            for batch in log.batches(width=self.n_actions):
                result[batch.rows] = batch_log_probs(self, log, batch)[batch.row_context, batch.row_place]
            return result
        context = tensor(log.context_index).long()
        wanted = context * self.n_actions + tensor(log.action).long()
        found = torch.searchsorted(self.place, wanted).clamp(max=max(len(self.place) - 1, 0))
        listed = self.place[found] == wanted if len(self.place) else torch.zeros(log.n_rows, dtype=torch.bool)
        own = self.probs[found] if len(self.place) else torch.zeros(log.n_rows, dtype=torch.float64)
        return (own * listed + self.rest[context] / self.n_actions).log()

    def _check(self, contexts: str) -> None:
        if contexts != self.contexts:
            raise ParameterError("Top-k lists belong to the contexts of the log they were given for.")


def listed_policy(lists: Sequence[Any], log: LoggedData, name: str, residual: float = RESIDUAL) -> SparsePolicy:
    """One list of the user's action ids for each context of the log, or for each of its rows."""
    by_row = len(lists) == log.n_rows
    if by_row and len(lists) == log.n_contexts and not np.array_equal(log.context_index, np.arange(log.n_rows)):
        raise ParameterError(
            f"Policy {name!r} gives {len(lists)} lists, which may be one for each row or for each context of the log, "
            "and they are in another order. Give them as a frame with a key."
        )
    if len(lists) not in (log.n_rows, log.n_contexts):
        raise ParameterError(
            f"Policy {name!r} must give 'lists', one list of action ids for each of the {log.n_contexts} contexts of "
            f"the log (or each of its {log.n_rows} rows), but there are {len(lists)}."
        )
    sizes = [len(one) for one in lists]
    flat = [action for one in lists for action in one]
    owner = np.repeat(np.arange(len(lists)), sizes)
    codes = log.actions.vocabulary.encode(flat).astype(np.int64) if flat else np.empty(0, np.int64)
    if (codes < 0).any():
        place = int(np.argmax(codes < 0))
        unit = "row" if by_row and log.n_rows != log.n_contexts else "context"
        raise _unknown_action(name, flat[place], f" for {unit} {owner[place]}")
    entries = _shared(pl.DataFrame({"request": owner, "code": codes}), residual)
    requests = np.arange(log.n_rows) if by_row else log.context_index.astype(np.int64)
    return _mean_over_rows(entries, requests, log)


def joined_policy(source: Any, log: LoggedData, name: str, **given: Any) -> SparsePolicy:
    """Rows of a frame or file, joined to the rows of the log by a key.

    Each row names a request and one action (with its probability, or as one of the request's list) or a list of
    actions. The key is what both sides have: columns the log keeps beside its rows, else columns of the context.
    """
    table = JoinedTable.read(source, log, name, **given)
    requests = table.requests(log)
    missing = np.flatnonzero(requests < 0)
    if missing.size:
        raise ParameterError(
            f"Policy {name!r} has no entry for {missing.size:,} of the log's {log.n_rows:,} rows, the first of them "
            f"row {missing[0] + 1} (counted from 1; joined by {', '.join(table.key)}). Add them, or leave "
            "these rows out of the log."
        )
    return _mean_over_rows(table.entries(log, name), requests, log)


@dataclass(frozen=True)
class JoinedTable:
    """A policy's rows, the columns that identify a request, and the columns with actions and probabilities."""

    frame: pl.DataFrame
    key: tuple[str, ...]
    action: str
    probability: str | None
    residual: float = RESIDUAL

    @classmethod
    def read(
        cls,
        source: Any,
        log: LoggedData,
        name: str,
        *,
        key: Sequence[str] = (),
        action: str | None = None,
        residual: float = RESIDUAL,
    ) -> "JoinedTable":
        """Find out which column is which."""
        frame = frame_of(source)
        columns = frame.columns
        found = action if action in columns else next((one for one in ACTIONS if one in columns), None)
        known = [one for one in columns if one not in IGNORED and one != found]
        if found is None:
            others = [one for one in known if one not in _names(log)]
            found = others[0] if len(others) == 1 else None
        if found is None:
            raise ParameterError(
                f"Policy {name!r} is a table without a column of actions. Call it action, item or as in the log; its "
                f"columns are: {', '.join(columns)}."
            )
        kept = [] if log.kept is None else log.kept.columns
        inferred = [one for one in known if one in kept] or [one for one in known if one in _names(log)]
        chosen = tuple(key) or tuple(one for one in inferred if one != found)
        wrong = next((one for one in chosen if one not in columns or one not in _names(log)), None)
        if not chosen or wrong is not None:
            which = f"{wrong!r} is not in both" if wrong else "they share no column"
            raise ParameterError(
                f"Policy {name!r} cannot be joined to the log: {which}. The table has {', '.join(columns)}; the log "
                f"has {', '.join(_names(log))}. Name a key that both have (--key, or keep=[...] in read_log)."
            )
        probability = next((one for one in PROBABILITIES if one in columns), None)
        return cls(frame, chosen, found, probability, residual)

    def requests(self, log: LoggedData) -> Any:
        """Which request of the table each row of the log belongs to; −1 for none."""
        own = _keys([self.frame[one] for one in self.key])
        rows = _keys([column_of(log, one) for one in self.key])
        casts = [pl.col(one).cast(pl.String) for one in own.columns if rows[one].dtype != own[one].dtype]
        numbered = own.with_columns(casts).unique(maintain_order=True).with_row_index("request")
        found = rows.with_columns(casts).join(
            numbered, on=own.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        return found["request"].cast(pl.Int64).fill_null(-1).to_numpy()

    def entries(self, log: LoggedData, name: str) -> pl.DataFrame:
        """(request, code, prob) of every listed action."""
        own = _keys([self.frame[one] for one in self.key])
        numbered = own.unique(maintain_order=True).with_row_index("request")
        request = own.join(numbered, on=own.columns, how="left", nulls_equal=True, maintain_order="left")["request"]
        columns = [request.cast(pl.Int64), self.frame[self.action].alias("action")]
        if self.probability is not None:
            columns.append(self.frame[self.probability].cast(pl.Float64, strict=False).alias("prob"))
        frame = exploded(pl.DataFrame(columns), log.actions)
        codes = encoded(frame["action"], log.actions)
        if (codes < 0).any():
            raise _unknown_action(name, frame["action"][int(np.argmax(codes < 0))])
        frame = frame.drop("action").with_columns(code=pl.Series(codes))
        if self.probability is None:
            return _shared(frame, self.residual)
        return _checked(frame, name, numbered.drop("request").rename(dict(zip(own.columns, self.key, strict=True))))


def _keys(columns: Sequence[pl.Series]) -> pl.DataFrame:
    """The columns of a key under names of our own, which no column of the user's can have."""
    return pl.DataFrame([one.alias(f"key {number}") for number, one in enumerate(columns)])


def frame_of(source: Any) -> pl.DataFrame:
    """A table of any kind, text typed."""
    names = source_names(source) if is_path(source) else []
    kinds = {one: "as written" for one in names if one not in PROBABILITIES}
    table = read_table(source, (), everything=True, argument="policy", kinds=kinds)
    text = table.origin.is_text
    series = [typed_text(n, s, "categorical", table.origin) if text else s for n, s in table.series.items()]
    return pl.DataFrame([one.alias(name) for name, one in zip(table.series, series, strict=True)])


def exploded(frame: pl.DataFrame, actions: ActionTable) -> pl.DataFrame:
    """One action a row, whether lists were lists or text such as a|b|c."""
    action = frame["action"]
    if action.dtype == pl.String and len(action) and (encoded(action.head(1), actions) < 0).all():
        frame = frame.with_columns(split_text(action))
    if isinstance(frame["action"].dtype, pl.List | pl.Array):
        frame = frame.explode("action")
    return frame.drop_nulls("action")


def encoded(ids: pl.Series, actions: ActionTable) -> Any:
    """Codes of actions, ids being matched as numbers or as text."""
    own = actions.vocabulary.ids.dtype
    if ids.dtype != own and (ids.dtype == pl.String or own == pl.String or ids.dtype.is_float()):
        ids = ids.cast(own, strict=False)
    return actions.vocabulary.encode(ids).astype(np.int64)


def column_of(log: LoggedData, name: str) -> pl.Series:
    """A column of a log's rows: kept beside them, or of their contexts."""
    if log.kept is not None and name in log.kept.columns:
        return log.kept_column(name)
    column = log.contexts[name]
    index = log.context_index
    if isinstance(column, NumericColumn):
        return pl.Series(name, column.values[index])
    assert isinstance(column, CategoricalColumn)
    return column.vocabulary.ids.gather(column.codes[index]).alias(name)


def _names(log: LoggedData) -> list[str]:
    contexts = [name for name, one in log.contexts.items() if isinstance(one, NumericColumn | CategoricalColumn)]
    return list(dict.fromkeys([*([] if log.kept is None else log.kept.columns), *contexts]))


def _shared(frame: pl.DataFrame, residual: float) -> pl.DataFrame:
    """Each of a request's distinct actions with its equal share."""
    frame = frame.unique(["request", "code"], maintain_order=True)
    return frame.with_columns(prob=(1 - residual) / pl.len().over("request"))


def _checked(frame: pl.DataFrame, name: str, requests: pl.DataFrame) -> pl.DataFrame:
    """The entries, or an error that names the request whose probabilities are none; `requests` holds their keys."""
    bad = frame.filter(~pl.col("prob").fill_null(-1).fill_nan(-1).is_between(0, 1))
    if bad.height:
        raise ParameterError(f"Policy {name!r} must hold probabilities in [0, 1], but one is {bad['prob'][0]}.")
    total = frame.group_by("request", maintain_order=True).agg(pl.col("prob").sum())
    total = total.filter(pl.col("prob") > 1 + EXCESS)
    if total.height:
        request, largest = total.row(0)
        key = ", ".join(f"{column} {value}" for column, value in requests.row(request, named=True).items())
        raise ParameterError(
            f"Policy {name!r} gives the actions of the request with {key} probabilities that sum to {largest:.6g} (so "
            f"for {total.height:,} of {requests.height:,} requests), but they must not exceed 1. If several columns "
            "tell requests apart, name them all with --key."
        )
    return frame


def _mean_over_rows(entries: pl.DataFrame, requests: Any, log: LoggedData) -> SparsePolicy:
    """The mean over each context's rows of what their requests list."""
    rows = pl.DataFrame({"request": requests, "context": log.context_index.astype(np.int64)})
    shares = rows.group_by("context", "request").len()
    shares = shares.with_columns(share=pl.col("len") / pl.col("len").sum().over("context"))
    listed = shares.join(entries, on="request").with_columns(pl.col("prob") * pl.col("share"))
    listed = listed.with_columns(place=pl.col("context") * log.n_actions + pl.col("code"))
    listed = listed.group_by("place").agg(pl.col("prob").sum()).sort("place")
    total = np.bincount(listed["place"].to_numpy() // log.n_actions, listed["prob"].to_numpy(), log.n_contexts)
    return SparsePolicy(
        log.actions,
        digest(log.context_hashes),
        torch.from_numpy(listed["place"].to_numpy().copy()),
        torch.from_numpy(listed["prob"].to_numpy().copy()),
        torch.from_numpy(np.maximum(1 - total, 0.0)),
    )


def _unknown_action(name: str, action: Any, where: str = "") -> ParameterError:
    return ParameterError(
        f"Policy {name!r} lists action {action!r}{where}, but the log has no such action. Give the log the full list "
        "of actions."
    )
