"""What all forms of U share: directions, the ridge, Cholesky factors with jitter, leaving a row out, input checks."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError

Normalisation = Literal["raw", "official"]
"""raw: features as they are, κ = 1 unless given. official: unit features and κ = d, as the released code computes."""

FIRST_JITTER, LAST_JITTER = 1e-10, 1e-4
"""What is added to the diagonal of a matrix that has no Cholesky factor, as shares of its mean diagonal."""

CHUNK_BYTES = 32 * 2**20
"""Memory one batch of padded rows, or of right-hand sides, may take."""

_RIDGE = Range(0.0, math.inf, include_low=False, include_high=False)


def check_normalisation(normalisation: str) -> None:
    """Refuse a name that is not known."""
    check_choice("normalisation", normalisation, get_args(Normalisation))


def ridge_of(ridge: float | None, normalisation: str, d: int) -> float:
    """κ: the caller's, or 1 for raw and d for official features."""
    if ridge is None:
        return float(d) if normalisation == "official" else 1.0
    return check_number("ridge", ridge, _RIDGE)


def directions(features: Tensor, normalisation: str) -> Tensor:
    """Features in float64, divided by their length in the official form; a zero vector stays zero."""
    features = features.detach().double()
    if normalisation == "raw" or features.numel() == 0:
        return features
    largest = features.abs().amax(-1, keepdim=True)  # first, so that no square under- or overflows
    features = features / largest.where(largest > 0, 1.0)
    length: Tensor = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / length.where(length > 0, 1.0)


def cholesky(matrices: Tensor) -> Tensor:
    """Lower factors of symmetric matrices (..., d, d); only those that fail get jitter, doubled until it suffices."""
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrices)
    if not bool(info.any()):
        return factor
    failed = info != 0
    stuck = matrices[failed].clone()  # (n, d, d), also where there is only one matrix
    scale = stuck.diagonal(dim1=-2, dim2=-1).mean(-1)
    jitter = FIRST_JITTER
    while bool(scale.isfinite().all()) and jitter <= LAST_JITTER:
        shifted = stuck.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_((jitter * scale).unsqueeze(-1))
        attempt, info = torch.linalg.cholesky_ex(shifted)
        if not bool(info.any()):
            factor[failed] = attempt
            return factor
        jitter *= 2
    raise ParameterError(
        f"The uncertainty matrix has no Cholesky factor even with {LAST_JITTER:g} of its mean diagonal added: its "
        f"features are too large or too small for float64. Rescale them, or choose a larger ridge."
    )


def squared_lengths(factor: Tensor, vectors: Tensor) -> Tensor:
    """|L⁻¹g|² of vectors (..., n, d) for lower factors (..., d, d)."""
    half: Tensor = torch.linalg.solve_triangular(factor, vectors.mT, upper=False)
    return half.square_().sum(-2)


def quadratic_form(factor: Tensor, vectors: Tensor) -> Tensor:
    """|L⁻¹g|² of many vectors (n, d) for one factor, a bounded number at a time."""
    result = vectors.new_empty(len(vectors))
    size = max(1, CHUNK_BYTES // (8 * max(1, vectors.shape[1])))
    for start in range(0, len(vectors), size):
        result[start : start + size] = squared_lengths(factor, vectors[start : start + size])
    return result


def row_leave_one_out(u: Tensor, count: float | Tensor = 1.0) -> Tensor:
    """U of rows had they not been among the data: U_loo² = U²/(1 − count·U²), from U with them inside.

    `count` copies leave (a weighted row leaves with its weight), however many there were. ∞ where nothing is left to
    say: only rounding leads there, since 1 − count·U² ≥ κ/(κ + count·|g|²).
    """
    square = u.square()
    return (square / (1 - count * square).clamp(min=0)).sqrt().where(square > 0, 0.0)


def without_itself(u: Tensor, bound: Tensor, inside: bool | Tensor) -> Tensor:
    """U, or U left out for rows that were inside with weight 1 (True) or their own; never above |g|/√κ."""
    if inside is False:
        return u
    return torch.minimum(row_leave_one_out(u, 1.0 if inside is True else inside), bound)


def check_features(name: str, features: Tensor, d: int) -> Tensor:
    """The features, or an error if they are not (rows, d) finite numbers."""
    if features.ndim != 2 or features.shape[1] != d or not features.is_floating_point():
        raise ParameterError(
            f"{name} must be a (rows, {d}) table of real numbers, but it is {tuple(features.shape)} of "
            f"{features.dtype}."
        )
    if not bool(features.isfinite().all()):
        row = int((~features.isfinite()).any(1).nonzero()[0])
        raise ParameterError(f"{name} must be finite, but row {row} holds {features[row].tolist()[:8]}. Fix that row.")
    return features.detach().cpu()


def check_weights(name: str, weight: Tensor | None, n: int) -> Tensor:
    """One non-negative finite float64 per row; ones if not given."""
    if weight is None:
        return torch.ones(n, dtype=torch.float64)
    if weight.shape != (n,):
        raise ParameterError(f"{name} must hold one number for each of {n} rows, but it is {tuple(weight.shape)}.")
    weight = weight.detach().cpu().double()
    if not bool(((weight >= 0) & weight.isfinite()).all()):
        bad = float(weight[~((weight >= 0) & weight.isfinite())][0])
        raise ParameterError(f"{name} must be finite and not negative, but one value is {bad}.")
    return weight


def check_index(name: str, index: Tensor, size: int) -> Tensor:
    """Positions 0..size−1 as int64."""
    if index.ndim != 1 or index.is_floating_point():
        raise ParameterError(f"{name} must be one integer per row, but it is {tuple(index.shape)} of {index.dtype}.")
    index = index.cpu().long()
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < size):
        bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise ParameterError(f"{name} must lie in 0..{size - 1}, but one row holds {bad}.")
    return index


def check_rows(row_context: Tensor, row_action: Tensor, contexts: int, actions: int) -> tuple[Tensor, Tensor]:
    """Rows that point at contexts and actions that exist."""
    row_context = check_index("row_context", row_context, contexts)
    row_action = check_index("row_action", row_action, actions)
    if len(row_context) != len(row_action):
        raise ParameterError(
            f"row_context and row_action must be equally long, but they are {len(row_context)} and {len(row_action)}."
        )
    return row_context, row_action


def check_mergeable(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    """Refuse to merge matrices of different kinds."""
    if one != other:
        raise ParameterError(
            f"Only uncertainty matrices of one shape and normalisation merge; {one} and {other} differ."
        )
