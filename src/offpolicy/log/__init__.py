"""The log: what was shown to whom and what came of it, checked once and then trusted."""

from offpolicy.log.actions import ActionTable
from offpolicy.log.batches import LogBatch, pieces, row_pieces
from offpolicy.log.candidates import Candidates
from offpolicy.log.encode import RawColumns, feature_table, ids, numbers
from offpolicy.log.features import (
    BagColumn,
    CategoricalColumn,
    Column,
    EmbeddingColumn,
    FeatureTable,
    Kind,
    NumericColumn,
    Vocabulary,
)
from offpolicy.log.files import (
    READ_ERRORS,
    SUFFIXES,
    Format,
    blank_lines_at_end,
    column_names,
    expanded,
    format_of,
    separator_of,
)
from offpolicy.log.formats.obp import from_obp, target_prob_from_obp, to_obp
from offpolicy.log.formats.vowpal import VowpalLog, vowpal_frame, vowpal_log
from offpolicy.log.formats.vowpal_log import range_of_rewards, read_vowpal, to_cb_adf, to_dsjson
from offpolicy.log.hashing import digest, table_hashes
from offpolicy.log.ids import Codes, Id, owned, sealed
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.origin import Origin, Part
from offpolicy.log.parquet import check_columns
from offpolicy.log.readers import read_log
from offpolicy.log.schema import LogSchema, listed, nearest
from offpolicy.log.slates import shows_repeats
from offpolicy.log.tables import is_path, read_table
from offpolicy.log.text import typed_text

__all__ = [
    "READ_ERRORS",
    "SUFFIXES",
    "ActionTable",
    "BagColumn",
    "Candidates",
    "CategoricalColumn",
    "Codes",
    "Column",
    "EmbeddingColumn",
    "FeatureTable",
    "Format",
    "Id",
    "Kind",
    "LogBatch",
    "LogSchema",
    "LoggedData",
    "NumericColumn",
    "Origin",
    "Part",
    "RawColumns",
    "Vocabulary",
    "VowpalLog",
    "blank_lines_at_end",
    "check_columns",
    "column_names",
    "digest",
    "expanded",
    "feature_table",
    "format_of",
    "from_obp",
    "ids",
    "is_path",
    "listed",
    "nearest",
    "numbers",
    "owned",
    "pieces",
    "range_of_rewards",
    "read_log",
    "read_table",
    "read_vowpal",
    "row_pieces",
    "sealed",
    "separator_of",
    "shows_repeats",
    "table_hashes",
    "target_prob_from_obp",
    "to_cb_adf",
    "to_dsjson",
    "to_obp",
    "typed_text",
    "vowpal_frame",
    "vowpal_log",
]
