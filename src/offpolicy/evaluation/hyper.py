"""Hyper-parameters without the truth: λ from the log alone, γ as given or calibrated, η = 1."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from offpolicy.estimators import Estimator
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.statistics import Array, Asked, RowStatistics
from offpolicy.evaluation.views import View

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


def _plug_in(rows: RowStatistics) -> float:
    """The same of rows that may be in shards."""
    (limit,) = rows.quantiles(_squared_gain, [WINSOR])
    total, count = rows.total(_winsorised, float(limit))
    return max(float(total / count), 1e-12)


def _squared_gain(rows: PolicyRows) -> Array:
    return (rows.ratio * rows.reward).square().double().numpy()


def _winsorised(rows: PolicyRows, limit: float) -> Array:
    square = _squared_gain(rows)
    return np.array([np.minimum(square, limit).sum(), float(len(square))])


def _ratio(rows: PolicyRows) -> Array:
    return rows.ratio.double().numpy()


def _largest_ratio(rows: PolicyRows) -> float:
    return float(rows.ratio.max())


def _squared_ratio(rows: PolicyRows) -> Array:
    return np.square(_ratio(rows))


def lambda_grid(middle: float, largest: float) -> list[float]:
    """Log-spaced from the squared median ratio, where half the weight is gone, to beyond the largest one."""
    return [float(v) for v in np.geomspace(max(middle, 1e-3) ** 2, 10 * max(largest, 1e-2) ** 2, GRID)]


def least_error_lambda(rows: RowStatistics) -> float:
    """The λ of least (V_λ − V_∞)² + s.e.²: bias as the move away from no shrinkage.

    With a reward model, the larger of the two errors, with and without it, counts.
    """
    views = SHRUNK[: 1 + rows.has_reward_model]
    (middle,), largest = rows.quantiles(_ratio, [0.5]), max(rows.map(_largest_ratio))
    grid = [*lambda_grid(float(middle), largest), float("inf")]
    errors = np.zeros((len(views), len(grid)))
    for errors_of, name in zip(errors, views, strict=True):
        found = list(map(View.of, rows.clustered_each([Asked(name, {"lam": lam}) for lam in grid])))
        errors_of[:] = [(one.value - found[-1].value) ** 2 + one.jackknife_error**2 for one in found]
    return grid[int(errors.max(0).argmin())]


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


def chosen_lambdas(rows: RowStatistics, lam: float | None = None) -> dict[str, float]:
    """λ for weights that bound (by estimated error, unless given), and the parameters of those that have their own.

    The tight form scales λ by N. The smooth forms follow their authors: with N clusters, 1/√N, 1/(2√N), 1 − 1/K, and
    by the second moments of ρ and ρr at a confidence of 90 %.
    """
    count = rows.n_clusters
    moments = [rows.mean_of(values) for values in (_squared_ratio, _squared_gain)]
    scales = [min((np.log(10) / (count * moment)) ** 0.5, 1.0) if moment > 0 else 1.0 for moment in moments]
    return {
        "lam": least_error_lambda(rows) if lam is None else lam,
        "uips_tight": _plug_in(rows),
        "log_smoothing": count**-0.5,
        "implicit_exploration": count**-0.5 / 2,
        "exponential_smoothing": 1 - 1 / rows.log.width,
        "power_mean": scales[0] / 3**0.5,
        "log_sum_exp": min(4 * (np.e / 3) ** 0.5 * scales[1], 1.0),
    }
