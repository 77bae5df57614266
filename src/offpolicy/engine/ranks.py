"""Processes that torchrun starts: each runs the whole script, owns some shards, and gathers what the others found."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offpolicy.engine.holdings import Held
from offpolicy.engine.pool import Engine, InProcessPool, ShardPool, owners, source_of
from offpolicy.engine.process import result_of
from offpolicy.errors import OffPolicyError

if TYPE_CHECKING:
    from offpolicy.log import LoggedData


class Ranks(Engine):
    """The processes of one torchrun, over gloo.

    Results are gathered and every process merges them in shard order, where all_reduce would add them up in an order
    that depends on how many there are. A process that is lost ends all; torchrun starts them again (`--max-restarts`),
    and a training resumes from its checkpoint.
    """

    name = "torchrun"

    def __init__(self) -> None:
        """Join the group that the environment names."""
        import torch.distributed as group

        self.group: Any = group
        if "RANK" not in os.environ:
            raise OffPolicyError(
                "engine 'torchrun' is for scripts that torchrun starts. Run: torchrun --nproc-per-node 2 script.py"
            )
        self.started = not group.is_initialized()
        if self.started:
            group.init_process_group("gloo")
        self.workers, self.rank = int(group.get_world_size()), int(group.get_rank())
        self.writes = self.rank == 0

    @contextmanager
    def _pool(self, log: "LoggedData", groups: Sequence[Sequence[int]] | None) -> Iterator[ShardPool]:
        owned = owners(log, self.workers, groups)
        mine = owned[self.rank] if self.rank < len(owned) else []
        held = Held(source_of(log, mine))
        try:
            yield _RankPool(held, log.n_shards, self.workers, mine, self.group)
        finally:
            held.close()

    def close(self) -> None:
        """Leave the group if it was joined here."""
        if self.started and self.group.is_initialized():
            self.group.destroy_process_group()


class _RankPool(InProcessPool):
    def __init__(self, held: Held, n_shards: int, workers: int, mine: Sequence[int], group: Any) -> None:
        super().__init__(held, n_shards, workers)
        self.mine, self.group = set(mine), group

    def _found(self, function: Callable[..., Any], arguments: tuple[Any, ...], wanted: list[int]) -> Iterator[Any]:
        own = [index for index in wanted if index in self.mine]
        self.held.task = function, arguments
        gathered: list[Any] = [None] * self.workers
        self.group.all_gather_object(gathered, dict(zip(own, self.held.answers(own), strict=True)))
        found = {index: answer for one in gathered for index, answer in one.items()}
        for index in wanted:
            yield result_of(found.pop(index), getattr(function, "__name__", "A function"))
