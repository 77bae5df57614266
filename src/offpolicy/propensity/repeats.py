"""A test for what the features do not show: does the same unit get the same action more often than β̂ says?

Over pairs of rows of one unit (a cluster, or a repeated context), the expected number of equal actions is
Σ_{i<j} Σ_a β̂(a|x_i) β̂(a|x_j) if the logger looks at nothing but the context. A logger that knows the unit repeats
itself: observed over expected is then above 1.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import norm

from offpolicy.log import CategoricalColumn, LoggedData
from offpolicy.models import id_columns
from offpolicy.policies import all_log_probs
from offpolicy.propensity.ensemble import shortened
from offpolicy.propensity.fit import LoggingPolicy

ROWS, NUMBERS = 30_000, 20_000_000
"""Most rows and most rows × actions that are looked at; of a longer log a share of its units."""
FEWEST_PAIRS = 50.0
"""Expected pairs of equal actions below which nothing can be said."""
TOLERATED, TOLERATED_OF_IDS = 0.15, 1.0
"""An excess that β̂'s own shrinkage explains; where the unit's id is a column of the context, β̂ pools units towards
their features, and a larger one."""


@dataclass(frozen=True)
class Repeats:
    """Observed over expected pairs of rows of one unit with the same action."""

    ratio: float
    error: float
    """Its standard error, units taken for independent."""
    observed: float
    expected: float
    units: int
    rows: int
    """Rows that were looked at."""
    tolerated: float = TOLERATED
    """The excess that is no sign of anything."""

    @property
    def p_value(self) -> float:
        """Of an excess this large beyond the tolerated one, if the logger knew no more than the context."""
        return float(norm.sf((self.ratio - 1 - self.tolerated) / max(self.error, 1e-12)))

    @property
    def flagged(self) -> bool:
        """Whether the logger knew more about units than the context tells."""
        return self.p_value < 0.01

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"flagged": self.flagged}


def repeat_test(logging_policy: LoggingPolicy, log: LoggedData | None = None, seed: int = 0) -> Repeats | None:
    """The test on β̂'s own log unless another is given; None where no unit repeats often enough to tell."""
    log = logging_policy.log if log is None else log
    if logging_policy.rows_only or np.bincount(log.cluster_index).max() < 2:
        return None
    log = shortened(log, seed, ROWS, min(NUMBERS, ROWS * log.n_actions))
    if log.n_rows * log.n_actions > NUMBERS:
        log = shortened(log, seed, max(1, NUMBERS // log.n_actions), NUMBERS)
    unit, row_unit = np.unique(log.cluster_index, return_inverse=True)
    observed = _equal_pairs(row_unit, log.action, log.n_actions, len(unit))
    expected = _expected_pairs(logging_policy, log, row_unit, len(unit))
    total = float(expected.sum())
    if total < FEWEST_PAIRS:
        return None
    ratio = float(observed.sum()) / total
    error = float(np.sqrt(np.square(observed - ratio * expected).sum())) / total
    tolerated = TOLERATED_OF_IDS if _unit_is_column(log) else TOLERATED
    return Repeats(ratio, error, float(observed.sum()), total, len(unit), log.n_rows, tolerated)


def _unit_is_column(log: LoggedData) -> bool:
    """Whether some id column of the context tells the unit."""
    if log.cluster is None:
        return False
    units = len(np.unique(log.cluster))
    for name in id_columns(log.contexts):
        column = log.contexts[name]
        if isinstance(column, CategoricalColumn):
            pairs = log.cluster.astype(np.int64) * len(column.vocabulary) + column.codes[log.context_index]
            if len(np.unique(pairs)) == units:
                return True
    return False


def _equal_pairs(
    row_unit: npt.NDArray[Any], action: npt.NDArray[Any], n_actions: int, units: int
) -> npt.NDArray[np.float64]:
    """Pairs of rows of each unit with one action."""
    pair, count = np.unique(row_unit.astype(np.int64) * n_actions + action, return_counts=True)
    return np.asarray(np.bincount(pair // n_actions, count * (count - 1) / 2, units), dtype=np.float64)


def _expected_pairs(
    logging_policy: LoggingPolicy, log: LoggedData, row_unit: npt.NDArray[Any], units: int
) -> npt.NDArray[np.float64]:
    """½(|Σ_i β̂(·|x_i)|² − Σ_i |β̂(·|x_i)|²) of each unit."""
    model, log = logging_policy.whole.in_view(log)
    order = np.argsort(row_unit, kind="stable")
    starts = np.searchsorted(row_unit[order], np.arange(units + 1))
    result = np.zeros(units)
    size = max(1, (1 << 22) // log.n_actions)
    first = 0
    while first < units:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + size, side="right")) - 1)
        rows = order[starts[first] : starts[last]]
        contexts, place = np.unique(log.context_index[rows], return_inverse=True)
        probs = all_log_probs(model.policy, log.contexts.take(contexts)).double().exp()[torch.from_numpy(place)]
        local = torch.from_numpy(row_unit[rows] - first)
        sums = torch.zeros(last - first, log.n_actions, dtype=torch.float64).index_add_(0, local, probs)
        own = torch.zeros(last - first, dtype=torch.float64).index_add_(0, local, probs.square().sum(1))
        result[first:last] = ((sums.square().sum(1) - own) / 2).numpy()
        first = last
    return result
