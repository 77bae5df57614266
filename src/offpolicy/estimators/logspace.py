"""Arithmetic in log space with named limits, so that every weight is finite for any input."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_LIMIT = 80.0
"""Largest exponent kept: e^80 is finite in float32, and its square and sums in float64. A weight that large means
nothing by then; what matters is that it stays a number."""

SPREAD_LIMIT = 30.0
"""Largest γU kept: at e^±30 an interval for β̂ says nothing more, in either direction."""


def bounded(log_value: Tensor) -> Tensor:
    """A log-ratio cut at the largest exponent kept; −inf (probability zero) passes through."""
    return log_value.clamp(max=LOG_LIMIT)


def bounded_exp(log_value: Tensor) -> Tensor:
    """exp, finite for any input."""
    return torch.exp(bounded(log_value))


def log_floor(log_prob: Tensor) -> Tensor:
    """log-probability cut from below, for formulas that divide by a probability."""
    return log_prob.clamp(min=-LOG_LIMIT)


def spread(uncertainty: Tensor, gamma: float) -> Tensor:
    """s = γU, the half-width of the interval for log β*."""
    return (gamma * uncertainty).clamp(max=SPREAD_LIMIT)


def log_cosh(s: Tensor) -> Tensor:
    """log cosh s for s ≥ 0 without overflow."""
    return s + softplus(-2 * s) - math.log(2)
