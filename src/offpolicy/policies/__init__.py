"""Policies: what every policy offers, the simple ones, and how a user's own becomes one."""

from offpolicy.policies.policy import (
    AlignedPolicy,
    PlacedPolicy,
    Policy,
    RowPolicy,
    action_table,
    aligned,
    batch_log_probs,
    logged_log_prob,
    named,
    rows_only,
    tensor,
)
from offpolicy.policies.scorer_policy import ScorerPolicy
from offpolicy.policies.simple import (
    ClassifierPolicy,
    CountsPolicy,
    EpsilonGreedyPolicy,
    LinearSoftmaxPolicy,
    PopularityPolicy,
    RecordedPolicy,
    TabularPolicy,
    UniformPolicy,
    WithBackoff,
    with_backoff,
)
from offpolicy.policies.targets import ColumnPolicy, FunctionPolicy, TopKPolicy, as_policy

__all__ = [
    "AlignedPolicy",
    "ClassifierPolicy",
    "ColumnPolicy",
    "CountsPolicy",
    "EpsilonGreedyPolicy",
    "FunctionPolicy",
    "LinearSoftmaxPolicy",
    "PlacedPolicy",
    "Policy",
    "PopularityPolicy",
    "RecordedPolicy",
    "RowPolicy",
    "ScorerPolicy",
    "TabularPolicy",
    "TopKPolicy",
    "UniformPolicy",
    "WithBackoff",
    "action_table",
    "aligned",
    "as_policy",
    "batch_log_probs",
    "logged_log_prob",
    "named",
    "rows_only",
    "tensor",
    "with_backoff",
]
