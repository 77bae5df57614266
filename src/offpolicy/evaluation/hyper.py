"""Hyper-parameters without the truth: λ from the log alone, γ as given or calibrated, η = 1."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.rows import PolicyRows

SHRUNK = ("sn_shrinkage", "sn_shrinkage_dr")
"""Self-normalised shrunk weights, without and with a reward model."""
GRID = 12
"""Values of λ tried."""
WINSOR = 0.99
"""Quantile at which squared weighted rewards are cut when λ is plugged in."""
GAMMA = 2.0
"""γ used without calibration: about a 95 % interval where β̂ fits (see `offpolicy.uncertainty.calibrate_gamma`)."""


def plug_in_lambda(ratio: Tensor, reward: Tensor) -> float:
    """λ = E_β̂[r²ρ²], its definition, winsorised so that one row does not decide it."""
    square = (ratio * reward).square().double().numpy()
    value = float(np.minimum(square, np.quantile(square, WINSOR)).mean())
    return max(value, 1e-12)


def lambda_grid(ratio: Tensor) -> list[float]:
    """Log-spaced from the squared median ratio, where half the weight is gone, to beyond the largest one."""
    middle, largest = np.quantile(ratio.double().numpy(), [0.5, 1.0])
    return [float(v) for v in np.geomspace(max(middle, 1e-3) ** 2, 10 * max(largest, 1e-2) ** 2, GRID)]


def least_error_lambda(rows: PolicyRows) -> float:
    """The λ of least (V_λ − V_∞)² + s.e.²: bias as the move away from no shrinkage.

    With a reward model, the larger of the two errors, with and without it, counts.
    """
    views = [ESTIMATORS[name] for name in SHRUNK[: 1 + rows.has_reward_model]]
    unshrunk = [rows.clustered(row, lam=float("inf")) for row in views]

    def error(lam: float) -> float:
        found = [rows.clustered(row, lam=lam) for row in views]
        errors = [(a.value - b.value) ** 2 + a.jackknife_error**2 for a, b in zip(found, unshrunk, strict=True)]
        return max(errors)

    return min([*lambda_grid(rows.ratio), float("inf")], key=error)


def log_driven(row: Estimator, lam: Mapping[str, float], gamma: float) -> dict[str, float]:
    """Hyper-parameters from the log alone: λ as chosen, γ as calibrated, η = 1; the rest by their defaults.

    `lam` holds λ under "lam", and under an estimator's name the first parameter of those that have their own.
    """
    chosen: dict[str, float] = {"lam": lam["lam"]} if "lam" in row.hyper else {}
    if row.name in lam:
        chosen[next(iter(row.hyper))] = lam[row.name]
    if "gamma" in row.hyper:
        chosen["gamma"] = gamma
    if "cap" in row.hyper and np.isfinite(lam["lam"]):
        chosen["cap"] = lam["lam"] ** 0.5 / 2  # the bound that λ puts on a weight
    allowed = {name: p.allowed for name, p in row.hyper.items()}
    return {name: v for name, v in chosen.items() if (bounds := allowed[name]) is not None and bounds.contains(v)}


def chosen_lambdas(rows: PolicyRows, lam: float | None = None) -> dict[str, float]:
    """λ for weights that bound (by estimated error, unless given), and the parameters of those that have their own.

    The tight form scales λ by N. The smooth forms follow their authors: with N clusters, 1/√N, 1/(2√N), 1 − 1/K, and
    by the second moments of ρ and ρr at a confidence of 90 %.
    """
    count = rows.n_clusters
    ratio = rows.ratio.double()
    moments = [rows.mean(values.square()) for values in (ratio, ratio * rows.reward)]
    scales = [min((np.log(10) / (count * moment)) ** 0.5, 1.0) if moment > 0 else 1.0 for moment in moments]
    return {
        "lam": least_error_lambda(rows) if lam is None else lam,
        "uips_tight": plug_in_lambda(rows.ratio, rows.reward),
        "log_smoothing": count**-0.5,
        "implicit_exploration": count**-0.5 / 2,
        "exponential_smoothing": 1 - 1 / rows.log.width,
        "power_mean": scales[0] / 3**0.5,
        "log_sum_exp": min(4 * (np.e / 3) ** 0.5 * scales[1], 1.0),
    }
