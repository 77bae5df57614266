"""Hyper-parameters without the truth: λ from the log alone, two ways."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation.clusters import ClusteredTerms
from offpolicy.evaluation.rows import PolicyRows

GRID = 20
"""Values of λ tried."""
WINSOR = 0.99
"""Quantile at which squared weighted rewards are cut when λ is plugged in."""


def plug_in_lambda(ratio: Tensor, reward: Tensor) -> float:
    """λ = E_β̂[r²ρ²], its definition, winsorised so that one row does not decide it."""
    square = (ratio * reward).square().double().numpy()
    value = float(np.minimum(square, np.quantile(square, WINSOR)).mean())
    return max(value, 1e-12)


def lambda_grid(ratio: Tensor) -> list[float]:
    """Log-spaced from the squared median ratio, where half the weight is gone, to beyond the largest one."""
    middle, largest = np.quantile(ratio.double().numpy(), [0.5, 1.0])
    return [float(v) for v in np.geomspace(max(middle, 1e-3) ** 2, 10 * max(largest, 1e-2) ** 2, GRID)]


@dataclass(frozen=True)
class ChosenLambda:
    """A λ and the estimate it gives."""

    lam: float
    estimate: ClusteredTerms


def least_error_lambda(rows: PolicyRows, name: str = "sn_shrinkage") -> ChosenLambda:
    """The λ whose estimate has the least (V_λ − V_∞)² + s.e.²: bias as the move away from no shrinkage."""
    row = ESTIMATORS[name]
    whole = rows.clustered(row, lam=float("inf"))
    best: tuple[float, ChosenLambda] | None = None
    for lam in [*lambda_grid(rows.ratio), float("inf")]:
        estimate = rows.clustered(row, lam=lam)
        error = (estimate.value - whole.value) ** 2 + estimate.jackknife_error**2
        if best is None or error < best[0]:
            best = (error, ChosenLambda(lam, estimate))
    assert best is not None
    return best[1]
