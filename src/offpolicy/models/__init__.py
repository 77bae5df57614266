"""Models of action choice: the exact softmax head, its normalisers, and the scorers that feed it."""

from offpolicy.models.all_actions import expectation, iterate_log_probs, linear_values, sample, top_k
from offpolicy.models.normalisers import Full, InBatch, Normaliser, Sampled
from offpolicy.models.softmax import (
    log_normaliser,
    logged_log_prob,
    weighted_log_likelihood,
    weighted_log_likelihood_grad,
)

__all__ = [
    "Full",
    "InBatch",
    "Normaliser",
    "Sampled",
    "expectation",
    "iterate_log_probs",
    "linear_values",
    "log_normaliser",
    "logged_log_prob",
    "sample",
    "top_k",
    "weighted_log_likelihood",
    "weighted_log_likelihood_grad",
]
