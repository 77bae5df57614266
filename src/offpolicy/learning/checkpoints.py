"""The files of a training: a checkpoint, one JSON object per epoch, and TensorBoard events where asked.

A checkpoint is one file written atomically, safetensors with its JSON inside, so that nothing can disagree.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from offpolicy.atomic import write_atomic
from offpolicy.errors import MissingExtraError, OffPolicyError
from offpolicy.json_writer import json_text

FORMAT = 1
CHECKPOINT = "checkpoint.safetensors"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Checkpoint:
    """A training between two epochs."""

    tensors: Mapping[str, Tensor]
    """Scorers, optimisers, random state and best weights, by path."""
    facts: Mapping[str, Any]
    """Epoch, history, best so far, and which training this is; ready for JSON."""

    def under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors of one part, by their names within it."""
        start = prefix + "/"
        return {name[len(start) :]: values for name, values in self.tensors.items() if name.startswith(start)}


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the directory's checkpoint."""
    plain = {name: values.detach().contiguous().clone() for name, values in checkpoint.tensors.items()}
    facts = json_text({"format": FORMAT, **checkpoint.facts}, "checkpoint")
    write_atomic(directory / CHECKPOINT, save(plain, metadata={"offpolicy": facts}))


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """The directory's checkpoint, if it has one."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("offpolicy", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise OffPolicyError(f"{path} cannot be read as a checkpoint ({error}). Delete it to start over.") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise OffPolicyError(f"{path} is not a checkpoint of this version. Delete it, or choose another directory.")
    return Checkpoint(tensors, facts)


def flat_optimiser(optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """An optimiser's state as named tensors and plain settings."""
    state = optimiser.state_dict()
    tensors = {
        f"{number}/{name}": torch.as_tensor(value)
        for number, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, state["param_groups"]


def restore_optimiser(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """The inverse of `flat_optimiser`."""
    state: dict[int, dict[str, Tensor]] = {}
    for path, values in tensors.items():
        number, name = path.split("/")
        state.setdefault(int(number), {})[name] = values
    optimiser.load_state_dict({"state": state, "param_groups": groups})


Epoch = dict[str, Any]
"""epoch, value, mean_weight, ... and the metric of one epoch; plain numbers."""


def write_metrics(directory: Path, history: Sequence[Epoch]) -> None:
    """Replace the file of metrics: one line per epoch, atomically, no epoch twice."""
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
                "tensorboard=True needs TensorBoard, which is not installed. Run: pip install 'offpolicy[tensorboard]' "
                f"(or read {METRICS} instead)."
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
