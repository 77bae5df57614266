"""When β̂ and U are estimated: once before learning, or anew in every epoch on the policy's own user states."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.rows import Integers, RowInputs
from offpolicy.log import LoggedData
from offpolicy.models import (
    Batch,
    Batches,
    ContextBatches,
    Full,
    InBatch,
    LoggingTwoTower,
    Normaliser,
    RowBatches,
    Scorer,
    ascend,
    logging_two_tower,
)
from offpolicy.policies import ScorerPolicy
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty import SharedMatrix

ROWS_AT_ONCE = 1 << 16
"""Rows whose gradients are held at once while U is computed."""


def batches_of(log: LoggedData, config: LearnerConfig, rows: Integers | None = None) -> Batches:
    """The batches a configuration asks for, of all rows or these."""
    if config.batch_rows is not None:
        return RowBatches(log, config.batch_rows, rows)
    return ContextBatches(log, config.batch_contexts or min(512, max(16, log.n_contexts // 32)), rows)


class Schedule(Protocol):
    """What the training loop asks before an epoch and beside each step."""

    scorer: LoggingTwoTower | None
    """β̂'s scorer where it learns beside the policy."""
    optimiser: torch.optim.Optimizer | None

    def begin(self, epoch: int) -> dict[str, float]:
        """Bring β̂ and U up to date; returns what the record should say."""
        ...

    def joint(self, epoch: int) -> bool:
        """Whether β̂ takes a step beside each of the policy's."""
        ...

    def step(self, batch: Batch) -> float:
        """One step of β̂ on a batch; returns its mean log-likelihood."""
        ...


class Pretrained:
    """β̂ and U stay as they were given."""

    scorer: LoggingTwoTower | None = None
    optimiser: torch.optim.Optimizer | None = None

    def begin(self, epoch: int) -> dict[str, float]:
        """Nothing to do."""
        return {}

    def joint(self, epoch: int) -> bool:
        """Never."""
        return False

    def step(self, batch: Batch) -> float:
        """Not used."""
        raise NotImplementedError


class Alternate:
    """Each epoch: a pass over the log for β̂ on frozen user states, then U from g = state · item, then the policy.

    With a first-epoch cap β̂ and the policy learn jointly in the first epoch, as in the released code: both take a step
    on every batch, each with its own optimiser.
    """

    def __init__(
        self,
        policy: Scorer,
        parts: Sequence[tuple[LoggedData, RowInputs]],
        config: LearnerConfig,
        needs_uncertainty: bool,
    ) -> None:
        """Set up β̂ for the first part (the training rows); U and β̂ are kept up to date on all parts."""
        policy.eval()  # to look, without moving its statistics
        if policy.items() is None:
            raise ParameterError(
                "schedule='alternate' estimates β̂ on the user states of a two-tower policy. Set scorer='two_tower', or "
                "use schedule='pretrained'."
            )
        options: dict[str, Any] = {
            name: value for name, value in config.scorer_options.items() if name in ("id_dim", "feature_dim", "items")
        }
        self._log = parts[0][0]
        self._parts, self._config, self._needs_uncertainty = parts, config, needs_uncertainty
        self.scorer: LoggingTwoTower | None = logging_two_tower(policy, self._log, seed=config.seed, **options)
        self._scorer = self.scorer
        own = [p for p in self._scorer.parameters() if p.requires_grad]
        self.optimiser: torch.optim.Optimizer | None = torch.optim.Adam(own, lr=config.learning_rate, fused=True)
        self._optimiser = self.optimiser
        self._batches = batches_of(self._log, config)
        self._normaliser: Normaliser = InBatch() if config.in_batch else Full()

    def joint(self, epoch: int) -> bool:
        """In the first epoch, with a cap for it."""
        return epoch == 0 and self._config.first_epoch_cap is not None

    def begin(self, epoch: int) -> dict[str, float]:
        """A pass for β̂, then β̂ and U of every row."""
        if self.joint(epoch):
            self._refresh()
            return {}
        random = torch_generator(self._config.seed, "learning", "logging", epoch)
        total = sum(self.step(batch) * len(batch.rows) for batch in self._batches.epoch(random))
        self._refresh()
        return {"logging_log_likelihood": total / self._log.n_rows}

    def step(self, batch: Batch) -> float:
        """One step of β̂ on a batch; returns its mean log-likelihood."""
        self._scorer.train()
        return ascend(self._scorer, self._optimiser, batch, torch.ones(len(batch.rows)), self._normaliser)

    def _refresh(self) -> None:
        policy = ScorerPolicy(self._scorer, self._log.actions)
        for log, rows in self._parts:
            rows.logging = policy
            rows.put("log_logging", policy.logged_log_prob(log))
        if self._needs_uncertainty:
            self._refresh_uncertainty()

    @torch.no_grad()
    def _refresh_uncertainty(self) -> None:
        items = self._scorer.items().detach()
        matrix = SharedMatrix(items.shape[1], "official" if self._config.unit_gradients else "raw")
        for _, features in self._features(self._log, items):
            matrix.add(features)
        spread = matrix.finish()
        for log, rows in self._parts:
            found = torch.empty(log.n_rows, dtype=torch.float64)
            for places, features in self._features(log, items):
                found[places] = spread.of(features)
            rows.put("uncertainty", found)

    def _features(self, log: LoggedData, items: Tensor) -> Any:
        """g = state · item of the logged rows, a chunk at a time."""
        for batch in ContextBatches(log, 512).epoch():
            states = batch.states(self._scorer)
            for start in range(0, len(batch.rows), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                yield batch.rows[part], states[batch.row_context[part]] * items[batch.row_action[part]]
