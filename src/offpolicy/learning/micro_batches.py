"""What a worker does in training over shards: gradients of micro-batches of its own shards, at weights it is sent."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from offpolicy.engine import shard_cache, spilled
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.objective import Objective, Observed
from offpolicy.learning.objectives import Moments
from offpolicy.learning.rows import RowInputs, row_count, row_inputs
from offpolicy.log import LoggedData
from offpolicy.models import Batch, ContextBatches, Scorer
from offpolicy.policies import Policy, tensor
from offpolicy.rewards import RewardModel, row_rewards
from offpolicy.seeding import torch_generator

Arrays = list[npt.NDArray[Any]]


@dataclass
class TrainingSetup:
    """What does not change while learning, sent to every worker once."""

    scorer: Scorer
    """The worker's own copy, into which the weights of each step are written."""
    spec: MethodSpec
    config: LearnerConfig
    logging: Policy | None
    reward_model: RewardModel | None
    groups: Tensor | None
    uncertainty: Callable[[LoggedData], Tensor] | None
    """U of the rows of a shard, where it is needed."""
    n_contexts: int
    contexts_a_batch: int
    events_a_batch: float = 1.0
    at: tuple[int, int] | None = None
    """The epoch and step whose weights the scorer has."""

    @property
    def module(self) -> nn.Module:
        """The scorer as a module."""
        assert isinstance(self.scorer, nn.Module)
        return self.scorer

    def take(self, step: "Step") -> None:
        """Write the weights of a step into the scorer."""
        if self.at == (step.epoch, step.number):
            return
        with torch.no_grad():
            for own, values in zip(trained(self.scorer), step.weights, strict=True):
                own.copy_(tensor(values))
            for state, values in zip(moving(self.scorer), step.buffers, strict=True):
                state.copy_(tensor(values))
        self.module.train()
        self.at = (step.epoch, step.number)


@dataclass(frozen=True)
class Step:
    """What a step sends to the workers."""

    epoch: int
    number: int
    weights: Arrays
    buffers: Arrays
    spec: MethodSpec
    moments: Moments | None
    pieces: Mapping[int, int]
    """Which batch of its epoch each shard takes."""


class MicroGradient(NamedTuple):
    """What a micro-batch leaves."""

    gradient: Arrays
    buffers: Arrays
    value: float
    observed: Observed


@dataclass
class ShardEpoch:
    """A shard that is being read: its batches in the order of an epoch, and what weighs their rows."""

    epoch: int
    scorer: Scorer
    objective: Objective
    batches: Iterator[Batch]
    n: int
    at: int = field(default=0)


def trained(scorer: Scorer) -> list[nn.Parameter]:
    """The parameters that are learned."""
    return [p for p in scorer.parameters() if p.requires_grad]


def moving(scorer: Scorer) -> list[Tensor]:
    """Floating-point state that follows the data without a gradient, such as running means."""
    assert isinstance(scorer, nn.Module)
    return [values for values in scorer.buffers() if values.is_floating_point()]


def measured(shard: LoggedData, index: int, setup: TrainingSetup) -> tuple[int, float, bool]:
    """Computes the row inputs of a shard; its number of batches and events, and whether any row counts."""
    objective = _objective(shard, setup)
    counted = objective.counted()
    contexts = np.unique(shard.context_index[counted.numpy()])
    return -(-len(contexts) // setup.contexts_a_batch), shard.n_events, bool(counted.any())


def gradient(shard: LoggedData, index: int, setup: TrainingSetup, step: Step) -> MicroGradient:
    """The gradient of the objective on one micro-batch."""
    setup.take(step)
    current = _shard_epoch(shard, index, setup, step)
    objective = replace(
        current.objective,
        spec=step.spec,
        moments=step.moments,
        observed=Observed(),
        events_a_batch=setup.events_a_batch,
    )
    batch = next(current.batches)
    current.at += 1
    scorer, parameters = current.scorer, trained(setup.scorer)
    with torch.random.fork_rng(devices=[]):
        drawn = torch_generator(setup.config.seed, "learning", "drawn", step.epoch, step.number, index)
        torch.set_rng_state(drawn.get_state())
        value = objective.of(scorer, batch)
        found = torch.autograd.grad(value, parameters, allow_unused=True)
    if current.at == current.n:
        shard_cache().pop("current")
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    kept = [values.numpy().copy() for values in moving(setup.scorer)]
    if kept:  # the next micro-batch starts from the step's state again
        setup.at = None
    return MicroGradient([g.numpy() for g in gradients], kept, float(value.detach()), objective.observed)


def _shard_epoch(shard: LoggedData, index: int, setup: TrainingSetup, step: Step) -> ShardEpoch:
    """The shard at the batch that is wanted: as the last step left it, or read up to there again."""
    cache, wanted = shard_cache(), step.pieces[index]
    known: ShardEpoch | None = cache.get("current")
    if known is not None and (known.epoch, known.at) == (step.epoch, wanted):
        return known
    objective = _objective(shard, setup)
    counted = objective.counted()
    rows = None if bool(counted.all()) else np.flatnonzero(counted.numpy())
    batches = ContextBatches(shard, setup.contexts_a_batch, rows)
    order = torch_generator(setup.config.seed, "learning", "epoch", step.epoch, index)
    scorer = copy.copy(setup.scorer)  # shares the weights, but keeps the encoded contexts of its own shard
    pieces = itertools.islice(batches.epoch(order), wanted, None)
    cache["current"] = ShardEpoch(step.epoch, scorer, objective, pieces, len(batches), wanted)
    current: ShardEpoch = cache["current"]
    return current


def _objective(shard: LoggedData, setup: TrainingSetup) -> Objective:
    """The objective on the rows of a shard; what does not depend on π was computed once and is kept beside it."""
    cache = shard_cache()
    if "inputs" not in cache:
        computed = _computed(shard, setup)
        cache["inputs"] = list(computed.fixed), list(computed.by_context)
        for name, values in {**computed.fixed, **computed.by_context}.items():
            spilled(name, values.numpy)
    fixed, by_context = ({name: tensor(spilled(name, _lost)) for name in names} for names in cache["inputs"])
    size = setup.n_contexts if setup.config.sample_size is None else setup.config.sample_size
    rows = RowInputs(fixed, setup.logging, by_context, torch.tensor(float(size)), setup.groups)
    return Objective(setup.spec, rows, setup.reward_model, row_count(shard, fixed["reward"].dtype))


def _computed(shard: LoggedData, setup: TrainingSetup) -> RowInputs:
    """Row inputs of a shard, computed."""
    uncertainty = None if setup.uncertainty is None else setup.uncertainty(shard)
    dtype = trained(setup.scorer)[0].dtype
    rows = row_inputs(setup.spec, setup.config, shard, dtype, logging=setup.logging, uncertainty=uncertainty)
    rows.by_context = {name: values for name, values in rows.by_context.items() if name == "top"}
    if setup.reward_model is not None:
        rows.put("imputed", row_rewards(setup.reward_model, shard))
    return rows


def _lost() -> npt.NDArray[Any]:
    raise RuntimeError("Row inputs are computed before they are read.")
