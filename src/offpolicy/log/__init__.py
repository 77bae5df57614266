"""The log: what was shown to whom and what came of it, checked once and then trusted."""

from offpolicy.log.actions import ActionTable
from offpolicy.log.features import (
    BagColumn,
    CategoricalColumn,
    EmbeddingColumn,
    FeatureTable,
    NumericColumn,
    Vocabulary,
)
from offpolicy.log.logged_data import LoggedData

__all__ = [
    "ActionTable",
    "BagColumn",
    "CategoricalColumn",
    "EmbeddingColumn",
    "FeatureTable",
    "LoggedData",
    "NumericColumn",
    "Vocabulary",
]
