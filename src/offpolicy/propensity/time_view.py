"""A log as a logger that changes over time sees it: the time is a column of the context."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import ActionTable, FeatureTable, LoggedData, NumericColumn
from offpolicy.policies import Policy, choice_log_probs, logged_log_prob

TIME = "(time)"
"""The name of the column that the view adds."""
WINDOWS = (32, 16, 8, 4)
"""Numbers of windows of equal count, from which the finest that keeps contexts few is taken."""
GROWTH = 4
"""How many times more contexts than before a view may have."""
SMALL = 40_000_000
"""Contexts × actions up to which any growth will do."""
INSTANTS = 4
"""Instants over which β̂ is averaged where no time is given."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimeView:
    """Windows of time, each known by its place between 0 and 1."""

    edges: Times
    """The first instant of every window but the first."""

    @classmethod
    def of_log(cls, log: LoggedData) -> "TimeView | None":
        """Windows of about equal count; None for a log without time, or of one instant."""
        if log.timestamp is None or int(log.timestamp.min()) == int(log.timestamp.max()):
            return None
        for windows in WINDOWS:
            quantiles = np.quantile(log.timestamp, np.arange(1, windows) / windows, method="nearest")
            view = cls(np.unique(quantiles[quantiles > log.timestamp.min()]).astype(np.int64))
            contexts = len(np.unique(view._pairs(log)))
            if contexts <= GROWTH * log.n_contexts or contexts * log.n_actions <= SMALL:
                break
        return view

    @property
    def places(self) -> npt.NDArray[np.float64]:
        """The windows' places."""
        return (np.arange(len(self.edges) + 1) + 0.5) / (len(self.edges) + 1)

    def seen(self, log: LoggedData) -> LoggedData:
        """The log with the window's place among its contexts; the middle one where the log has no time."""
        pairs, index = np.unique(self._pairs(log), return_inverse=True)
        context, window = np.divmod(pairs, len(self.places))
        return replace(
            log, contexts=self._timed(log.contexts.take(context), window), context_index=index.astype(np.int32)
        )

    def at(self, contexts: FeatureTable, window: int) -> FeatureTable:
        """The contexts in one window."""
        return self._timed(contexts, np.full(contexts.n_rows, window))

    def _timed(self, contexts: FeatureTable, window: Times) -> FeatureTable:
        return contexts.changed({**dict(contexts.items()), TIME: NumericColumn(self.places[window])})

    def _pairs(self, log: LoggedData) -> Times:
        n = len(self.edges) + 1
        window: Times = np.full(log.n_rows, n // 2)
        if log.timestamp is not None:
            window = np.searchsorted(self.edges, log.timestamp, side="right")
        return np.asarray(log.context_index.astype(np.int64) * n + window)


@dataclass(frozen=True)
class TimedPolicy:
    """A policy over contexts with time: logged rows at their own time, other contexts on average over time."""

    base: Policy
    view: TimeView

    @property
    def actions(self) -> ActionTable:
        """Those of the base."""
        return self.base.actions

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The mean over a few instants."""
        windows = self._windows()
        total = torch.stack([self.base.log_probs(self.view.at(contexts, window)).double() for window in windows])
        return total.logsumexp(0) - math.log(len(windows))

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """The mean over a few instants."""
        parts = [choice_log_probs(self.base, self.view.at(contexts, window)).double() for window in self._windows()]
        return torch.stack(parts).logsumexp(0) - math.log(len(parts))

    def _windows(self) -> list[int]:
        instants = (np.arange(INSTANTS) + 0.5) / INSTANTS
        return [int(window) for window in np.unique((instants * len(self.view.places)).astype(int))]

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """Each row at its own time."""
        return logged_log_prob(self.base, self.view.seen(log))
