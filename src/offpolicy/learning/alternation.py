"""β̂ and U re-estimated in every epoch, on the policy's own user states, instead of once before learning."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.rows import RowInputs, batches_of, row_count, rows_with_events
from offpolicy.log import LoggedData
from offpolicy.models import Batch, ContextBatches, Full, InBatch, Scorer, ascend, logging_two_tower
from offpolicy.policies import ScorerPolicy
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty import SharedMatrix

ROWS_AT_ONCE = 1 << 16
"""Rows whose gradients are held at once while U is computed."""


class Alternation:
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
        policy.eval()  # without updating its batch-norm statistics
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
        self._count = row_count(self._log, torch.float32)
        self.scorer = logging_two_tower(policy, self._log, seed=config.seed, **options)
        own = [p for p in self.scorer.parameters() if p.requires_grad]
        self.optimiser: torch.optim.Optimizer = torch.optim.Adam(own, lr=config.learning_rate, fused=True)
        self._batches = batches_of(self._log, config, rows_with_events(self._log))
        self.change_uncertainty: Callable[[Tensor, int], Tensor] | None = None
        """Applied to the training rows' U in every epoch (for ablations that remove its information)."""

    def is_joint(self, epoch: int) -> bool:
        """Whether β̂ takes a step beside each of the policy's: in the first epoch, with a cap for it."""
        return epoch == 0 and self._config.first_epoch_cap is not None

    def begin(self, epoch: int) -> dict[str, float]:
        """A pass for β̂, then β̂ and U of every row; returns the metrics to record."""
        facts: dict[str, float] = {}
        if not self.is_joint(epoch):
            random = torch_generator(self._config.seed, "learning", "logging", epoch)
            total = sum(self.step(batch) for batch in self._batches.epoch(random))
            facts["logging_log_likelihood"] = total / self._log.n_events
        self._refresh()
        if self.change_uncertainty is not None:
            rows = self._parts[0][1]
            rows.put("uncertainty", self.change_uncertainty(rows.fixed["uncertainty"], epoch))
        return facts

    def step(self, batch: Batch) -> float:
        """One step of β̂ on a batch; returns its log-likelihood, summed over events."""
        self.scorer.train()
        count = None if self._count is None else self._count[batch.rows]
        events = float(len(batch.rows) if count is None else count.sum())
        coefficients = torch.ones(len(batch.rows)) if count is None else count
        head = InBatch(count=count) if self._config.in_batch else Full()
        return ascend(self.scorer, self.optimiser, batch, coefficients, head, events=events) * events

    def _refresh(self) -> None:
        policy = ScorerPolicy(self.scorer, self._log.actions)
        for log, rows in self._parts:
            rows.logging = policy
            rows.put("log_logging", policy.logged_log_prob(log))
        if self._needs_uncertainty:
            self._refresh_uncertainty()

    @torch.no_grad()
    def _refresh_uncertainty(self) -> None:
        items = self.scorer.items().detach()
        matrix = SharedMatrix(items.shape[1], "official" if self._config.unit_gradients else "raw")
        for places, features in self._features(self._log, items):
            matrix.add(features, None if self._count is None else self._count[places])
        spread = matrix.finish()
        for log, rows in self._parts:
            uncertainty = torch.empty(log.n_rows, dtype=torch.float64)
            for places, features in self._features(log, items):
                uncertainty[places] = spread.of(features)
            rows.put("uncertainty", uncertainty)

    def _features(self, log: LoggedData, items: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """g = state · item of the logged rows, a chunk at a time."""
        for batch in ContextBatches(log, 512).epoch():
            states = batch.states(self.scorer)
            for start in range(0, len(batch.rows), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                yield batch.rows[part], states[batch.row_context[part]] * items[batch.row_action[part]]
