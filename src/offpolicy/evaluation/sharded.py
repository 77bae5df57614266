"""A policy's rows over a log of many shards: what is asked of them is asked shard by shard, by whoever works on them.

The inputs of a shard's rows are computed when the shard is first asked, for all policies at once, and kept beside it:
over a store in memory-mapped files, so that memory does not grow with the number of rows. Whoever takes a shard over
computes them again. Clusters are whole within shards; where there are more of them than an interval needs, they are
summed into groups at random, which are independent units as well.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.engine import ShardPool, shard_cache, spilled
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.inputs import BASELINE, other_baseline
from offpolicy.evaluation.order import digits, exact_quantiles
from offpolicy.evaluation.other_rewards import OtherReward
from offpolicy.evaluation.rows import PolicyRows, with_logging
from offpolicy.evaluation.segments import Part
from offpolicy.evaluation.statistics import Array, RowStatistics, Statistic
from offpolicy.log import LoggedData
from offpolicy.memory import give_back
from offpolicy.models import DesignMatrix
from offpolicy.nuisances import ShardNuisances
from offpolicy.policies import Policy, as_policy, logged_log_prob, tensor
from offpolicy.seeding import generator

UNITS = 1 << 16
"""Units of independence, over all shards, that errors and intervals are computed from at most."""
TOGETHER = 8
"""Shards that a worker answers for in one message."""
View = tuple[Callable[..., PolicyRows], tuple[Any, ...]]


@dataclass(frozen=True)
class ShardWork:
    """All that is needed to compute the inputs of every policy's rows of any shard."""

    targets: Mapping[str, Any]
    """The policies as they were given."""
    nuisances: ShardNuisances
    estimators: tuple[str, ...]
    sample_size: float
    units: int
    """Units that a shard may have."""
    groups: Tensor | None = None

    def rows(self, shard: LoggedData, index: int) -> dict[str, PolicyRows]:
        """The rows of every policy."""
        known = self.nuisances.values(shard, index)
        targets = {name: as_policy(part_of(target, index), shard, name) for name, target in self.targets.items()}
        found = PolicyRows.of_all(
            shard,
            targets,
            self.nuisances.logging,
            uncertainty=known.get("uncertainty"),
            reward_model=self.nuisances.reward_model,
            estimators=[ESTIMATORS[name] for name in self.estimators],
            support=True,
            groups=self.groups,
            other_rewards=self.nuisances.others,
            known=known,
        )
        others = {name: values for name, values in known.items() if name.startswith("imputed of ")}
        return {name: replace(rows, inputs={**rows.inputs, **others}) for name, rows in found.items()}

    def unit(self, shard: LoggedData, index: int) -> npt.NDArray[np.int32]:
        """The unit of each row: its cluster, or the group that its cluster is in."""
        cluster, count = shard.cluster_index, int(shard.cluster_index.max()) + 1
        if count <= self.units:
            return np.asarray(cluster, dtype=np.int32)
        group = generator(0, "units", index).permutation(count) % self.units
        return group.astype(np.int32)[cluster]


@dataclass(frozen=True)
class Reference:
    """The rows of a policy as they are named to whoever works on a shard, and how they are looked at."""

    policy: str
    views: tuple[View, ...] = ()


@dataclass(frozen=True, eq=False)
class ShardedRows(RowStatistics):
    """The rows of one policy over all shards."""

    log: LoggedData
    pool: ShardPool
    work: Path
    """The file of a `ShardWork`."""
    reference: Reference
    features: Callable[[int], DesignMatrix]
    """Fitted to the contexts of a sample."""

    def viewed(self, view: Callable[..., PolicyRows], *arguments: Any) -> "ShardedRows":
        """The rows of every shard as a function that can be imported sees them."""
        return replace(self, reference=replace(self.reference, views=(*self.reference.views, (view, arguments))))

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of the inputs, which are those of the first shard."""
        return next(self.pool.map(_of_shard, self.work, self.reference, _names, (), only=[0]))

    @property
    def in_shards(self) -> bool:
        """More than one."""
        return True

    @cached_property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.total(_count)) if self.reference.views else self.log.n_rows

    def map(self, statistic: Statistic, *arguments: Any) -> Iterator[Any]:
        """The statistic of every shard, in their order."""
        given = tuple(one.reference if isinstance(one, ShardedRows) else one for one in arguments)
        found = self.pool.map(_of_shard, self.work, self.reference, statistic, given, together=TOGETHER)
        return (one for one in found if one is not None)

    def design(self, categories: int) -> DesignMatrix:
        """The features of the contexts of a sample."""
        return self.features(categories)

    def quantiles(self, values: Statistic, shares: Sequence[float]) -> Array:
        """Exact quantiles over all rows."""
        return exact_quantiles(partial(self.total, _digits, values), self.n_rows, shares)

    def under_model(self, logging: Policy | None, folder: Path) -> "ShardedRows":
        """The same policy on the same rows with another β̂, which is written to the folder, or with β̂ alone."""
        if logging is None:
            return self.viewed(_under_beta)
        path = folder / f"model-{len(list(folder.iterdir()))}.pickle"
        path.write_bytes(pickle.dumps(logging, protocol=5))
        return self.viewed(_under_model, path)

    def under_reward(self, reward: OtherReward) -> "ShardedRows":
        """The same policy and rows under another reward."""
        return replace(self.viewed(_under_reward, reward), log=reward.header(self.log))

    def segment(self, part: Part) -> "ShardedRows":
        """The rows of a segment."""
        return self.viewed(_in_segment, part)


@dataclass(frozen=True)
class RowColumn:
    """A number of each row of a log, divided as the log is."""

    values: npt.NDArray[np.float64]
    starts: tuple[int, ...]


def divided(target: Any, log: LoggedData, name: str) -> Any:
    """What a policy was given as, in a form that can be taken apart by shards."""
    if isinstance(target, Mapping) and "lists" in target:
        raise ParameterError(
            f"Policy {name!r} is given as lists by context or row, which cannot be divided into the shards of this "
            "log. Give a frame or file joined by a key, a policy, or a function."
        )
    plain = isinstance(target, Sequence) or (hasattr(target, "__array__") and not hasattr(target, "columns"))
    if isinstance(target, str | Policy) or not plain or log.shard_rows is None:
        return target
    values = np.asarray(target, dtype=np.float64)
    if values.shape != (log.n_rows,):
        raise ParameterError(
            f"Policy {name!r} must give one probability for each of the {log.n_rows} logged rows, but its shape is "
            f"{values.shape}."
        )
    return RowColumn(values, log.shard_rows)


def part_of(target: Any, index: int) -> Any:
    """What a policy was given as, for one shard."""
    if isinstance(target, RowColumn):
        return target.values[target.starts[index] : target.starts[index + 1]]
    return target


def sharded_rows(
    log: LoggedData, pool: ShardPool, work: ShardWork, folder: Path, sample: LoggedData
) -> dict[str, ShardedRows]:
    """The rows of every policy; what has to be done is written to the folder."""
    path = write_work(work, folder)
    features = partial(_features, sample)
    return {name: ShardedRows(log, pool, path, Reference(name), features) for name in work.targets}


def _features(sample: LoggedData, categories: int) -> DesignMatrix:
    return DesignMatrix.fit(sample.contexts, max_categories=categories)


def write_work(work: ShardWork, folder: Path) -> Path:
    """The file from which workers read what they have to do."""
    path = folder / "work.pickle"
    try:
        path.write_bytes(pickle.dumps(work, protocol=5))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ParameterError(
            f"A policy cannot be sent to those who work on the shards of this log ({error}). Give functions by a name "
            "that can be imported, or a saved policy."
        ) from None
    return path


@lru_cache(maxsize=2)
def _read_work(path: Path) -> ShardWork:
    found: ShardWork = _read(path)
    return found


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def _of_shard(
    shard: LoggedData, index: int, work: Path, reference: Reference, statistic: Statistic, given: tuple[Any, ...]
) -> Any:
    """A statistic of the rows of one shard; rows among the arguments are those of this shard."""

    def rows_of(one: Reference) -> PolicyRows:
        rows = kept_rows(shard, index, work, one.policy)
        for view, arguments in one.views:
            rows = view(rows, *arguments)
        return rows

    rows = rows_of(reference)
    if not rows.n_rows:
        return None  # nothing of a segment is in this shard
    return statistic(rows, *(rows_of(one) if isinstance(one, Reference) else one for one in given))


def kept_rows(shard: LoggedData, index: int, work: Path, policy: str) -> PolicyRows:
    """The rows of a policy over a shard, computed for all policies when the shard is first asked."""
    key = ("rows", str(work))
    names = shard_cache().get(key)
    if names is None:
        names = shard_cache()[key] = _computed(shard, index, _read_work(work), str(work))

    def kept(name: str) -> Tensor:
        return tensor(spilled(f"{work}/{name}", _missing))

    inputs = {name: kept(where) if isinstance(where, str) else where for name, where in names[policy].items()}
    inputs["reward"] = tensor(shard.reward)
    unsupported, unit = inputs.pop("unsupported", None), kept("unit")
    return PolicyRows(shard, inputs, unsupported, unit, index * _read_work(work).units)


def _missing() -> npt.NDArray[Any]:
    raise RuntimeError("What was kept beside a shard has gone.")


def _computed(shard: LoggedData, index: int, work: ShardWork, where: str) -> dict[str, dict[str, Any]]:
    """Compute and keep the inputs of all policies: the names under which arrays were kept, and single numbers."""
    spilled(f"{where}/unit", lambda: work.unit(shard, index))
    names: dict[str, dict[str, Any]] = {}
    seen: dict[int, str] = {}
    for policy, rows in work.rows(shard, index).items():
        own = names.setdefault(policy, {})
        arrays = dict(rows.inputs) | ({} if rows.unsupported is None else {"unsupported": rows.unsupported})
        for name, values in arrays.items():
            if name == "sample_size":
                own[name] = torch.tensor(work.sample_size)
            elif name != "reward":
                # What policies share, and what goes by two names, is kept once.
                own[name] = seen.setdefault(id(values), f"{policy}/{name}")
                spilled(f"{where}/{own[name]}", values.numpy)
    del rows, arrays, values
    give_back()
    return names


def _names(rows: PolicyRows) -> frozenset[str]:
    return frozenset(rows.inputs)


def _count(rows: PolicyRows) -> int:
    return rows.n_rows


def _digits(rows: PolicyRows, values: Statistic, *given: Any) -> npt.NDArray[np.int64]:
    return digits(values(rows), *given)


def _under_reward(rows: PolicyRows, reward: OtherReward) -> PolicyRows:
    """The rows under another reward, with q̂ of it where it is known."""
    own = {name: values for name, values in rows.inputs.items() if not name.startswith((BASELINE, "imputed"))}
    log = reward.seen(rows.log)
    own["reward"] = tensor(log.reward)
    if (baseline := rows.inputs.get(other_baseline(reward.name))) is not None:
        own |= {BASELINE: baseline, "imputed": rows.inputs[f"imputed of {reward.name}"]}
    return replace(rows, log=log, inputs=own)


def _under_beta(rows: PolicyRows) -> PolicyRows:
    return with_logging(rows, rows.inputs["log_logging"])


def _under_model(rows: PolicyRows, path: Path) -> PolicyRows:
    """The rows under the β̂ of a file, whose probabilities are kept beside the shard."""
    logging = tensor(spilled(f"{path}", lambda: logged_log_prob(_read(path), rows.log).numpy()))
    return with_logging(rows, logging)


def _in_segment(rows: PolicyRows, part: Part) -> PolicyRows:
    return rows.selected(part.mask(rows.log))
