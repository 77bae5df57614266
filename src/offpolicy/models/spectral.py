"""Two plain towers for contexts known by ids: each id enters by which actions it was logged with, as a few numbers.

A column with more ids than a design matrix has places for is embedded by the singular vectors of D^{-1/2}·C·A^{-1/2}
(correspondence analysis), C counting how often id and action occur together, D and A its margins. No reward is used, so
that a model of rewards on these states can still be judged on held-out rewards. Other columns enter as they are.
"""

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import LinearOperator, svds

from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.columns import Bags, IdColumn, Indexed
from offpolicy.models.encoders import MAX_CATEGORIES, ColumnIndex
from offpolicy.models.scorers import TwoTowerScorer
from offpolicy.models.towers import ActionTower, Block, ContextTower, Tower

Floats = npt.NDArray[np.float64]

FEWEST, MOST = 4, 16
"""Directions an id is described by."""
CLEARLY = 1.1
"""How far above the largest singular value of noise one must be to count."""
PSEUDO_ROWS = 10.0
"""Rows that pull an id towards the average one: an id with so few of its own is half-way."""


def has_many_ids(contexts: FeatureTable) -> bool:
    """Whether a column has more ids than a design matrix has places for."""
    return any(_is_wide(column) for column in ColumnIndex.fit(contexts).columns)


def spectral_scorer(log: LoggedData, rank: int | None = None) -> TwoTowerScorer:
    """A two-tower scorer whose states are spectral embeddings of ids beside the other columns; items start at zero.

    `rank` directions an id; None counts those that stand out from what ids without any preference would show.
    """
    index = ColumnIndex.fit(log.contexts)
    blocks: list[Block] = []
    tables: list[Floats] = []
    for column, codes in zip(index.columns, index.encode(log.contexts), strict=True):
        if not isinstance(column, IdColumn):
            blocks.append(Block("numbers", column.width, column.width))
            continue
        table = _spectral(codes, column.width, log, rank) if _is_wide(column) else np.eye(column.width)[:, :-1]
        size, width = table.shape
        blocks.append(Block("bag" if column.kind == "bag" else "categorical", size, width, unknown=True))
        tables.append(table)
    dim = sum(block.width for block in blocks)
    user = Tower(blocks, dim, plain=True)
    items = Tower([Block("categorical", log.n_actions, dim)], dim, plain=True)
    scorer = TwoTowerScorer(ContextTower(index, user), ActionTower(items, []))
    with torch.no_grad():
        for parameter, table in zip(user.embeddings, tables, strict=True):
            parameter.copy_(torch.from_numpy(table))
        items.embeddings[0].zero_()
        scorer.projection.fill_(1.0)
    return scorer


def _is_wide(column: object) -> bool:
    return isinstance(column, IdColumn) and len(column.ids) > MAX_CATEGORIES


def _spectral(codes: Indexed, n_ids: int, log: LoggedData, rank: int | None) -> Floats:
    """Coordinates of every id, with unit variance over events; the last row, of unknown ids, is zero."""
    weight = np.ones(log.n_rows) if log.row_weight is None else np.asarray(log.row_weight, dtype=np.float64)
    pairs = csr_matrix((weight, (log.context_index, log.action)), shape=(log.n_contexts, log.n_actions))
    counts = csr_matrix(_membership(codes, n_ids).T @ pairs)
    by_id, by_action = (np.asarray(counts.sum(axis)).ravel() for axis in (1, 0))
    total = float(by_id.sum())
    most = max(min(MOST, *(size - 1 for size in counts.shape)), 1)
    start = np.random.default_rng(0).standard_normal(min(counts.shape))
    left, sizes, _ = svds(_beyond_margins(counts, by_id, by_action), k=most, v0=start)
    order = np.argsort(-sizes)
    if rank is None:
        noise = CLEARLY * sum(np.sqrt(np.count_nonzero(margin)) for margin in (by_id, by_action)) / np.sqrt(total)
        rank = max(int((sizes[order] > noise).sum()), FEWEST)
    kept = left[:, order[:rank]] * (_root(by_id) * by_id / (by_id + PSEUDO_ROWS))[:, None]
    spread = np.sqrt((by_id / total) @ np.square(kept)).clip(min=1e-12)
    table = kept / spread
    table[-1] = 0.0
    return np.asarray(table)


def _membership(codes: Indexed, n_ids: int) -> csr_matrix:
    """Contexts × ids: 1 for the id of a context, equal shares for those of a bag."""
    if isinstance(codes, Bags):
        sizes = np.diff(codes.offsets.numpy())
        share = 1 / np.repeat(sizes, sizes).astype(np.float64)
        return csr_matrix((share, codes.codes.numpy(), codes.offsets.numpy()), shape=(len(sizes), n_ids))
    places = codes.long().numpy()
    return csr_matrix((np.ones(len(places)), (np.arange(len(places)), places)), shape=(len(places), n_ids))


def _beyond_margins(counts: csr_matrix, by_id: Floats, by_action: Floats) -> LinearOperator:
    """D^{-1/2}·C·A^{-1/2} less its first singular pair, which is the margins themselves, as products."""
    scaled = diags(_root(by_id)) @ counts @ diags(_root(by_action))
    left, right = (np.sqrt(margin / by_id.sum()) for margin in (by_id, by_action))
    return LinearOperator(
        scaled.shape,
        matvec=lambda v: scaled @ v.ravel() - left * (right @ v.ravel()),
        rmatvec=lambda u: scaled.T @ u.ravel() - right * (left @ u.ravel()),
        dtype=np.float64,
    )


def _root(margin: Floats) -> Floats:
    """1/√margin, zero where nothing was counted."""
    return np.where(margin > 0, 1 / np.sqrt(np.maximum(margin, 1e-12)), 0.0)
