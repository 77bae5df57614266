"""The parts of a results file that go beyond the evaluation: weights, frequencies, risky actions, other models."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from offpolicy.evaluation import Evaluator
from offpolicy.propensity import LoggingPolicy
from offpolicy.results import Results, RiskyAction, Run, Weights
from offpolicy.uncertainty import frequency_profile
from offpolicy.workflows.roles import LogSpec, columns_of

BINS = 40
"""Bars of a histogram of weights."""
TINIEST, LARGEST = -12.0, 12.0
"""Ends of that histogram at most, in powers of ten; what lies beyond counts in the last bar."""
RISKY = 20
"""Actions that the list of risky ones holds."""


def document(kind: Any, run: Run, spec: LogSpec, evaluator: Evaluator, **parts: Any) -> Results:
    """The results of a run."""
    log, beta = evaluator.log, evaluator.beta
    known = evaluator.uncertainty is not None and isinstance(beta, LoggingPolicy) and beta.is_own(log)
    return Results(
        kind=kind,
        run=run,
        log=log.summary() | {"source": spec.source, "columns": columns_of(spec, log)},
        evaluation=evaluator.evaluation,
        weights={
            name: weight_histogram(evaluator.rows[name].ratio, evaluator.reweighted(name)) for name in evaluator.targets
        },
        frequency=frequency_profile(beta, evaluator.uncertainty) if known else [],  # type: ignore[arg-type]
        risky_actions=risky_actions(evaluator),
        **parts,
    )


def weight_histogram(before: Tensor, after: Tensor) -> Weights:
    """Counts of log10 weights over shared edges; weights of 0 count in the first bar."""
    logs = [_log10(before), _log10(after)]
    low = max(min(float(one.min()) for one in logs), TINIEST)
    high = min(max(float(one.max()) for one in logs), LARGEST)
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    counts = [np.histogram(one.clip(edges[0], edges[-1]), edges)[0].tolist() for one in logs]
    return Weights(edges=edges.tolist(), before=counts[0], after=counts[1])


def _log10(weight: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(np.log10(weight.detach().double().clamp(min=10**TINIEST, max=10**LARGEST).numpy()))


def risky_actions(evaluator: Evaluator) -> list[RiskyAction]:
    """The actions the best estimate depends on although β̂ is uncertain: largest share of weight times U."""
    log, rows = evaluator.log, evaluator.rows[evaluator.evaluation.best]
    if evaluator.uncertainty is None:
        return []
    action = log.action.astype(np.int64)
    count = np.maximum(log.action_count, 1)
    ratio = rows.ratio.double().numpy() * (1.0 if log.row_weight is None else log.row_weight)
    share = np.bincount(action, ratio, log.n_actions) / max(float(ratio.sum()), np.finfo(float).tiny)
    prob = np.bincount(action, rows.inputs["log_logging"].double().exp().numpy(), log.n_actions) / count
    spread = np.bincount(action, evaluator.uncertainty.double().numpy(), log.n_actions) / count
    worst = np.lexsort((-share, -share * spread))[:RISKY]
    worst = worst[log.action_count[worst] > 0]
    ids = log.actions.vocabulary.decode(worst.tolist()) if len(worst) else []
    return [
        RiskyAction(
            action=name,
            count=int(log.action_count[a]),
            logging_prob=float(prob[a]),
            uncertainty=float(spread[a]),
            weight_share=float(share[a]),
        )
        for name, a in zip(ids, worst, strict=True)
    ]
