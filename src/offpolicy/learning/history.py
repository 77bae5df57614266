"""The record of a training: one JSON object an epoch, and TensorBoard events where asked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.atomic import write_atomic
from offpolicy.errors import MissingExtraError
from offpolicy.json_writer import json_text
from offpolicy.learning.checkpoints import METRICS

Epoch = dict[str, Any]
"""epoch, value, mean_weight, ... and the metric of one epoch; plain numbers."""


def write_metrics(directory: Path, history: Sequence[Epoch]) -> None:
    """Replace the file of metrics: one line an epoch, whole at any moment, no epoch twice."""
    lines = "".join(json_text(epoch, "epoch") + "\n" for epoch in history)
    write_atomic(directory / METRICS, lines)


class TensorBoard:
    """Writes numbers as TensorBoard events."""

    def __init__(self, directory: Path, next_epoch: int) -> None:
        """Open the writer; events from `next_epoch` on, left by a killed run, are purged."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "tensorboard=True needs TensorBoard, which is not installed. Run pip install tensorboard, or read "
                f"{METRICS} instead."
            ) from error
        self._writer = SummaryWriter(str(directory), purge_step=next_epoch)

    def add(self, epoch: Mapping[str, Any]) -> None:
        """Write the numbers of one epoch."""
        for name, value in epoch.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, epoch["epoch"])

    def close(self) -> None:
        """Flush to disk."""
        self._writer.close()
