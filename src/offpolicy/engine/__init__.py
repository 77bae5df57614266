"""Where work runs: map over the shards of a log and merge in their order; processes and machines side by side.

`make_engine` gives an `Engine`, `engine.over(log)` a `ShardPool` that owns the log's shards, `pool.map` the results of
a function for each of them, in order. `WorkerPool` runs jobs that have nothing to do with shards.
"""

from offpolicy.engine.holdings import beside, shard_cache, spilled
from offpolicy.engine.pool import ENGINES, Engine, ShardPool, engine_of, make_engine
from offpolicy.engine.shards import in_groups, map_merge, merged
from offpolicy.engine.workers import Done, Job, WorkerPool, available_cores

__all__ = [
    "ENGINES",
    "Done",
    "Engine",
    "Job",
    "ShardPool",
    "WorkerPool",
    "available_cores",
    "beside",
    "engine_of",
    "in_groups",
    "make_engine",
    "map_merge",
    "merged",
    "shard_cache",
    "spilled",
]
