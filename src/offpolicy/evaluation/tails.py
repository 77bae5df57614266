"""How heavy the tail of the weights is: the shape k of a generalised Pareto distribution fitted to the largest of them.

Below 1/2 the weights have a variance and errors can be trusted; up to 0.7 they are usable; beyond it a mean of the
weights may be decided by a row that this log does not hold. The fit is that of Zhang and Stephens (2009), a posterior
mean over a grid of the scale, with the weak prior of Pareto-smoothed importance sampling.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LEAST_TAIL = 5
"""Fewer weights than this beyond the threshold say nothing about a tail."""


def tail_size(count: int) -> int:
    """How many of so many weights are their tail."""
    return int(min(0.2 * count, 3 * np.sqrt(count)))


def pareto_shape(weight: Array, count: int | None = None) -> float | None:
    """k of the largest min(n/5, 3√n) weights; None where too few of them differ from the threshold below them.

    Of `count` weights, only the largest need be given, one more than are the tail.
    """
    size = tail_size(len(weight) if count is None else count)
    if size < LEAST_TAIL:
        return None
    largest = np.partition(weight, len(weight) - size - 1)[len(weight) - size - 1 :]
    threshold = largest.min()
    excess = np.sort(largest - threshold)[1:]
    if excess[0] <= 0:  # many weights equal the threshold: only those above it are a tail
        excess = excess[excess > 0]
    return None if len(excess) < LEAST_TAIL else _shape(excess / excess.mean())


def _shape(excess: Array) -> float:
    """Zhang and Stephens: b = k/σ averaged over its profile posterior, k = −mean log(1 − bx), then towards 1/2."""
    n = len(excess)
    count = 30 + int(np.sqrt(n))
    quartile = excess[int(n / 4 + 0.5) - 1]
    b = 1 / excess[-1] + (1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))) / (3 * quartile)
    shape = np.log1p(-b[:, None] * excess).mean(1)
    log_likelihood = n * (np.log(-b / shape) - shape - 1)
    weight = np.exp(log_likelihood - log_likelihood.max())
    mean = float((b * weight).sum() / weight.sum())
    found = float(np.log1p(-mean * excess).mean())
    return (n * found + 10 * 0.5) / (n + 10)
