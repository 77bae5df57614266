"""Policies: what every policy offers, the simple ones, and how a user's own becomes one."""

from offpolicy.policies.counted import CountsPolicy, PopularityPolicy, WithBackoff, with_backoff
from offpolicy.policies.mixture import MixturePolicy, NewIds, RandomTopK, soft_top_k
from offpolicy.policies.policy import (
    AlignedPolicy,
    PlacedPolicy,
    Policy,
    RowPolicy,
    action_table,
    aligned,
    all_log_probs,
    batch_log_probs,
    choice_log_probs,
    drawn_actions,
    logged_log_prob,
    named,
    row_weights,
    rows_only,
    tensor,
)
from offpolicy.policies.scorer_policy import ScorerPolicy
from offpolicy.policies.simple import (
    ClassifierPolicy,
    EpsilonGreedyPolicy,
    LinearSoftmaxPolicy,
    RecordedPolicy,
    TabularPolicy,
    UniformPolicy,
)
from offpolicy.policies.sparse import JoinedTable, SparsePolicy, encoded, exploded, frame_of
from offpolicy.policies.targets import ColumnPolicy, FunctionPolicy, as_policy
from offpolicy.policies.trees import TreesPolicy, missing_trees, tree_columns

__all__ = [
    "AlignedPolicy",
    "ClassifierPolicy",
    "ColumnPolicy",
    "CountsPolicy",
    "EpsilonGreedyPolicy",
    "FunctionPolicy",
    "JoinedTable",
    "LinearSoftmaxPolicy",
    "MixturePolicy",
    "NewIds",
    "PlacedPolicy",
    "Policy",
    "PopularityPolicy",
    "RandomTopK",
    "RecordedPolicy",
    "RowPolicy",
    "ScorerPolicy",
    "SparsePolicy",
    "TabularPolicy",
    "TreesPolicy",
    "UniformPolicy",
    "WithBackoff",
    "action_table",
    "aligned",
    "all_log_probs",
    "as_policy",
    "batch_log_probs",
    "choice_log_probs",
    "drawn_actions",
    "encoded",
    "exploded",
    "frame_of",
    "logged_log_prob",
    "missing_trees",
    "named",
    "row_weights",
    "rows_only",
    "soft_top_k",
    "tensor",
    "tree_columns",
    "with_backoff",
]
