"""Learn and evaluate policies from logs whose logging probabilities nobody recorded.

Names are loaded on first use, so that importing the package (and asking a command for help) does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.errors import LogError, OffPolicyError, ParameterError
    from offpolicy.estimators import ESTIMATORS, OFFICIAL, weight
    from offpolicy.log import LoggedData, from_obp, read_log, to_obp

__version__ = "0.1.0"

_HOME = {
    "ESTIMATORS": "offpolicy.estimators",
    "OFFICIAL": "offpolicy.estimators",
    "LogError": "offpolicy.errors",
    "LoggedData": "offpolicy.log",
    "OffPolicyError": "offpolicy.errors",
    "ParameterError": "offpolicy.errors",
    "from_obp": "offpolicy.log",
    "read_log": "offpolicy.log",
    "to_obp": "offpolicy.log",
    "weight": "offpolicy.estimators",
}

__all__ = [
    "ESTIMATORS",
    "OFFICIAL",
    "LogError",
    "LoggedData",
    "OffPolicyError",
    "ParameterError",
    "from_obp",
    "read_log",
    "to_obp",
    "weight",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'offpolicy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
