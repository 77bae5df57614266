"""The parts of a results file that go beyond the evaluation: weights, frequencies, risky actions, other models."""

from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.estimators import ESTIMATORS
from offpolicy.evaluation import Asked, Evaluator, PolicyRows, RowStatistics
from offpolicy.propensity import LoggingPolicy
from offpolicy.results import Results, RiskyAction, Run, Weights
from offpolicy.uncertainty import frequency_profile
from offpolicy.workflows.log_spec import LogSpec, columns_of

Array = npt.NDArray[np.float64]

BINS = 40
"""Bars of a histogram of weights."""
TINIEST, LARGEST = -12.0, 12.0
"""Ends of that histogram at most, in powers of ten; what lies beyond counts in the last bar."""
RISKY = 20
"""Actions that the list of risky ones holds."""


def document(kind: Any, run: Run, spec: LogSpec, evaluator: Evaluator, **parts: Any) -> Results:
    """The results of a run."""
    log, beta = evaluator.log, evaluator.beta
    fitted = evaluator.nuisances.fitted_log
    known = evaluator.uncertainty is not None and isinstance(beta, LoggingPolicy) and beta.is_own(fitted)
    return Results(
        kind=kind,
        run=run,
        log=log.summary() | {"source": spec.source, "columns": columns_of(spec, log)},
        evaluation=evaluator.evaluation,
        weights={name: weight_histogram(evaluator.rows[name], evaluator.damped(name)) for name in evaluator.targets},
        frequency=frequency_profile(beta, evaluator.uncertainty) if known else [],  # type: ignore[arg-type]
        risky_actions=risky_actions(evaluator),
        **parts,
    )


def weight_histogram(rows: RowStatistics, damped: Asked) -> Weights:
    """Counts of log10 weights over shared edges, as they are and damped; weights of 0 count in the first bar."""
    ends = list(rows.map(_log_ends, damped))
    low, high = max(min(one for one, _ in ends), TINIEST), min(max(other for _, other in ends), LARGEST)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    before, after = rows.total(_log_counts, damped, edges).tolist()
    return Weights(edges=edges.tolist(), before=before, after=after)


def _log_weights(rows: PolicyRows, damped: Asked) -> list[Array]:
    weights = (rows.ratio, rows.terms(ESTIMATORS[damped.name], **(damped.hyper or {})).weight)
    return [np.log10(one.double().clamp(min=10**TINIEST, max=10**LARGEST).numpy()) for one in weights]


def _log_ends(rows: PolicyRows, damped: Asked) -> tuple[float, float]:
    logs = _log_weights(rows, damped)
    return min(float(one.min()) for one in logs), max(float(one.max()) for one in logs)


def _log_counts(rows: PolicyRows, damped: Asked, edges: Array) -> npt.NDArray[np.int64]:
    logs = _log_weights(rows, damped)
    return np.stack([np.histogram(one.clip(edges[0], edges[-1]), edges)[0] for one in logs])


def risky_actions(evaluator: Evaluator) -> list[RiskyAction]:
    """The actions the best estimate depends on although β̂ is uncertain: largest share of weight times U."""
    log, rows = evaluator.log, evaluator.rows[evaluator.evaluation.best]
    if "uncertainty" not in rows.known:
        return []
    mass, prob, spread, logged = rows.total(_by_action)
    count = np.maximum(logged, 1)
    share, prob, spread = mass / max(float(mass.sum()), np.finfo(float).tiny), prob / count, spread / count
    worst = np.lexsort((-share, -share * spread))[:RISKY]
    worst = worst[logged[worst] > 0]
    ids = log.actions.vocabulary.decode(worst.tolist()) if len(worst) else []
    return [
        RiskyAction(
            action=name,
            count=int(logged[a]),
            logging_prob=float(prob[a]),
            uncertainty=float(spread[a]),
            weight_share=float(share[a]),
        )
        for name, a in zip(ids, worst, strict=True)
    ]


def _by_action(rows: PolicyRows) -> Array:
    """By action: Σ of ρ over events, of β̂ and U over rows, and rows that stand for some event."""
    log = rows.log
    events = 1.0 if log.row_weight is None else log.row_weight
    values = (
        rows.ratio.double().numpy() * events,
        rows.inputs["log_logging"].double().exp().numpy(),
        rows.inputs["uncertainty"].double().numpy(),
    )
    sums = [np.bincount(log.action, one, log.n_actions) for one in values]
    return np.stack([*sums, log.action_count.astype(np.float64)])
