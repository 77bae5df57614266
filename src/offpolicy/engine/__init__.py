"""Where work runs: map over the shards of a log and merge in their order; processes that work side by side."""

from offpolicy.engine.shards import map_merge
from offpolicy.engine.workers import Done, Job, WorkerPool, available_cores

__all__ = [
    "Done",
    "Job",
    "WorkerPool",
    "available_cores",
    "map_merge",
]
