"""How a model of β̂ is fitted, what was chosen in doing so, and means over events."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.policies import tensor
from offpolicy.seeding import generator

RIDGES = (1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4)
"""Penalties κ/2·|W|² on the weights (never the intercepts) of a linear model; the one with the best held-out likelihood
is kept. κ is the precision of a normal prior on every weight: a fact about the logger, which does not grow with the
rows, so that what is chosen on some rows holds for all."""


@dataclass(frozen=True)
class FitConfig:
    """How a softmax is fitted."""

    epochs: int = 100
    """Maximum passes over the log (Adam) or half the maximum passes (L-BFGS)."""
    learning_rate: float = 0.02
    """Adam's step size."""
    batch_contexts: int | None = None
    """Contexts per step, with all their rows; None takes 512, or fewer so that an epoch has at least 32 steps."""
    ridge: float | None = None
    """Penalty κ/2·|W|² on the weights; None tries a few for a linear model and uses none for towers."""
    patience: int = 4
    """Epochs without a better held-out likelihood before the step size is cut, and in the end training."""
    seed: int = 0
    """Order of batches."""
    show_progress: bool | None = None
    """Show a progress bar: always, never, or (None) only on a terminal."""
    keep: Path | None = None
    """Folder in which each finished fit is kept, so that a killed run need not repeat it; None keeps none."""

    @classmethod
    def quick(cls, seed: int = 0) -> "FitConfig":
        """Few passes, for a first look at a log."""
        return cls(epochs=20, patience=1, seed=seed)


@dataclass(frozen=True)
class FitOutcome:
    """What was chosen on held-out rows, so that a refit on all rows can repeat it."""

    ridge: float
    epochs: int = 0
    """Passes over the log; 0 where it was fitted to convergence."""
    steps: tuple[float, ...] = ()
    """The step size of each of them."""
    converged: bool = True
    """Whether a fit that was meant to converge did."""
    at_grid_end: bool = False
    """Whether the ridge was chosen among `RIDGES` and is the weakest or the strongest of them."""

    @property
    def grid_note(self) -> str:
        """What it means that the ridge is at an end of those tried; empty where it is not."""
        if not self.at_grid_end:
            return ""
        if self.ridge >= max(RIDGES):
            return (
                f"The strongest penalty tried ({self.ridge:g}) predicts held-out rows best: the context columns say "
                "next to nothing about which action was logged. If the logger did look at the context, add the columns "
                "it looked at."
            )
        return (
            f"The weakest penalty tried ({self.ridge:g}) predicts held-out rows best: the logger is close to "
            "deterministic given these columns. Give a smaller ridge (FitConfig), or check that no column was written "
            "after the action was chosen."
        )


def some_contexts(log: LoggedData, numbers: int, seed: int, purpose: str) -> npt.NDArray[np.int64] | None:
    """As many contexts, drawn at random, as have so many (contexts × actions) numbers; None where all have few enough.

    The one budget of work that need not look at every context of a large log.
    """
    most = max(1, numbers // log.width)
    if log.n_contexts <= 2 * most:
        return None
    random = generator(seed, "logging-policy", purpose)
    return np.sort(random.choice(log.n_contexts, most, replace=False))


def check_events(log: LoggedData, fold: npt.NDArray[np.int64]) -> None:
    """Refuse folds of which one stands for no event, or all but one for none."""
    events = np.bincount(fold, log.row_weight)
    empty = np.flatnonzero((events <= 0) | (events >= events.sum()))
    if empty.size:
        raise ParameterError(
            f"Rows are held out in {len(events)} parts to choose a model of β̂, but the row weights are "
            f"so concentrated that the rows inside or outside part {empty[0]} stand for no event. Drop the rows of "
            "weight zero, and give a log with more events."
        )


def event_weights(log: LoggedData, rows: Tensor) -> Tensor:
    """How many events each of these rows stands for."""
    if log.row_weight is None:
        return torch.ones(len(rows))
    return tensor(log.row_weight)[rows].float()


def weighted_mean(values: Tensor, log: LoggedData) -> float:
    """The mean over the events of a log of one number per row."""
    if log.row_weight is None:
        return float(values.mean())
    return float(values.double() @ tensor(log.row_weight)) / log.n_events
