"""Figure 1 of the UIPS paper from any log: β̂ and U of the logged rows, by how often their action was logged."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.propensity import LoggingPolicy
from offpolicy.results import Frequency


def bucket(count: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The paper's bucket of each frequency n ≥ 1: ⌊ln n⌋ + round(frac(ln n))/2 + 1/2, buckets half a unit apart."""
    log_count = np.log(count)
    whole = np.floor(log_count)
    rounded: npt.NDArray[np.float64] = whole + np.round(log_count - whole) / 2 + 0.5
    return rounded


def frequency_profile(logging_policy: LoggingPolicy, uncertainty: Tensor) -> list[Frequency]:
    """Mean β̂ and U of the logged rows in each bucket of action frequency, from the rarest to the most frequent."""
    log = logging_policy.log
    if uncertainty.shape != (log.n_rows,):
        raise ParameterError(
            f"uncertainty must hold one number for each of the log's {log.n_rows} rows, but it is "
            f"{tuple(uncertainty.shape)}. Compute it with row_uncertainty."
        )
    logged = np.flatnonzero(log.action_count)
    of_action = np.zeros(log.n_actions)
    of_action[logged] = bucket(log.action_count[logged])
    places, row_place = np.unique(of_action[log.action], return_inverse=True)
    rows = np.bincount(row_place)
    prob = np.bincount(row_place, logging_policy.row_log_prob.exp().numpy()) / rows
    spread = np.bincount(row_place, uncertainty.detach().double().numpy()) / rows
    actions = np.bincount(np.searchsorted(places, of_action[logged]), minlength=len(places))
    return [
        Frequency(log_frequency=float(place), logging_prob=float(p), uncertainty=float(u), rows=int(n), actions=int(a))
        for place, p, u, n, a in zip(places, prob, spread, rows, actions, strict=True)
    ]
