"""What the propensities themselves do to the answer: intervals that refit them, other models of them, an audit."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, spread
from offpolicy.evaluation.auto import WEIGHTS_ONLY, WITH_REWARDS, auto_estimate
from offpolicy.evaluation.clusters import clustered_mean
from offpolicy.evaluation.intervals import Interval, worst_case_over
from offpolicy.evaluation.rows import PolicyRows, with_logging
from offpolicy.evaluation.scale import Scale
from offpolicy.evaluation.slates import chosen_user_model, with_slates, with_user_model
from offpolicy.evaluation.statistics import RowStatistics
from offpolicy.log import LoggedData
from offpolicy.policies import Policy, UniformPolicy, as_policy, logged_log_prob, rows_only
from offpolicy.progress import progress
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.results import PropensityModel
from offpolicy.rewards import PooledRewardModel
from offpolicy.seeding import generator

PROPENSITY_MODELS = ("uniform", "popularity", "linear", "quadratic")


def worst_case_band(rows: RowStatistics, gamma: float, level: float = 0.95) -> Interval:
    """Every β in [β̂e^{−γU}, β̂e^{γU}], row by row: the exact range of SNIPS, with its sampling error on either side."""
    if "uncertainty" not in rows.known:
        raise ParameterError("The worst case over β̂'s band needs U of every row, which is not known here.")
    snips = rows.clustered(ESTIMATORS["snips"])
    low, high = worst_case_over(lambda work, *given: rows.map(_in_band, gamma, work, *given))
    error = float(norm.ppf(0.5 + level / 2)) * snips.jackknife_error
    low, high = (max(low - error, 0.0), min(high + error, 1.0)) if np.isfinite(error) else (0.0, 1.0)
    vacuous = low <= 0.0 and high >= 1.0
    return Interval(low, high, level, "worst_case", vacuous, snips.value, snips.refusal)


def _in_band(rows: PolicyRows, gamma: float, work: Callable[..., Any], *given: Any) -> Any:
    """Work on the rows of a shard as log ρ, spread and reward."""
    return work(rows.log_mass.numpy(), spread(rows.inputs["uncertainty"], gamma).numpy(), rows.reward.numpy(), *given)


def refit_bootstrap(
    log: LoggedData,
    target: Policy,
    logging_policy: LoggingPolicy,
    lam: float,
    *,
    draws: int = 50,
    level: float = 0.95,
    seed: int = 0,
    user_model: str = "",
) -> Interval:
    """Resample clusters, refit β̂ and q̂, estimate again: sampling and propensity error in one spread.

    A draw is the same log with every row weighted by how often its cluster was drawn. The draws' standard deviation
    stands for the error of the estimate with a reward model (or without, where the policy is known by a column),
    centred at the estimate itself.
    """

    def value(part: LoggedData, beta: Policy) -> float:
        model = None if rows_only(target) else PooledRewardModel.fit(part, logging_policy.whole.design)
        rows = PolicyRows.of(part, target, beta, reward_model=model)
        rows = with_user_model(with_slates(rows, target, beta), user_model) if user_model else rows
        return rows.clustered(ESTIMATORS[WITH_REWARDS if rows.has_reward_model else WEIGHTS_ONLY], lam=lam).value

    present, cluster = np.unique(log.cluster_index, return_inverse=True)
    own = 1.0 if log.row_weight is None else log.row_weight
    values = np.empty(draws)
    with progress("refit bootstrap", draws) as advance:
        for draw in range(draws):
            pick = generator(seed, "refit-bootstrap", draw).integers(0, len(present), len(present))
            drawn = log.weighted(np.bincount(pick, minlength=len(present))[cluster] * own)
            values[draw] = value(drawn, logging_policy.refit(drawn).policy)
            advance("")
    centre = value(log, logging_policy.whole.policy)
    half = float(norm.ppf(0.5 + level / 2)) * float(values.std(ddof=1))
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return Interval(low, high, level, "refit_bootstrap", low <= 0.0 and high >= 1.0, centre)


def under_model(rows: PolicyRows, logging: Policy) -> PolicyRows:
    """The same policy on the same rows with another β̂; π is not computed again."""
    return with_logging(rows, logged_log_prob(logging, rows.log))


def propensity_model_row(
    name: str, likelihood: float, calibration: float | None, rows: RowStatistics, scale: Scale, level: float
) -> PropensityModel:
    """A policy's value under one model of β̂ with this held-out quality, on the user's scale."""
    estimate = auto_estimate(rows, level)
    return PropensityModel(
        model=name,
        log_likelihood=likelihood,
        calibration_error=calibration,
        mean_weight=rows.mean_ratio,
        value=scale.value(estimate.value),
        low=scale.value(estimate.interval.low),
        high=scale.value(estimate.interval.high),
    )


def under_other_models(
    log: LoggedData,
    beta: LoggingPolicy,
    rows_under: Callable[[Policy], RowStatistics],
    scale: Scale,
    level: float,
    seed: int,
) -> list[PropensityModel]:
    """A policy's value under the models that `auto` chose among, uniform, and β̂ itself.

    `rows_under` gives the policy's rows with another β̂.
    """
    others = beta.candidates or fit_logging_policy(log, "auto", seed=seed).candidates
    models: list[tuple[str, float, float | None, Policy]] = [
        ("uniform", beta.quality.uniform_log_likelihood, None, UniformPolicy(log.actions))
    ]
    models += [
        (one.name, one.quality.log_likelihood, one.quality.calibration_error, one.model.policy)
        for one in others
        if one.name not in ("uniform", beta.model)
    ]
    models.append((beta.model, beta.quality.log_likelihood, beta.quality.calibration_error, beta))
    return [
        propensity_model_row(name, fit, error, rows_under(policy), scale, level) for name, fit, error, policy in models
    ]


def compare_propensity_models(
    log: LoggedData, policy: Any, models: Sequence[Any] = PROPENSITY_MODELS, *, level: float = 0.95, seed: int = 0
) -> list[PropensityModel]:
    """The same question under simple to rich models of β̂; a value that moves with the model cannot be relied on.

    A model that is fitted already is taken as it is. Values are on the user's scale.
    """
    target, scale = as_policy(policy, log), Scale(*log.reward_range)
    reward_model = None if rows_only(target) else PooledRewardModel.fit(log)
    answers: list[PropensityModel] = []
    rows: PolicyRows | None = None
    user_model = ""
    with progress("propensity models", len(models)) as advance:
        for model in models:
            beta = model if isinstance(model, LoggingPolicy) else fit_logging_policy(log, model, seed=seed)
            if rows is None:
                rows = PolicyRows.of(log, target, beta, reward_model=reward_model)
            quality = (beta.quality.log_likelihood, beta.quality.calibration_error)
            own = under_model(rows, beta)
            if log.request is not None:
                slates = with_slates(own, target, beta)
                user_model = user_model or chosen_user_model([slates])
                own = with_user_model(slates, user_model)
            answers.append(propensity_model_row(beta.model, *quality, own, scale, level))
            advance(beta.model)
    return answers


@dataclass(frozen=True)
class Audit:
    """Recorded propensities tested against the log that recorded them."""

    mean_weight: float
    """Mean of uniform/p over rows; 1 if the propensities are right and every action is possible everywhere."""
    mean_weight_error: float
    log_likelihood: float
    """Mean log p of the recorded propensities."""
    model_log_likelihood: float
    """Of a model fitted to one half of the log, on the other half: right propensities are not beaten by it."""
    suspicious_actions: tuple[tuple[Any, float], ...]
    """Actions logged far more or less often than their propensities say: id and z-score, worst first."""
    deciles: tuple[tuple[float, float], ...]
    """By decile of the fitted β̂: mean fitted probability and mean recorded propensity of the logged actions."""
    consistent: bool
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def audit(log: LoggedData, *, seed: int = 0) -> Audit:
    """Test recorded propensities: do weights average to one, for every action, and does a model predict better?"""
    if log.logging_prob is None:
        raise ParameterError("There is nothing to audit: this log records no propensities. Name their column first.")
    recorded = log.logging_prob
    offered = log.n_actions if log.candidates is None else log.candidates.sizes[log.context_index]
    weight = 1 / (offered * recorded)
    cluster = log.cluster_index
    mean, error = clustered_mean(weight, cluster)
    scores = _action_scores(log, recorded)
    worst = np.argsort(-np.abs(scores), kind="stable")[:10]
    limit = float(norm.isf(0.005 / log.n_actions))
    flagged = [int(a) for a in worst if abs(scores[a]) > limit]
    ids = log.actions.vocabulary.decode(flagged) if flagged else []
    train, rest = log.split((0.5, 0.5), seed=seed) if len(np.unique(cluster)) > 1 else (log, log)
    assert rest.logging_prob is not None
    own = logged_log_prob(fit_logging_policy(train, "auto", config=FitConfig.quick(seed), seed=seed), rest).numpy()
    gain, gain_error = clustered_mean(own - np.log(rest.logging_prob), rest.cluster_index)
    beaten = gain > 3 * gain_error + 0.01
    consistent = abs(mean - 1) <= 4 * error + 0.01 and not flagged and not beaten
    advice = (
        "The recorded propensities agree with the log: use them (the model 'recorded', or --propensity)."
        if consistent
        else "The recorded propensities do not fit this log: estimate them instead, or find out what they describe."
    )
    return Audit(
        mean_weight=mean,
        mean_weight_error=error,
        log_likelihood=float(np.log(recorded).mean()),
        model_log_likelihood=float(own.mean()),
        suspicious_actions=tuple((i, float(scores[a])) for i, a in zip(ids, flagged, strict=True)),
        deciles=_deciles(np.exp(own), rest.logging_prob),
        consistent=consistent,
        advice=advice,
    )


def _action_scores(log: LoggedData, recorded: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """z-score of Σ 1{a_n = a}/p_n, whose expectation is the number of rows that offer it, for each action."""
    total = np.bincount(log.action, 1 / recorded, log.n_actions)
    spread_of = np.sqrt(np.bincount(log.action, (1 - recorded) / recorded**2, log.n_actions))
    expected: float | npt.NDArray[np.float64] = float(log.n_rows)
    if log.candidates is not None:
        rows = np.bincount(log.context_index, minlength=log.n_contexts)[log.candidates.owner]
        expected = np.bincount(log.candidates.codes, rows, log.n_actions).astype(np.float64)
    # An action never logged has no variance of its own; with p unknown its absence cannot be tested.
    return np.asarray(np.divide(total - expected, spread_of, out=np.zeros(log.n_actions), where=spread_of > 0))


def _deciles(fitted: npt.NDArray[np.float64], recorded: npt.NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    order = np.argsort(fitted, kind="stable")
    return tuple((float(fitted[p].mean()), float(recorded[p].mean())) for p in np.array_split(order, 10) if len(p))
