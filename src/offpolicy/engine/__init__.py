"""Where work runs: map over the shards of a log and merge in their order; processes and machines side by side.

`make_engine` gives an `Engine`, `engine.over(log)` a `Crew` that owns the log's shards, `crew.map` the results of a
function for each of them, in order. `WorkerPool` runs jobs that have nothing to do with shards.
"""

from offpolicy.engine.crew import ENGINES, Crew, Engine, engine_of, make_engine
from offpolicy.engine.holdings import beside, shard_cache, spilled
from offpolicy.engine.shards import in_groups, map_merge, merged
from offpolicy.engine.workers import Done, Job, WorkerPool, available_cores

__all__ = [
    "ENGINES",
    "Crew",
    "Done",
    "Engine",
    "Job",
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
