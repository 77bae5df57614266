"""`evaluate`: what policies are worth, told from a log without propensities, with intervals and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from offpolicy.checks import check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation.auto import AutoEstimate, auto_estimate
from offpolicy.evaluation.comparison import best_by_lower_bound, compare
from offpolicy.evaluation.hyper import least_error_lambda, plug_in_lambda
from offpolicy.evaluation.intervals import INTERVALS, gamma_sensitivity
from offpolicy.evaluation.intervals.registry import LEVEL
from offpolicy.evaluation.preflight import detectable_effect, preflight
from offpolicy.evaluation.propensities import refit_bootstrap, worst_case_band
from offpolicy.evaluation.results import EstimatorResult, Evaluation, PolicyEvaluation, Scale, Sensitivity
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.log import LoggedData
from offpolicy.policies import ColumnPolicy, Policy, as_policy
from offpolicy.progress import progress
from offpolicy.propensity import LoggingPolicy, fit_logging_policy
from offpolicy.rewards import PooledRewardModel
from offpolicy.uncertainty import calibrate_gamma, row_uncertainty

DEFAULT_ESTIMATORS = ("ips", "snips", "clipped", "shrinkage", "uips", "snuips", "dm", "dr", "sndr", "uips_dr")
GAMMA = 2.0
"""γ used without calibration: about a 95 % interval where β̂ fits (see `offpolicy.uncertainty.calibrate_gamma`)."""


def evaluate(
    log: LoggedData,
    policies: Any,
    logging_policy: LoggingPolicy | str | None = None,
    *,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    intervals: Sequence[str] = ("normal",),
    level: float = 0.95,
    gamma: float | str = GAMMA,
    refits: int = 0,
    uncertainty: Tensor | None = None,
    reward_model: PooledRewardModel | None = None,
    seed: int = 0,
) -> Evaluation:
    """The value of each policy, with a two-part interval, a verdict on the log, and comparisons with logging.

    `policies` maps names to policies (or is one policy): anything with log_probs, a column with π(a_n|x_n) of every
    logged row, a function of the contexts, {"lists": ...} of recommended actions, or "uniform". Hyper-parameters come
    from the log alone: λ by estimated error, γ as given or "calibrated" (η = 1). With `refits` the refit bootstrap is
    added, that many fits of β̂ each. U of every row and a reward model are fitted unless they are given. Nothing of size
    rows × actions is ever made.
    """
    level = check_number("level", level, LEVEL)
    rows = [ESTIMATORS.find(name) for name in estimators]
    methods = {name: INTERVALS.find(name) for name in intervals}
    targets = _named(policies, log)
    beta = logging_policy if isinstance(logging_policy, LoggingPolicy) else _fit(log, logging_policy, seed)
    if log.reward.min() == log.reward.max():
        raise ParameterError(
            f"Every reward in this log is {log.reward_to_user_scale(float(log.reward[0])):g}: nothing tells policies "
            "apart. Check that the reward column is the right one."
        )
    if reward_model is None and not all(isinstance(target, ColumnPolicy) for target in targets.values()):
        reward_model = PooledRewardModel.fit(log, beta.whole.design)
    if uncertainty is None and beta.is_own(log):
        uncertainty = row_uncertainty(beta)
    if isinstance(gamma, str):
        check_choice("gamma", gamma, ("calibrated",))
        gamma = calibrate_gamma(beta, uncertainty=uncertainty, seed=seed).gamma
    found: dict[str, PolicyEvaluation] = {}
    estimates: dict[str, AutoEstimate] = {}
    on_policy = None
    with progress("evaluating", len(targets)) as advance:
        for name, target in targets.items():
            data = PolicyRows.of(log, target, beta, uncertainty=uncertainty, reward_model=reward_model, estimators=rows)
            on_policy = data.on_policy()
            estimates[name] = auto_estimate(data, level)
            aware = {} if uncertainty is None else {"worst_case": worst_case_band(data, gamma, level)}
            if refits:
                aware["refit_bootstrap"] = refit_bootstrap(
                    log, target, beta, estimates[name].lam, draws=refits, level=level, seed=seed
                )
            one = _one(name, target, data, estimates[name], beta, rows, methods, on_policy.value, level, gamma)
            found[name] = replace(one, propensity_intervals=aware)
            advance(f"{name}: {found[name].value:.4f}")
    assert on_policy is not None
    return Evaluation(
        policies=found,
        logging_value=on_policy.value,
        logging_interval=INTERVALS["normal"](on_policy, level),
        comparisons=tuple(compare(estimates, on_policy, "logging", level)),
        best=best_by_lower_bound(estimates),
        level=level,
        logging_model=beta.model,
        logging_quality=beta.quality.to_json(),
        scale=Scale(*log.reward_range),
        log_summary=log.summary(),
    )


def _named(policies: Any, log: LoggedData) -> dict[str, Policy]:
    if isinstance(policies, Mapping) and "lists" not in policies:
        if not policies:
            raise ParameterError("policies is empty: name at least one policy to evaluate.")
        return {str(name): as_policy(target, log, str(name)) for name, target in policies.items()}
    return {"policy": as_policy(policies, log)}


def _fit(log: LoggedData, model: str | None, seed: int) -> LoggingPolicy:
    return fit_logging_policy(log, model or "auto", seed=seed)


def _one(
    name: str,
    target: Policy,
    rows: PolicyRows,
    estimate: AutoEstimate,
    beta: LoggingPolicy,
    asked: list[Estimator],
    methods: Mapping[str, Any],
    logging_value: float,
    level: float,
    gamma: float,
) -> PolicyEvaluation:
    left_out = {row.name: rows.can(row) for row in asked if rows.can(row)}
    lam = _lambdas(rows, estimate.lam)
    results = tuple(_estimate(rows, row, lam, gamma, methods, level) for row in asked if row.name not in left_out)
    return PolicyEvaluation(
        name=name,
        value=estimate.value,
        interval=estimate.interval,
        lam=estimate.lam,
        estimates=results,
        left_out=left_out,
        preflight=preflight(rows.log, target, beta, rows, estimate),
        sensitivity=_sensitivity(rows, estimate.value, logging_value),
        detectable_effect=detectable_effect(estimate, level),
    )


def _lambdas(rows: PolicyRows, chosen: float | None = None) -> dict[str, float]:
    """λ for weights that bound (chosen by estimated error) and for the tight form, which scales it by N itself."""
    lam = least_error_lambda(rows).lam if chosen is None else chosen
    return {"lam": lam, "uips_tight": plug_in_lambda(rows.ratio, rows.reward)}


def log_driven(row: Estimator, lam: Mapping[str, float], gamma: float) -> dict[str, float]:
    """Hyper-parameters from the log alone: λ as chosen, γ as calibrated, η = 1; the rest by their defaults."""
    chosen: dict[str, float] = {}
    if "lam" in row.hyper:
        chosen["lam"] = lam.get(row.name, lam["lam"])
    if "gamma" in row.hyper:
        chosen["gamma"] = gamma
    if "cap" in row.hyper and np.isfinite(lam["lam"]):
        chosen["cap"] = lam["lam"] ** 0.5 / 2  # the bound that λ puts on a weight
    allowed = {name: p.allowed for name, p in row.hyper.items()}
    return {name: v for name, v in chosen.items() if (bounds := allowed[name]) is not None and bounds.contains(v)}


def _estimate(
    rows: PolicyRows,
    row: Estimator,
    lam: Mapping[str, float],
    gamma: float,
    methods: Mapping[str, Any],
    level: float,
) -> EstimatorResult:
    hyper = log_driven(row, lam, gamma)
    terms = rows.clustered(row, **hyper)
    return EstimatorResult(
        name=row.name,
        value=terms.value,
        standard_error=terms.standard_error,
        intervals={name: method(terms, level) for name, method in methods.items()},
        hyper=row.check_hyper(hyper),
        mean_weight=terms.mean_weight,
        note=terms.refusal or terms.note,
    )


def _sensitivity(rows: PolicyRows, value: float, logging_value: float) -> Sensitivity:
    log_ratio: Tensor = rows.log_ratio
    found = gamma_sensitivity(log_ratio.numpy(), rows.reward.numpy(), logging_value)
    flips = found.gamma_low if value >= logging_value else found.gamma_high
    return Sensitivity(flips, tuple(found.gammas.tolist()), tuple(found.low.tolist()), tuple(found.high.tolist()))
