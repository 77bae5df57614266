"""What intervals without a limit theorem rest on: a bound on the weight (√λ/2 for UIPS and shrinkage, the cap, ...).

Clusters differ in size, so the value is a ratio Σy/Σz of sums over independent clusters, and a candidate v is tested by
the mean of d_c(v) = y_c − v·z_c, which is zero at the truth and bounded. That is one statement for the plain estimator
(z = rows), the self-normalised one (z = weights) and, shifted to be non-negative, the doubly robust one.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from offpolicy.checks import POSITIVE
from offpolicy.errors import ParameterError
from offpolicy.evaluation.clusters import ROWS, WEIGHT, ClusteredTerms
from offpolicy.evaluation.value import Array

Bound = Annotated[float, POSITIVE]
"""A number no weight w exceeds, known beforehand; infinity where none is."""

NO_BOUND = "no bound on the weight is known"
NO_FORM = "needs a mean of rows, divided by 1 or by w"


@dataclass(frozen=True)
class BoundedRatio:
    """Σy/Σz + shift, with 0 ≤ y ≤ ceiling·z and 0 ≤ z ≤ largest in every cluster."""

    numerator: Array
    denominator: Array
    ceiling: float
    largest: float
    shift: float = 0.0


def bounded_ratios(terms: ClusteredTerms, bound: float) -> tuple[BoundedRatio, ...]:
    """The value as a sum of bounded ratios: one, or two for a self-normalised estimator with a reward model.

    The largest cluster is taken from the log: sizes are treated as known, as the number of clusters is.
    """
    weight, rows = terms.columns[:, WEIGHT], terms.columns[:, ROWS]
    if (weight > bound * rows * (1 + 1e-9)).any():
        seen = float((weight / rows).max())
        raise ParameterError(f"bound is {bound:g}, but a cluster's mean weight is {seen:g}. Pass a bound that holds.")
    parts = _parts(terms, bound)
    for part in parts:
        slack = 1e-9 * part.ceiling * part.largest
        over = part.numerator - part.ceiling * part.denominator
        if part.numerator.min() < -slack or over.max() > slack:
            raise ParameterError(
                "A cluster's weighted rewards lie outside what its weights allow: this interval needs rewards and "
                "reward model in [0, 1]. Rescale them."
            )
    return parts


def _parts(terms: ClusteredTerms, bound: float) -> tuple[BoundedRatio, ...]:
    correction, normaliser, baseline, _, rows = (terms.columns[:, k] for k in range(5))
    size = float(rows.max())
    if terms.is_plain and not terms.has_baseline:
        return (BoundedRatio(correction, rows, bound, size),)
    if terms.is_plain:
        # q̂(x, π) + w·(r − q̂) lies in [−bound, 1 + bound].
        return (BoundedRatio(baseline + correction + bound * rows, rows, 1 + 2 * bound, size, -bound),)
    if terms.is_self_normalised and not terms.has_baseline:
        return (BoundedRatio(correction, normaliser, 1.0, bound * size),)
    if terms.is_self_normalised:
        # w·(r − q̂) lies in [−w, w].
        return (
            BoundedRatio(correction + normaliser, normaliser, 2.0, bound * size, -1.0),
            BoundedRatio(baseline, rows, 1.0, size),
        )
    return ()


def obstacle(terms: ClusteredTerms, bound: float) -> str:
    """Why no such interval can be given; empty where it can."""
    if np.isinf(bound):
        return NO_BOUND
    return "" if (terms.is_plain or terms.is_self_normalised) and not terms.temperature else NO_FORM
