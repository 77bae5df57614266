"""One matrix for all actions: M = κI + Σ g gᵀ over the last layer's features, U = √(gᵀM⁻¹g)."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from offpolicy.uncertainty.factor import (
    CHUNK_BYTES,
    Normalisation,
    check_features,
    check_mergeable,
    check_normalisation,
    check_weights,
    cholesky,
    directions,
    quadratic_form,
    ridge_of,
    without_itself,
)


class SharedMatrix:
    """Σ weight·g gᵀ of the rows seen so far. In the official form features are divided by their length when added."""

    def __init__(self, d: int, normalisation: Normalisation = "raw") -> None:
        """Start with no rows of d features."""
        check_normalisation(normalisation)
        self.d = d
        self.normalisation = normalisation
        self.n_rows = 0
        self.n_zero = 0
        """Rows whose features are all zero: their U is 0, whatever the data."""
        self._matrix = torch.zeros(d, d, dtype=torch.float64)

    def add(self, features: Tensor, weight: Tensor | None = None) -> None:
        """Add rows (n, d), each with a weight (a count of equal rows, say); 1 unless given."""
        features = check_features("features", features, self.d)
        weight = check_weights("weight", weight, len(features))
        size = max(1, CHUNK_BYTES // (8 * max(1, self.d)))
        for start in range(0, len(features), size):
            part = directions(features[start : start + size], self.normalisation)
            self._matrix.addmm_(part.T, part * weight[start : start + size].unsqueeze(1))
            self.n_zero += int((part == 0).all(1).sum())
        self.n_rows += len(features)

    def merge(self, other: Self) -> None:
        """Add all rows of another matrix."""
        check_mergeable((self.d, self.normalisation), (other.d, other.normalisation))
        self._matrix += other._matrix
        self.n_rows += other.n_rows
        self.n_zero += other.n_zero

    def finish(self, ridge: float | None = None) -> "SharedUncertainty":
        """U over all rows seen. The ridge κ is 1, or d in the official form, unless given."""
        kappa = ridge_of(ridge, self.normalisation, self.d)
        matrix = (self._matrix + self._matrix.T) / 2
        matrix.diagonal().add_(kappa)
        return SharedUncertainty(cholesky(matrix), kappa, self.normalisation)


@dataclass(frozen=True)
class SharedUncertainty:
    """U of any features."""

    factor: Tensor  # (d, d), lower
    ridge: float
    normalisation: Normalisation

    def of(self, features: Tensor, inside: bool | Tensor = False) -> Tensor:
        """U of each row (n,), float64. `inside`: leave the row itself out, which was added with weight 1 or this one.

        Of a row that was added several times one copy leaves.
        """
        features = directions(check_features("features", features, len(self.factor)), self.normalisation)
        bound = torch.linalg.vector_norm(features, dim=1) / self.ridge**0.5
        return without_itself(torch.minimum(quadratic_form(self.factor, features).sqrt(), bound), bound, inside)
