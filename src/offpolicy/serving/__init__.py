"""Serve a policy, record what it did and why, and learn from it again. Nothing here needs torch.

Names are loaded on first use: deciding in process needs NumPy, the store SQLAlchemy, the server Starlette and uvicorn.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.serving.api import ServeOptions
    from offpolicy.serving.decider import Decider, Decision, Request
    from offpolicy.serving.join import Collected, Join, collect
    from offpolicy.serving.policy import ServedPolicy, load_policy, load_versions
    from offpolicy.serving.records import record, record_rewards
    from offpolicy.serving.redraw import Replayed, replay
    from offpolicy.serving.run import serve, server_app
    from offpolicy.serving.store import EventStore

_HOME = {
    "Collected": "join",
    "Decider": "decider",
    "Decision": "decider",
    "EventStore": "store",
    "Join": "join",
    "Replayed": "redraw",
    "Request": "decider",
    "ServeOptions": "api",
    "ServedPolicy": "policy",
    "collect": "join",
    "load_policy": "policy",
    "load_versions": "policy",
    "record": "records",
    "record_rewards": "records",
    "replay": "redraw",
    "serve": "run",
    "server_app": "run",
}

__all__ = [
    "Collected",
    "Decider",
    "Decision",
    "EventStore",
    "Join",
    "Replayed",
    "Request",
    "ServeOptions",
    "ServedPolicy",
    "collect",
    "load_policy",
    "load_versions",
    "record",
    "record_rewards",
    "replay",
    "serve",
    "server_app",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'offpolicy.serving' has no attribute {name!r}")
    return getattr(importlib.import_module(f"offpolicy.serving.{_HOME[name]}"), name)
