"""Where work runs: map over the shards of a log and merge in their order; processes that work side by side."""

from offpolicy.engine.workers import Crew, Done, Job

__all__ = [
    "Crew",
    "Done",
    "Job",
]
