"""The log: what was shown to whom and what came of it, checked once and then trusted."""

from offpolicy.log.actions import ActionTable
from offpolicy.log.assignment import Unit
from offpolicy.log.batched import STREAMED, Files, free_memory, memory_needed
from offpolicy.log.batches import LogBatch, pieces, row_pieces
from offpolicy.log.candidates import Candidates
from offpolicy.log.choice import Choice, Known, choose_context, leaks
from offpolicy.log.derived import derived, source_of, sources, with_derived
from offpolicy.log.encode import RawColumns, feature_table, ids, numbers
from offpolicy.log.expressions import expression
from offpolicy.log.features import (
    COLUMNS,
    KINDS,
    BagColumn,
    CategoricalColumn,
    Column,
    EmbeddingColumn,
    FeatureTable,
    Kind,
    NumericColumn,
    column_parts,
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
from offpolicy.log.instants import instant
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.offers import Offers, flags
from offpolicy.log.origin import Origin, Part
from offpolicy.log.parquet import check_columns
from offpolicy.log.preparation import Preparing
from offpolicy.log.prepare import Prepared, byte_count, prepare_log, prepare_rows
from offpolicy.log.readers import Reading, read_log, read_rows
from offpolicy.log.rewards import winsorised
from offpolicy.log.schema import ROLES, LogSchema, listed, nearest
from offpolicy.log.shards import Layout
from offpolicy.log.slates import shows_repeats
from offpolicy.log.spelling import IDS, Spelling, rewritten, spellings, with_ids
from offpolicy.log.store import is_store, open_store, read_manifest
from offpolicy.log.store_writer import StoreWriter, in_store, write_store
from offpolicy.log.tables import Table, is_path, read_table, source_names
from offpolicy.log.text import split_text, typed_text
from offpolicy.log.treatment import EVERY, Missing
from offpolicy.log.vocabulary import Vocabulary

__all__ = [
    "COLUMNS",
    "EVERY",
    "IDS",
    "KINDS",
    "READ_ERRORS",
    "ROLES",
    "STREAMED",
    "SUFFIXES",
    "ActionTable",
    "BagColumn",
    "Candidates",
    "CategoricalColumn",
    "Choice",
    "Codes",
    "Column",
    "EmbeddingColumn",
    "FeatureTable",
    "Files",
    "Format",
    "Id",
    "Kind",
    "Known",
    "Layout",
    "LogBatch",
    "LogSchema",
    "LoggedData",
    "Missing",
    "NumericColumn",
    "Offers",
    "Origin",
    "Part",
    "Prepared",
    "Preparing",
    "RawColumns",
    "Reading",
    "Spelling",
    "StoreWriter",
    "Table",
    "Unit",
    "Vocabulary",
    "VowpalLog",
    "blank_lines_at_end",
    "byte_count",
    "check_columns",
    "choose_context",
    "column_names",
    "column_parts",
    "derived",
    "digest",
    "expanded",
    "expression",
    "feature_table",
    "flags",
    "format_of",
    "free_memory",
    "from_obp",
    "ids",
    "in_store",
    "instant",
    "is_path",
    "is_store",
    "leaks",
    "listed",
    "memory_needed",
    "nearest",
    "numbers",
    "open_store",
    "owned",
    "pieces",
    "prepare_log",
    "prepare_rows",
    "range_of_rewards",
    "read_log",
    "read_manifest",
    "read_rows",
    "read_table",
    "read_vowpal",
    "rewritten",
    "row_pieces",
    "sealed",
    "separator_of",
    "shows_repeats",
    "source_names",
    "source_of",
    "sources",
    "spellings",
    "split_text",
    "table_hashes",
    "target_prob_from_obp",
    "to_cb_adf",
    "to_dsjson",
    "to_obp",
    "typed_text",
    "vowpal_frame",
    "vowpal_log",
    "winsorised",
    "with_derived",
    "with_ids",
    "write_store",
]
