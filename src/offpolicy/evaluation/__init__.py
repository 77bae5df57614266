"""What a policy is worth, told from a log: inputs, the one value formula, intervals, pre-flight and verdict."""

from offpolicy.evaluation.evaluate import evaluate
from offpolicy.evaluation.results import Evaluation, PolicyEvaluation
from offpolicy.evaluation.targets import EpsilonGreedyPolicy, as_policy

__all__ = ["EpsilonGreedyPolicy", "Evaluation", "PolicyEvaluation", "as_policy", "evaluate"]
