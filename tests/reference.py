"""Slow NumPy twins of the weights, written from the paper's formulas in plain probabilities, one row at a time.

Nothing here imports the library, works in log space or shares code with it.
"""

from collections.abc import Callable
from math import cosh, exp, inf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
World = dict[str, Any]
"""pi (rows, actions), beta (rows, actions), action, reward, uncertainty, context, recorded (rows,)."""


def ratio(world: World, n: int) -> float:
    a = world["action"][n]
    return float(world["pi"][n, a] / world["beta"][n, a])


def taken(world: World, policy: str, n: int) -> float:
    return float(world[policy][n, world["action"][n]])


def group_mass(world: World, policy: str, n: int) -> float:
    own = world["groups"][world["action"][n]]
    return float(sum(p for p, group in zip(world[policy][n], world["groups"], strict=True) if group == own))


def gain(world: World, n: int) -> float:
    return ratio(world, n) * float(world["reward"][n])


def uips_phi(rho: float, s: float, lam: float, eta1: float, eta2: float) -> float:
    first = lam / (lam / eta1 * exp(-s) + eta1 * rho**2 / exp(-s))
    second = 2 * eta2 / (exp(s) + exp(-s))
    return min(first, second)


def uips(world: World, n: int, lam: float, gamma: float, eta1: float, eta2: float) -> float:
    rho = ratio(world, n)
    return rho * uips_phi(rho, gamma * world["uncertainty"][n], lam, eta1, eta2)


def uips_tight(world: World, n: int, lam: float, gamma: float, q2: float) -> float:
    rho, s = ratio(world, n), gamma * world["uncertainty"][n]
    rows = len(world["action"])
    low, high = exp(-s), min(exp(s), 1 / world["beta"][n, world["action"][n]])
    return float(rho * min(lam / (lam * low + q2 * rho**2 / (rows * low)), 2 / (low + high)))


def uips_clip(world: World, n: int, gamma: float, cap: float) -> float:
    s = gamma * world["uncertainty"][n]
    return float(min(ratio(world, n) / cosh(s), cap * exp(-2 * s)))


def dice_s(world: World, n: int, cap: float) -> float:
    same = [m for m in range(len(world["action"])) if world["context"][m] == world["context"][n]]
    share = sum(world["action"][m] == world["action"][n] for m in same) / len(same)
    return float(min(cap, world["pi"][n, world["action"][n]] / share))


def poxm(world: World, n: int, top_p: float) -> float:
    pi, beta, a = world["pi"][n], world["beta"][n], world["action"][n]
    top = sorted(range(len(beta)), key=lambda b: (-beta[b], b))[: int(min(top_p, len(beta)))]
    if a not in top:
        return 0.0
    return float((pi[a] / pi[top].sum()) / (beta[a] / beta[top].sum()))


def prune(world: World, n: int, quantile: float) -> float:
    logged = [world["beta"][m, a] for m, a in enumerate(world["action"])]
    threshold = sorted(logged)[min(int(quantile * len(logged)), len(logged) - 1)]
    return ratio(world, n) if logged[n] >= threshold else 0.0


def rows_scale(world: World, n: int, power: float) -> float:
    return float((world["pi"][n] ** 2 / world["beta"][n]).sum() ** -power)


def actions_phi(world: World, n: int, h: Callable[[Array, Array], Array]) -> float:
    values = h(world["pi"][n], world["beta"][n])
    return float(values[world["action"][n]] / values.sum())


def ips_un(world: World, n: int, alpha: float) -> float:
    """Try every threshold on the reward and keep the one with the smallest self-normalised value."""
    rho = np.array([ratio(world, m) for m in range(len(world["action"]))])
    reward = np.array(world["reward"])
    best, chosen = inf, rho
    for threshold in [-inf, *reward]:
        weight = rho * np.where(reward <= threshold, exp(alpha), exp(-alpha))
        value = (weight * reward).sum() / weight.sum()
        if value < best - 1e-12:
            best, chosen = value, weight
    return float(chosen[n])


def official_phi(pi: float, beta: float, s: float, h: dict[str, Any]) -> float:
    scale = h["eta1"] if h["eta1_on_variance"] else 1.0
    denominator = h["lam"] / h["eta1"] * exp(-s) + scale * pi**2 / (beta**2 * exp(-s) + h["variance_guard"])
    first = h["lam"] / (denominator + h["denominator_guard"])
    return float(min(first, 2 * h["eta2"] / (exp(s) + exp(-s))) if h["second_term"] else first)


def uips_official(world: World, n: int, **h: Any) -> float:
    a = world["action"][n]
    pi, beta = float(world["pi"][n, a]), float(world["beta"][n, a])
    guarded = float(pi / (beta + h["ratio_guard"]))
    return guarded * official_phi(pi, beta, h["gamma"] * world["uncertainty"][n], h)


def clipped_official(world: World, n: int, cap: float, ratio_guard: float) -> float:
    a = world["action"][n]
    return float(min(cap, world["pi"][n, a] / (world["beta"][n, a] + ratio_guard)))


WEIGHTS: dict[str, Callable[..., float]] = {
    "ips": ratio,
    "snips": ratio,
    "dr": ratio,
    "sndr": ratio,
    "ips_gt": lambda w, n: float(w["pi"][n, w["action"][n]] / w["recorded"][n]),
    "dm": lambda w, n: 0.0,
    "clipped": lambda w, n, cap: min(cap, ratio(w, n)),
    "dice_s": dice_s,
    "shrinkage": lambda w, n, lam: lam / (lam + ratio(w, n) ** 2) * ratio(w, n),
    "shrinkage_dr": lambda w, n, lam: lam / (lam + ratio(w, n) ** 2) * ratio(w, n),
    "sn_shrinkage": lambda w, n, lam: lam / (lam + ratio(w, n) ** 2) * ratio(w, n),
    "sn_shrinkage_dr": lambda w, n, lam: lam / (lam + ratio(w, n) ** 2) * ratio(w, n),
    "switch_dr": lambda w, n, threshold: ratio(w, n) if ratio(w, n) <= threshold else 0.0,
    "poxm": poxm,
    "prune": prune,
    "minvar": lambda w, n: rows_scale(w, n, 1.0) * ratio(w, n),
    "minvar_dr": lambda w, n: rows_scale(w, n, 1.0) * ratio(w, n),
    "stablevar": lambda w, n: rows_scale(w, n, 0.5) * ratio(w, n),
    "minvar_paper": lambda w, n: ratio(w, n) * actions_phi(w, n, lambda p, b: b / p**2),
    "minvar_dr_paper": lambda w, n: ratio(w, n) * actions_phi(w, n, lambda p, b: b / p**2),
    "stablevar_paper": lambda w, n: ratio(w, n) * actions_phi(w, n, lambda p, b: np.sqrt(b) / p),
    "uips_p": lambda w, n, gamma: ratio(w, n) * exp(-gamma * w["uncertainty"][n]),
    "uips_o": lambda w, n, gamma, cap: min(cap, ratio(w, n) * exp(gamma * w["uncertainty"][n])),
    "uips": uips,
    "snuips": uips,
    "snuips_dr": uips,
    "uips_dr": uips,
    "uips_tight": uips_tight,
    "uips_clip": uips_clip,
    "ips_un": ips_un,
    "clipped_official": clipped_official,
    "uips_official": uips_official,
    "log_smoothing": lambda w, n, smoothing: log(1 + smoothing * gain(w, n)) / (smoothing * w["reward"][n]),
    "implicit_exploration": lambda w, n, floor: float(taken(w, "pi", n) / (taken(w, "beta", n) + floor)),
    "exponential_smoothing": lambda w, n, alpha: float(taken(w, "pi", n) / taken(w, "beta", n) ** alpha),
    "power_mean": lambda w, n, mixing: ratio(w, n) / (1 - mixing + mixing * ratio(w, n)),
    "log_sum_exp": lambda w, n, temperature: (1 - exp(-temperature * gain(w, n))) / (temperature * w["reward"][n]),
    "beta_ips": ratio,
    "mips": lambda w, n: group_mass(w, "pi", n) / group_mass(w, "beta", n),
    "offcem": lambda w, n: group_mass(w, "pi", n) / group_mass(w, "beta", n),
    "balanced": lambda w, n: float(w["odds"][n]),
    # A request that shows one action is a slate of one position; tests/evaluation/test_slates.py has longer ones.
    "sips": ratio,
    "rips": ratio,
    "cascade_dr": ratio,
    "iips": ratio,
    "pseudo_inverse": ratio,
}
"""Every row of the registry but `ips_un_simplex`, whose twin is a general-purpose solver in its own test."""

NORMALISERS: dict[str, Callable[[World, int], float]] = {
    "minvar": lambda w, n: rows_scale(w, n, 1.0),
    "minvar_dr": lambda w, n: rows_scale(w, n, 1.0),
    "stablevar": lambda w, n: rows_scale(w, n, 0.5),
}


def value(weight: Array, normaliser: Array, reward: Array, imputed: Array, baseline: Array) -> float:
    """The one formula, row by row."""
    total = 0.0
    for w, r, q in zip(weight, reward, imputed, strict=True):
        total += w * (r - q)
    return float(np.mean(baseline) + total / sum(normaliser))


def log_sum_exp(world: World, temperature: float) -> float:
    """−log(mean e^{−λρr})/λ."""
    rows = range(len(world["action"]))
    return -log(sum(exp(-temperature * gain(world, n)) for n in rows) / len(rows)) / temperature


def log_smoothing(world: World, smoothing: float) -> float:
    """mean log(1 + λρr)/λ."""
    rows = range(len(world["action"]))
    return sum(log(1 + smoothing * gain(world, n)) / smoothing for n in rows) / len(rows)


def beta_ips(world: World) -> float:
    """b + mean ρ(r − b), b = mean r(ρ² − ρ)/mean(ρ² − ρ)."""
    rho = np.array([ratio(world, n) for n in range(len(world["action"]))])
    reward = np.array(world["reward"])
    constant = np.mean(reward * (rho**2 - rho)) / np.mean(rho**2 - rho)
    return float(constant + np.mean(rho * (reward - constant)))


def worst_case(phi: Array, rho: float, lam: float, low: float, high: float, points: int = 401) -> Array:
    """max over u in [low, high] of λ(uφ − 1)² + ρ²φ², by brute force."""
    u = np.linspace(low, high, points)[:, None]
    return np.asarray((lam * (u * phi - 1) ** 2 + rho**2 * phi**2).max(axis=0))


def caps(lam: float) -> float:
    return sqrt(lam) / 2
