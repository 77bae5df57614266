"""The linear β̂ of a log of many shards: L-BFGS whose sums are mapped over shards and merged in their order.

Of each shard its features along the axes are kept beside it (memory-mapped over a store); a step sends θ to the workers
and gets sums back. θ is the same, to the last bit, for any number of workers and for
a log in memory or in a store. The ridge is chosen, and quality is measured, on contexts drawn at random; whole shards
are held out for that, and the fit to the others is where the fit to all of them starts. The search is over shards, too:
those into which its sample is divided.
"""

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from offpolicy.atomic import write_atomic
from offpolicy.engine import Engine, ShardPool, beside, engine_of, in_groups, spilled
from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData, digest
from offpolicy.models import Offered, Scorer, log_normaliser_gradient, offered_of
from offpolicy.policies import tensor
from offpolicy.propensity.config import RIDGES, FitConfig, FitOutcome
from offpolicy.propensity.families.softmax import Softmax
from offpolicy.propensity.likelihood import LOOSE, SEARCH, SEARCH_NUMBERS, TIGHT, best_ridge, softmax_policy
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.quality import measure
from offpolicy.propensity.whole_batch import FLAT, Axes, Likelihood, precision
from offpolicy.results import Quality
from offpolicy.seeding import generator

Floats = npt.NDArray[np.floating]

PIECES = 8
"""The shards of a search's sample: fixed, so that what is found does not depend on the number of workers."""
ANSWER_BYTES = 4 << 20
"""Groups whose gradients together are no larger answer in one message."""


def fit_over_shards(
    family: Softmax, log: LoggedData, held_out: float, config: FitConfig, engine: Engine | str | None
) -> tuple[FittedModel, FitOutcome, Quality]:
    """A linear family fitted to a log of many shards, and its quality on shards that were held out."""
    scorer = family.make(log, config.seed)
    if not scorer.is_linear:
        raise ParameterError(f"{family.name} cannot be fitted over shards: its scorer is not linear.")
    last = min(log.n_shards - 1, log.n_shards - max(1, round(held_out * log.n_shards)))
    train, valid = (
        some_rows(log, range(*part), config.seed, name)
        for part, name in (((0, last), "ridge"), ((last, log.n_shards), "held-out"))
    )
    groups = in_groups(range(last))
    rest = [[shard] for shard in range(last, log.n_shards)]
    most, pieces = 2 * config.epochs, train.sharded(PIECES)
    with engine_of(engine) as working:
        with working.over(pieces) as pool:
            each = [[piece] for piece in range(pieces.n_shards)]
            search = OverShards(scorer, pieces, pool, Statistics.of(scorer, pieces, pool, len(each)), each)
            ridge = best_ridge(scorer, search, valid, config) if config.ridge is None else config.ridge
            search.maximise(scorer, ridge, SEARCH, most)
        with working.over(log, groups + rest) as pool:
            statistics = Statistics.of(scorer, log, pool, last)
            OverShards(scorer, log, pool, statistics, groups, config.keep).maximise(scorer, ridge, LOOSE, most)
            quality = measure(softmax_policy(scorer, log), valid, train)
            problem = OverShards(scorer, log, pool, statistics, groups + rest, config.keep)
            converged = problem.maximise(scorer, ridge, TIGHT if problem.dtype == torch.float64 else LOOSE, most)
    if not all(bool(torch.isfinite(part).all()) for part in scorer.actions()):
        raise ParameterError("The logging policy could not be fitted: its likelihood is not a number on these rows.")
    at_end = config.ridge is None and ridge in (RIDGES[0], RIDGES[-1])
    outcome = FitOutcome(ridge, converged=converged, at_grid_end=at_end)
    return FittedModel(softmax_policy(scorer, log), scorer, ridge if ridge > 0 else 1.0), outcome, quality


def some_rows(log: LoggedData, shards: Sequence[int], seed: int, purpose: str) -> LoggedData:
    """The rows of contexts drawn at random from some shards that follow each other, within the budget of a search."""
    assert log.layout is not None
    first, last = log.layout.contexts[shards[0]], log.layout.contexts[shards[-1] + 1]
    most = max(1, SEARCH_NUMBERS // log.width)
    chosen = np.zeros(log.n_contexts, dtype=np.bool_)
    if last - first <= most:
        chosen[first:last] = True
    else:
        chosen[first + generator(seed, "logging-policy", purpose).choice(last - first, most, replace=False)] = True
    starts = log.layout.rows
    rows = [
        starts[number] + np.flatnonzero(chosen[log.context_index[starts[number] : starts[number + 1]]])
        for number in shards
    ]
    return log.take(np.concatenate(rows))


class Statistics:
    """What a pass over all shards finds: axes of the features, and sums of the events and features of each action."""

    def __init__(self, axes: Axes, dtype: torch.dtype, train: Tensor, whole: Tensor) -> None:
        """The sums, (actions, r + 1), of the first shards and of all, in float64."""
        self.axes, self.dtype, self.train, self.whole = axes, dtype, train, whole

    @staticmethod
    def of(scorer: Scorer, log: LoggedData, pool: ShardPool, last: int) -> "Statistics":
        """Two passes; the first `last` shards are those for training."""
        dtype = precision(log.n_contexts * log.width, scorer.dim * log.n_actions)
        events, total, squares = 0.0, torch.zeros(()), torch.zeros(())
        for n, sum_, products in pool.map(_moments, scorer):
            events, total, squares = events + n, total + sum_, squares + products
        mean = total / events
        variance, rotation = torch.linalg.eigh(squares / events - torch.outer(mean, mean))
        kept = variance > FLAT * variance.amax().clamp(min=1e-30)
        axes = Axes(mean, rotation[:, kept], variance[kept])
        train = torch.zeros(log.n_actions, int(kept.sum()) + 1, dtype=torch.float64)
        rest = train.clone()
        for index, sums in enumerate(pool.map(_sums, scorer, axes, dtype)):
            (train if index < last else rest).add_(tensor(sums))
        return Statistics(axes, dtype, train, train + rest)


class OverShards(Likelihood):
    """The likelihood of the rows of some shards of a log."""

    def __init__(
        self,
        scorer: Scorer,
        log: LoggedData,
        pool: ShardPool,
        statistics: Statistics,
        groups: Sequence[Sequence[int]],
        keep: Path | None = None,
    ) -> None:
        """The first shards, or all of them, in groups that have one owner each.

        In a folder to `keep` what is found for parameters, a fit that is begun again finds it there: it takes the same
        steps, to the last bit, and computes those that are missing.
        """
        self.keep, self.about = keep, (log.fingerprint, tuple(map(tuple, groups)))
        self.pool, self.groups = pool, {group[0]: group for group in groups}
        self.dtype, self.axes = statistics.dtype, statistics.axes
        sums = statistics.whole if sum(map(len, groups)) == log.n_shards else statistics.train
        self.seen = (sums[:, -1] > 0).nonzero()[:, 0]
        self.events = float(sums[:, -1].sum())
        self.sums = sums[self.seen].to(self.dtype)
        self.count = self.sums[:, -1]
        place = torch.full((log.n_actions,), -1).index_put((self.seen,), torch.arange(len(self.seen)))
        self.given = pool.share((scorer, self.axes, self.dtype, place))

    def log_totals(self, weights: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """The sums of all groups for these parameters, as an earlier run kept them or computed."""
        if self.keep is None:
            return self._computed(weights, bias)
        name = digest(weights.numpy(), bias.numpy(), np.frombuffer(repr(self.about).encode(), dtype=np.uint8))
        path = self.keep / f"{name[:24]}.npz"
        with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(path) as kept:
            return float(kept["value"]), torch.from_numpy(kept["weights"]), torch.from_numpy(kept["bias"])
        value, d_weights, d_bias = self._computed(weights, bias)
        content = io.BytesIO()
        np.savez(content, value=value, weights=d_weights.numpy(), bias=d_bias.numpy())
        self.keep.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content.getvalue())
        return value, d_weights, d_bias

    def _computed(self, weights: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Parameters to the workers, sums back from every group, merged in their order in float64."""
        value, gradient = 0.0, torch.zeros(len(weights), weights.shape[1] + 1, dtype=torch.float64)
        given = (self.given, weights.numpy(), bias.numpy(), self.groups)
        together = max(1, ANSWER_BYTES // (gradient.numel() * weights.element_size()))
        for found, of_group in self.pool.map(_of_group, *given, only=list(self.groups), together=together):
            value += found
            gradient += tensor(of_group)
        gradient = gradient.to(self.dtype)
        return value, gradient[:, :-1], gradient[:, -1]


def _moments(shard: LoggedData, index: int, scorer: Scorer) -> tuple[float, Tensor, Tensor]:
    """Events, and features and their products summed over them."""
    features, weight = scorer.states(shard.contexts).detach(), _context_weight(shard)
    total = torch.zeros(features.shape[1], dtype=torch.float64)
    squares = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for part in torch.split(torch.arange(len(features)), 1 << 14):
        x = features[part].double()
        total += weight[part] @ x
        squares += x.T @ (x * weight[part][:, None])
    return float(weight.sum()), total, squares


def _features(shard: LoggedData, scorer: Scorer, axes: Axes, dtype: torch.dtype) -> Tensor:
    """Features of the contexts along the axes, kept beside the shard."""
    kept = spilled("axes", lambda: axes.of_contexts(scorer.states(shard.contexts).detach().to(dtype)).numpy())
    return torch.tensor(kept)  # in memory that torch aligns, so that products are the same wherever they are taken


def _sums(shard: LoggedData, index: int, scorer: Scorer, axes: Axes, dtype: torch.dtype) -> npt.NDArray[np.float64]:
    """Features and ones summed over the events of each action, (actions, r + 1)."""
    features = _features(shard, scorer, axes, dtype).numpy()
    weight = np.ones(shard.n_rows) if shard.row_weight is None else np.array(shard.row_weight)
    pairs = csr_matrix((weight, (shard.action, shard.context_index)), shape=(shard.n_actions, shard.n_contexts))
    count = np.bincount(shard.action, weight, shard.n_actions)
    return np.column_stack([pairs @ features, count]).astype(np.float64)


def _of_group(
    shard: LoggedData, index: int, given: Any, weights: Floats, bias: Floats, groups: Mapping[int, Sequence[int]]
) -> tuple[float, Floats]:
    """The sums of the shards of a group, added up in their order."""
    value, gradient = 0.0, np.zeros((len(weights), weights.shape[1] + 1))
    for number in groups[index]:
        found, of_shard = beside(number, _log_totals, given, weights, bias)
        value += found
        gradient += of_shard
    return value, gradient.astype(weights.dtype)


def _log_totals(
    shard: LoggedData,
    index: int,
    given: tuple[Scorer, Axes, torch.dtype, Tensor],
    weights: Floats,
    bias: Floats,
) -> tuple[float, Floats]:
    """Σ over events of log Σ_a exp(x·w_a + c_a), and its gradient, (seen, r + 1)."""
    scorer, axes, dtype, place = given
    features, weight = _features(shard, scorer, axes, dtype), _context_weight(shard)
    offered: Offered | None = None if shard.candidates is None else offered_of(shard.candidates).within(place)
    parameters = torch.tensor(weights), torch.tensor(bias)
    log_total, d_weights, d_bias = log_normaliser_gradient(features, *parameters, weight.to(dtype), offered=offered)
    value = float(weight @ log_total.double())
    return value, torch.cat([d_weights, d_bias[:, None]], 1).numpy()


def _context_weight(shard: LoggedData) -> Tensor:
    return torch.tensor(shard.context_weight)
