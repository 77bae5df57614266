"""Rows made by hand for the diagnostics of an evaluation."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offpolicy.evaluation import PolicyRows, preflight
from offpolicy.evaluation.auto import AutoEstimate
from offpolicy.evaluation.views import Width
from offpolicy.log import LoggedData
from offpolicy.results import Check, Preflight, TwoPartInterval

Array = npt.NDArray[np.float64]
N = 100


def rows_of(ratio: Any, *, logging: Any = 0.5, unsupported: Any = None, **log: Any) -> PolicyRows:
    """One row of a context of its own for each ratio, unless the log says otherwise."""
    ratio = np.asarray(ratio, dtype=np.float64)
    n = len(ratio)
    given: dict[str, Any] = {
        "contexts": np.arange(n, dtype=np.float64)[:, None],
        "action": np.arange(n) % 2,
        "reward": np.arange(n) % 2 / 2,
        "actions": 2,
        **log,
    }
    made = LoggedData.from_arrays(**given)
    with np.errstate(divide="ignore"):
        inputs = {"log_ratio": np.log(ratio), "log_logging": np.log(np.broadcast_to(logging, n)), "reward": made.reward}
    return PolicyRows(
        made,
        {name: torch.from_numpy(np.array(values)) for name, values in inputs.items()},
        None if unsupported is None else torch.from_numpy(np.asarray(unsupported, dtype=np.float64)),
    )


def estimated(width: float = 0.25, disagreement: float = 1.0) -> AutoEstimate:
    interval = TwoPartInterval(low=0.25, high=0.25 + width, sampling=width / 2, propensity=0.0)
    return AutoEstimate(0.25 + width / 2, interval, 1.0, (), (), Width(0.1, 0.0, 0.0, disagreement))


def judged(rows: PolicyRows, **estimate: float) -> Preflight:
    return preflight(rows, estimated(**estimate))


def check(name: str, rows: PolicyRows, **estimate: float) -> Check:
    (found,) = [one for one in judged(rows, **estimate).checks if one.name == name]
    return found


def one_failed(rows: PolicyRows, name: str, **estimate: float) -> None:
    """That check fails and no other."""
    assert [one.name for one in judged(rows, **estimate).checks if not one.passed] == [name]
