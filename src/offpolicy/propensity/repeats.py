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
from offpolicy.policies import all_log_probs, tensor
from offpolicy.propensity.ensemble import shortened
from offpolicy.propensity.fit import LoggingPolicy

Array = npt.NDArray[Any]
ROWS, NUMBERS = 30_000, 20_000_000
"""Most rows and most rows × actions that are looked at; of a longer log a share of its units."""
FEWEST_PAIRS = 50.0
"""Expected pairs of equal actions below which nothing can be said."""
TOLERATED, TOLERATED_OF_IDS = 0.15, 1.0
"""An excess that β̂'s own shrinkage explains; where the unit's id is a column of the context, β̂ pools units towards
their features, and a larger one does no harm unless it goes with the rewards."""
LINKED = 3.0
"""Standard errors beyond which an excess goes with the rewards."""


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
    reward_link: float = 0.0
    """Whether actions that a unit gets more often than β̂ says pay more than they do elsewhere, as a z-score."""
    ids_given: bool = False
    """Whether a column of the context tells the unit."""

    @property
    def tolerated(self) -> float:
        """The excess that is no sign of anything."""
        return TOLERATED_OF_IDS if self.ids_given and abs(self.reward_link) <= LINKED else TOLERATED

    @property
    def p_value(self) -> float:
        """Of an excess this large beyond the tolerated one, if the logger knew no more than the context."""
        return float(norm.sf((self.ratio - 1 - self.tolerated) / max(self.error, 1e-12)))

    @property
    def flagged(self) -> bool:
        """Whether the logger knew more about units than β̂ does."""
        return self.p_value < 0.01

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"tolerated": self.tolerated, "flagged": self.flagged}


def repeat_test(logging_policy: LoggingPolicy, log: LoggedData | None = None, seed: int = 0) -> Repeats | None:
    """The test on β̂'s own log unless another is given; None where no unit repeats often enough to tell."""
    log = logging_policy.log if log is None else log
    if log.position is not None:  # the positions of a request do not choose independently of each other
        log = log.take(log.position == 0)
    if logging_policy.rows_only or np.bincount(log.cluster_index).max() < 2:
        return None
    log = shortened(log, seed, min(ROWS, max(1, NUMBERS // log.n_actions)), NUMBERS)
    unit, row_unit = np.unique(log.cluster_index, return_inverse=True)
    equal = _others_alike(row_unit, log.action, log.n_actions)
    expected, expected_equal = _expected_pairs(logging_policy, log, row_unit, len(unit))
    observed = np.bincount(row_unit, equal, len(unit)) / 2
    total = float(expected.sum())
    if total < FEWEST_PAIRS:
        return None
    ratio = float(observed.sum()) / total
    error = float(np.sqrt(np.square(observed - ratio * expected).sum())) / total
    link = _reward_link(log, row_unit, equal - expected_equal)
    return Repeats(
        ratio, error, float(observed.sum()), total, len(unit), log.n_rows, link, ids_given=_unit_is_column(log)
    )


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


def _others_alike(row_unit: Array, action: npt.NDArray[Any], n_actions: int) -> npt.NDArray[np.float64]:
    """Of each row, the other rows of its unit with the same action."""
    pair = row_unit.astype(np.int64) * n_actions + action
    _, place, count = np.unique(pair, return_inverse=True, return_counts=True)
    return (count[place] - 1).astype(np.float64)


def _reward_link(log: LoggedData, row_unit: Array, excess: npt.NDArray[np.float64]) -> float:
    """Σ excess·(r − mean reward of the action) over its standard error; units are independent."""
    mean = np.bincount(log.action, log.reward, log.n_actions) / np.maximum(log.action_count, 1)
    by_unit = np.bincount(row_unit, excess * (log.reward - mean[log.action]))
    spread = float(np.sqrt(np.square(by_unit).sum()))
    return float(by_unit.sum()) / spread if spread > 0 else 0.0


def _expected_pairs(
    logging_policy: LoggingPolicy, log: LoggedData, row_unit: Array, units: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """½(|Σ_i β̂(·|x_i)|² − Σ_i |β̂(·|x_i)|²) of each unit, and Σ_{j≠i} β̂(a_i|x_j) of each row."""
    model, log = logging_policy.whole.in_view(log)
    order = np.argsort(row_unit, kind="stable")
    starts = np.searchsorted(row_unit[order], np.arange(units + 1))
    pairs, alike = np.zeros(units), np.zeros(log.n_rows)
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
        pairs[first:last] = ((sums.square().sum(1) - own) / 2).numpy()
        action = tensor(log.action[rows]).long()
        alike[rows] = (sums[local, action] - probs[torch.arange(len(rows)), action]).numpy()
        first = last
    return pairs, alike
