"""Ties to other tools, each behind an extra of its own and loaded on first use.

MLflow and Weights & Biases keep what `evaluate` found; `OffPolicyClassifier` is a policy as scikit-learn sees models.
(Frames of other libraries, DuckDB relations and Hugging Face data sets among them, are read by `read_log` itself.)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offpolicy.integrations.classifier import OffPolicyClassifier
    from offpolicy.integrations.mlflow import log_to_mlflow
    from offpolicy.integrations.tracking import flat_metrics, write_files
    from offpolicy.integrations.wandb import log_to_wandb

_HOME = {
    "OffPolicyClassifier": "classifier",
    "flat_metrics": "tracking",
    "log_to_mlflow": "mlflow",
    "log_to_wandb": "wandb",
    "write_files": "tracking",
}

__all__ = ["OffPolicyClassifier", "flat_metrics", "log_to_mlflow", "log_to_wandb", "write_files"]


def __getattr__(name: str) -> Any:
    """Load a name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'offpolicy.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(f"offpolicy.integrations.{_HOME[name]}"), name)
