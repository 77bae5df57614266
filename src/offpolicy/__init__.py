"""Learn and evaluate policies from logs whose logging probabilities nobody recorded.

Names are loaded on first use, so that importing the package (and asking a command for help) does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.artifacts import load_policy, save_policy
    from offpolicy.errors import LogError, OffPolicyError, ParameterError
    from offpolicy.estimators import ESTIMATORS, OFFICIAL, weight
    from offpolicy.evaluation import audit, compare_propensity_models, evaluate
    from offpolicy.learning import LearnerConfig, learn_policy
    from offpolicy.log import LoggedData, from_obp, open_store, prepare_log, read_log, to_obp
    from offpolicy.nuisances import Nuisances
    from offpolicy.propensity import fit_logging_policy, repeat_test
    from offpolicy.uncertainty import calibrate_gamma, row_uncertainty

__version__ = "0.1.0"

_HOME = {
    "ESTIMATORS": "offpolicy.estimators",
    "OFFICIAL": "offpolicy.estimators",
    "LearnerConfig": "offpolicy.learning",
    "LogError": "offpolicy.errors",
    "LoggedData": "offpolicy.log",
    "Nuisances": "offpolicy.nuisances",
    "OffPolicyError": "offpolicy.errors",
    "ParameterError": "offpolicy.errors",
    "audit": "offpolicy.evaluation",
    "calibrate_gamma": "offpolicy.uncertainty",
    "evaluate": "offpolicy.evaluation",
    "fit_logging_policy": "offpolicy.propensity",
    "repeat_test": "offpolicy.propensity",
    "from_obp": "offpolicy.log",
    "learn_policy": "offpolicy.learning",
    "open_store": "offpolicy.log",
    "load_policy": "offpolicy.artifacts",
    "compare_propensity_models": "offpolicy.evaluation",
    "prepare_log": "offpolicy.log",
    "read_log": "offpolicy.log",
    "row_uncertainty": "offpolicy.uncertainty",
    "save_policy": "offpolicy.artifacts",
    "to_obp": "offpolicy.log",
    "weight": "offpolicy.estimators",
}

__all__ = [
    "ESTIMATORS",
    "OFFICIAL",
    "LearnerConfig",
    "LogError",
    "LoggedData",
    "Nuisances",
    "OffPolicyError",
    "ParameterError",
    "__version__",
    "audit",
    "calibrate_gamma",
    "compare_propensity_models",
    "evaluate",
    "fit_logging_policy",
    "from_obp",
    "learn_policy",
    "load_policy",
    "open_store",
    "prepare_log",
    "read_log",
    "repeat_test",
    "row_uncertainty",
    "save_policy",
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
    return sorted(__all__)
