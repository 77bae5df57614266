"""Policies: what every policy offers, the simple ones, and how a user's own becomes one."""

from offpolicy.policies.policy import (
    TILE_BYTES,
    LinearSoftmaxPolicy,
    PlacedPolicy,
    Policy,
    RowPolicy,
    RowTile,
    ScorerPolicy,
    TabularPolicy,
    UniformPolicy,
    context_tiles,
    logged_log_prob,
    row_tiles,
    tensor,
    tile_log_probs,
)
from offpolicy.policies.targets import ColumnPolicy, EpsilonGreedyPolicy, TopKPolicy, as_policy

__all__ = [
    "TILE_BYTES",
    "ColumnPolicy",
    "EpsilonGreedyPolicy",
    "LinearSoftmaxPolicy",
    "PlacedPolicy",
    "Policy",
    "RowPolicy",
    "RowTile",
    "ScorerPolicy",
    "TabularPolicy",
    "TopKPolicy",
    "UniformPolicy",
    "as_policy",
    "context_tiles",
    "logged_log_prob",
    "row_tiles",
    "tensor",
    "tile_log_probs",
]
