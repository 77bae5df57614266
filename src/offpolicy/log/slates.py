"""Slates: requests that show several actions at once, one in each position.

A slate is so many decisions, one a position, from the top. Where no request of a log shows an action twice, each is
made among the actions not yet shown: its candidates. So β̂ and policies need to know nothing of slates; only evaluation
and learning do, which multiply ratios along a request.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import CategoricalColumn, FeatureTable
from offpolicy.log.ids import Codes, owned
from offpolicy.log.vocabulary import Vocabulary

POSITION = "position"
"""The context column that holds the position, where the log names none."""
MOST_CANDIDATES = 2**29
"""Candidates of all rows beyond which they would not fit into memory."""


def coded_positions(request: Codes, position: Any, named: Callable[[int], str] = str) -> Codes:
    """Positions from 0, whether the log counts from 0 or from 1; `named` tells the id of a request from its code."""
    values = np.asarray(position)
    if values.dtype.kind not in "iu":
        whole = values.astype(np.int64) if values.dtype.kind == "f" and np.isfinite(values).all() else None
        if whole is None or (whole != values).any():
            raise LogError("position must hold whole numbers, the place of each action in its request, from 1 or 0.")
        values = whole
    first = int(values.min())
    if first not in (0, 1):
        row = int(values.argmin())
        raise LogError(f"Positions count from 0 or from 1, but request {named(int(request[row]))} has one of {first}.")
    codes = owned((values - first).astype(np.int32))
    check_slates(request, codes, named, first)
    return codes


def check_slates(request: Codes, position: Codes, named: Callable[[int], str] = str, first: int = 0) -> None:
    """Refuse requests with two actions in one position, or with positions left out."""
    order = np.lexsort((position, request))
    ordered, place = request[order], position[order].astype(np.int64)
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    expected = np.arange(len(order)) - np.flatnonzero(starts)[np.cumsum(starts) - 1]
    if np.array_equal(place, expected):
        return
    at = int(np.argmax(place != expected))
    name, found = named(int(ordered[at])), place[at] + first
    if not starts[at] and place[at] == place[at - 1]:
        raise LogError(
            f"Request {name} shows two actions in position {found}. A position holds one action: fix or drop a row."
        )
    raise LogError(
        f"Request {name} has an action in position {found} but none in position {expected[at] + first}. Positions "
        "have no gaps: add the missing row, or number those that were seen."
    )


def slate_table(
    request: npt.NDArray[Any], position: npt.NDArray[Any], values: npt.NDArray[Any], fill: Any = 0
) -> npt.NDArray[Any]:
    """One value a row as a table (requests, positions)."""
    table = np.full((int(request.max()) + 1, int(position.max()) + 1), fill, dtype=values.dtype)
    table[request, position] = values
    return table


def shows_repeats(request: Codes, action: Codes) -> bool:
    """Whether a request shows an action twice; if none does, actions are taken to be shown once at most."""
    pair = request.astype(np.int64) * (int(action.max()) + 1) + action
    return len(np.unique(pair)) < len(pair)


def not_yet_shown(
    request: Codes, position: Codes, action: Codes, vocabulary: Vocabulary, offered: Candidates | None = None
) -> Candidates:
    """The candidates of each row: what was offered (all actions, or the candidates given) less what stands above."""
    n, shown = len(request), slate_table(request, position, action, -1)
    total = n * len(vocabulary) if offered is None else len(offered.codes)
    if total > MOST_CANDIDATES:
        raise LogError(
            f"{n:,} rows with {len(vocabulary):,} actions each are {total:,} candidates, too many to keep. Name the "
            "actions that each request could show (those retrieved for it) with candidates."
        )
    codes = np.tile(np.arange(len(vocabulary), dtype=np.int32), n) if offered is None else offered.codes
    owner = np.repeat(np.arange(n), len(vocabulary)) if offered is None else offered.owner
    kept = np.ones(total, dtype=np.bool_)
    for above in range(shown.shape[1] - 1):
        kept &= (codes != shown[request, above][owner]) | (position[owner] <= above)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[kept], minlength=n))))
    features = None if offered is None or offered.features is None else offered.features.take(kept)
    return Candidates(offsets, codes[kept], vocabulary, features)


def slate_contexts(
    contexts: FeatureTable, request: Codes, position: Codes, action: Codes, vocabulary: Vocabulary
) -> FeatureTable:
    """The context of each row with its position, and with the actions not yet shown for candidates.

    Where a request shows an action twice, all are taken to be on offer in every position.
    """
    columns: dict[str, Any] = dict(contexts)
    if POSITION not in columns:
        places = Vocabulary(range(int(position.max()) + 1))
        columns[POSITION] = CategoricalColumn(position, places)
    if shows_repeats(request, action):
        return contexts.changed(columns)
    return FeatureTable(columns, not_yet_shown(request, position, action, vocabulary, contexts.candidates))


def check_nested(request: Codes, cluster: Codes | None, named: Callable[[int], str] = str) -> None:
    """Refuse a request whose rows are in two clusters: they would be counted as independent."""
    if cluster is None:
        return
    first = np.zeros(int(request.max()) + 1, dtype=np.int64)
    first[request[::-1]] = cluster[::-1]
    apart = first[request] != cluster
    if apart.any():
        name = named(int(request[int(np.argmax(apart))]))
        raise LogError(f"The rows of request {name} are in two clusters. A request belongs to one: fix the column.")
