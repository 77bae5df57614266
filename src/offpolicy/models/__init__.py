"""Models of action choice: the exact softmax head, its normalisers, and the scorers that feed it."""

from offpolicy.models.all_actions import (
    Values,
    best_first,
    expectation,
    iterate_log_probs,
    linear_values,
    sample,
    top_k,
    total_expectation,
)
from offpolicy.models.choices import Offered, candidate_logits, log_softmax_of_some
from offpolicy.models.columns import FURTHEST, FittedColumn, IdColumn, IdPositions, NumberColumn, column_from_json
from offpolicy.models.encoders import DesignMatrix, pooled_ids
from offpolicy.models.epochs import Batch, Batches, ContextBatches, RowBatches, ascend, clipped_step, gradient_step
from offpolicy.models.grouped import GroupedScorer
from offpolicy.models.network import NetworkScorer, id_columns, network_scorer
from offpolicy.models.normalisers import Full, InBatch, Normaliser, Sampled
from offpolicy.models.offers import CandidateScorer, offered_in, offered_of, with_candidate_features
from offpolicy.models.recipes import (
    AnyScorerRecipe,
    ColumnsRecipe,
    DesignRecipe,
    ScorerRecipe,
    ScorerShape,
    Strict,
    scorer_recipe,
)
from offpolicy.models.scorer import OnnxGraph, Scorer, build_scorer, register_scorer, set_actions, sharpen
from offpolicy.models.scorers import (
    LinearScorer,
    LoggingTwoTower,
    TwoTowerScorer,
    linear_scorer,
    logging_two_tower,
    two_tower_scorer,
)
from offpolicy.models.softmax import (
    log_normaliser,
    log_normaliser_gradient,
    softmax_log_prob,
    weighted_log_likelihood,
)
from offpolicy.models.spectral import has_many_ids, spectral_scorer
from offpolicy.models.tiles import Places

__all__ = [
    "FURTHEST",
    "AnyScorerRecipe",
    "Batch",
    "Batches",
    "CandidateScorer",
    "ColumnsRecipe",
    "ContextBatches",
    "DesignMatrix",
    "DesignRecipe",
    "FittedColumn",
    "Full",
    "GroupedScorer",
    "IdColumn",
    "IdPositions",
    "InBatch",
    "LinearScorer",
    "LoggingTwoTower",
    "NetworkScorer",
    "Normaliser",
    "NumberColumn",
    "Offered",
    "OnnxGraph",
    "Places",
    "RowBatches",
    "Sampled",
    "Scorer",
    "ScorerRecipe",
    "ScorerShape",
    "Strict",
    "TwoTowerScorer",
    "Values",
    "ascend",
    "best_first",
    "build_scorer",
    "candidate_logits",
    "clipped_step",
    "column_from_json",
    "expectation",
    "gradient_step",
    "has_many_ids",
    "id_columns",
    "iterate_log_probs",
    "linear_scorer",
    "linear_values",
    "log_normaliser",
    "log_normaliser_gradient",
    "log_softmax_of_some",
    "logging_two_tower",
    "network_scorer",
    "offered_in",
    "offered_of",
    "pooled_ids",
    "register_scorer",
    "sample",
    "scorer_recipe",
    "set_actions",
    "sharpen",
    "softmax_log_prob",
    "spectral_scorer",
    "top_k",
    "total_expectation",
    "two_tower_scorer",
    "weighted_log_likelihood",
    "with_candidate_features",
]
