"""Estimate the value of a policy from a log: inputs, the one value formula, intervals, pre-flight and verdict."""

from offpolicy.evaluation.auto import auto_estimate
from offpolicy.evaluation.clusters import ClusteredDifference, ClusteredTerms, clustered, clustered_mean
from offpolicy.evaluation.comparison import compare
from offpolicy.evaluation.diagnostics import shown_one_action
from offpolicy.evaluation.evaluate import evaluate
from offpolicy.evaluation.evaluator import Evaluator
from offpolicy.evaluation.groups import action_groups, learned_groups
from offpolicy.evaluation.guardrails import Guardrail
from offpolicy.evaluation.hyper import GAMMA, chosen_lambdas, log_driven, plug_in_lambda
from offpolicy.evaluation.inputs import (
    ALL_ACTION_INPUTS,
    CONTEXT_SUMS,
    GROUP_INPUT,
    SLATE_RATIOS,
    TOP_P_INPUTS,
    group_ratio,
    log_count_prob,
    weight_inputs,
)
from offpolicy.evaluation.intervals import LEVEL
from offpolicy.evaluation.options import DEFAULT_ESTIMATORS, GROUPED, Options
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.propensities import audit, compare_propensity_models
from offpolicy.evaluation.ranking import ActionSets, Ranking, RankingSums, rank_all, rank_lists, top_actions
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.sharded import UNITS
from offpolicy.evaluation.slates import RATIO_OF, SLATE_ESTIMATORS, chosen_user_model, with_slates, with_user_model
from offpolicy.evaluation.statistics import Asked, RowStatistics
from offpolicy.evaluation.value import Terms, value

__all__ = [
    "ALL_ACTION_INPUTS",
    "CONTEXT_SUMS",
    "DEFAULT_ESTIMATORS",
    "GAMMA",
    "GROUPED",
    "GROUP_INPUT",
    "LEVEL",
    "RATIO_OF",
    "SLATE_ESTIMATORS",
    "SLATE_RATIOS",
    "TOP_P_INPUTS",
    "UNITS",
    "ActionSets",
    "Asked",
    "ClusteredDifference",
    "ClusteredTerms",
    "Evaluator",
    "Guardrail",
    "Options",
    "PolicyRows",
    "Ranking",
    "RankingSums",
    "RowStatistics",
    "Terms",
    "action_groups",
    "audit",
    "auto_estimate",
    "chosen_lambdas",
    "chosen_user_model",
    "clustered",
    "clustered_mean",
    "compare",
    "compare_propensity_models",
    "evaluate",
    "group_ratio",
    "learned_groups",
    "log_count_prob",
    "log_driven",
    "plug_in_lambda",
    "preflight",
    "rank_all",
    "rank_lists",
    "shown_one_action",
    "top_actions",
    "value",
    "weight_inputs",
    "with_slates",
    "with_user_model",
]
