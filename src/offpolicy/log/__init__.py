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
from offpolicy.log.obp import from_obp, target_prob_from_obp, to_obp
from offpolicy.log.readers import read_log
from offpolicy.log.schema import LogSchema

__all__ = [
    "ActionTable",
    "BagColumn",
    "CategoricalColumn",
    "EmbeddingColumn",
    "FeatureTable",
    "LogSchema",
    "LoggedData",
    "NumericColumn",
    "Vocabulary",
    "from_obp",
    "read_log",
    "target_prob_from_obp",
    "to_obp",
]
