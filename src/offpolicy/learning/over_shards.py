"""Training over the shards of a log: a step is the sum of the gradients of a fixed number of micro-batches.

What has to be estimated (β̂, U, q̂, where learning starts) is estimated on a sample of whole units that fits into memory,
as for a log in memory; the policy is learned from all rows. The shards are dealt to `STREAMS` streams, each of which
reads its shards one after another; a step takes a micro-batch of each stream. Gradients are added up in the order of
streams, whoever computed them, so that any number of workers ends with the same weights, to the last bit.
"""

import copy
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.engine import Engine, ShardPool
from offpolicy.errors import DivergedError, ParameterError
from offpolicy.learning.alternation import Alternation
from offpolicy.learning.budget import most_epochs, step_contexts
from offpolicy.learning.checkpoints import Checkpoint, Epoch, write_checkpoint
from offpolicy.learning.config import LearnerConfig, resolve_config
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.micro_batches import MicroGradient, Step, TrainingSetup, gradient, measured, moving, trained
from offpolicy.learning.objective import Objective, Observed
from offpolicy.learning.objectives import Moments
from offpolicy.learning.prepare import asks_for_logging, form_of, prepare_training
from offpolicy.learning.starts import model_of
from offpolicy.learning.trainer import Trainer
from offpolicy.log import LoggedData
from offpolicy.models import clipped_step
from offpolicy.nuisances import Nuisances
from offpolicy.policies import Policy, logged_log_prob, tensor
from offpolicy.propensity import OVER_SHARDS, LoggingPolicy, fit_logging_policy
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty import UncertaintyModel, uncertainty_of

STREAMS = 8
"""Micro-batches per step: fixed, so that what is learned does not depend on the number of workers."""
MICRO_CONTEXTS = 512
"""Contexts of a micro-batch at most, unless `batch_contexts` says how many a step has."""
SAMPLE_ROWS = 200_000
"""Rows, about, of the sample on which nuisances are estimated."""
HELD_OUT_ROWS = 50_000
"""Rows, about, of the held-out shards that score an epoch."""
SAVE_SECONDS = 60.0
"""A checkpoint is written at the end of an epoch, and where that takes longer, after so many seconds."""


def sample_of(log: LoggedData, rows: float, shards: range, key: str) -> LoggedData:
    """The rows of a share of the units of some shards, in memory and undivided; an undivided log is its own sample."""
    if log.shard_rows is None:
        return log
    starts = log.shard_rows
    share = rows / (starts[shards.stop] - starts[shards.start])
    if share >= 1:
        return log.take(np.arange(starts[shards.start], starts[shards.stop])).undivided
    kept = [starts[number] + np.flatnonzero(log.shard(number).of_share(share, key)) for number in shards]
    return log.take(np.concatenate(kept)).undivided


def nuisance_sample(log: LoggedData, shards: range | None = None) -> LoggedData:
    """The rows of a log, or of some of its shards, on which nuisances are estimated."""
    return sample_of(log, SAMPLE_ROWS, range(log.n_shards) if shards is None else shards, "nuisances")


def held_out_sample(log: LoggedData, shards: range | None = None) -> LoggedData:
    """The rows of a log, or of some of its shards, that score policies while they learn."""
    return sample_of(log, HELD_OUT_ROWS, range(log.n_shards) if shards is None else shards, "scored")


def shard_trainer(
    log: LoggedData,
    method: str | MethodSpec,
    *,
    config: LearnerConfig | None = None,
    validation: Any = None,
    engine: Engine | None = None,
    **given: Any,
) -> "ShardTrainer":
    """Everything `learn_policy` does before the first step over shards; `given` as for `prepare_training`.

    A linear β̂ of the sample is fitted by the workers of an engine, or here, to the same numbers.
    """
    given = {name: value for name, value in given.items() if value is not None}
    nuisances: Nuisances | None = given.pop("nuisances", None)
    changes = {name: value for name, value in given.items() if name not in GIVEN}
    resolved, spec = resolve_config(method, config, changes, log.mean_reward)
    _check(log, resolved, spec, given)
    last = log.n_shards
    asks = resolved.metric is not None or (resolved.epochs is None and spec.corrects)
    if validation is None and asks and log.n_shards > 1:
        last -= min(log.n_shards - 1, max(1, round(resolved.held_out * log.n_shards)))
        validation = held_out_sample(log, range(last, log.n_shards))
    sample = nuisance_sample(log, range(last))
    if asks_for_logging(spec, resolved):
        if nuisances is not None:
            given["logging_policy"] = nuisances.logging_policy
        else:
            model, pieces = model_of(sample, resolved, given.get("logging_policy")), sample.sharded(STREAMS)
            if isinstance(model, str) and model in OVER_SHARDS and pieces.n_shards > 1:
                given["logging_policy"] = fit_logging_policy(pieces, model, seed=resolved.seed, engine=engine)
    scale, beta = 1.0, given.get("logging_policy")
    if isinstance(beta, LoggingPolicy) and beta.log.n_shards > 1:  # its U from the sample, which is in memory
        scale = math.sqrt(min(sample.n_events / beta.log.n_events, 1.0))
        rows = logged_log_prob(beta.whole.policy, sample)
        given["logging_policy"] = replace(beta, log=sample, row_log_prob=rows)
    trainer = prepare_training(sample, method, config=config, validation=validation, **given)
    return ShardTrainer(
        **{each.name: getattr(trainer, each.name) for each in fields(Trainer) if each.init},
        whole=log,
        shards=range(last),
        scale=scale,
    )


GIVEN = ("logging_policy", "uncertainty", "reward_model", "directory")


def _check(log: LoggedData, config: LearnerConfig, spec: MethodSpec, given: Mapping[str, Any]) -> None:
    """Refuse what needs the whole log in memory."""
    problem = None
    if config.schedule != "pretrained":
        problem = "schedule='alternate' re-estimates β̂ on all rows in every epoch"
    elif config.batch_rows is not None:
        problem = "batch_rows draws rows from the whole log; give batch_contexts"
    elif config.in_batch:
        problem = "in_batch=True needs whole batches"
    elif spec.follows_slates and log.request is not None:
        problem = f"{spec.name!r} follows slates through the whole log"
    elif spec.selection is not None:
        problem = f"{spec.name!r} chooses rows over the whole log"
    elif isinstance(given.get("uncertainty"), torch.Tensor):
        problem = "U row by row belongs to a log in memory; give a logging_policy"
    if problem is not None:
        raise ParameterError(
            f"This cannot be learned over the shards of a log: {problem}. Learn from a sample that fits into memory "
            "(log.undivided of a part), or choose another method."
        )


@dataclass
class ShardTrainer(Trainer):
    """A trainer whose steps are computed by those who own the shards; the rest is that of any trainer."""

    whole: LoggedData = field(kw_only=True)
    """The log of many shards; `log` is the sample on which nuisances were estimated."""
    shards: range = field(kw_only=True)
    """The shards to learn from."""
    scale: float = 1.0
    """What U of the sample's rows is multiplied by."""
    pool: ShardPool | None = None
    main: bool = True
    """Whether this process writes checkpoints."""
    save_seconds: float = SAVE_SECONDS
    batches_of: dict[int, int] = field(default_factory=dict)
    events: float = 1.0
    ahead: dict[str, Any] | None = None
    """Where a resumed epoch stands: steps done, the sum of their norms, what was seen, what was set at its start."""

    begun: tuple[int, int] = (0, 0)
    """The epoch and step at which this run began: others than 0 where it resumed."""

    def __post_init__(self) -> None:
        """As any trainer, for a log of another size."""
        super().__post_init__()
        self.identity = dict(self.identity) | {"shards": [len(self.shards), STREAMS], "log": self.whole.fingerprint}

    @property
    def streams(self) -> list[list[int]]:
        """The shards of each stream."""
        n = min(STREAMS, len(self.shards))
        return [list(self.shards[place::n]) for place in range(n)]

    @property
    def writes(self) -> bool:
        """Whether this process writes the files of the training."""
        return self.main and self.directory is not None

    @property
    def n_events(self) -> float:
        """The events that are learned from."""
        return self.events

    @property
    def most_epochs(self) -> int:
        """Epochs at most."""
        return most_epochs(self.config, self.objective.spec, self.whole)

    @property
    def steps_an_epoch(self) -> int:
        """As many as the longest stream has micro-batches."""
        return max(sum(self.batches_of[shard] for shard in stream) for stream in self.streams)

    @property
    def note(self) -> str:
        """What was estimated on less than all rows."""
        if self.log.n_rows >= self.whole.n_rows:
            return ""
        return (
            f"Learned from {self.events:,.0f} events over {len(self.shards)} shards; what the method needs beside them "
            f"(propensities, rewards) was estimated on {self.log.n_rows:,} rows drawn by whole units."
        )

    def run_over(self, engine: Engine) -> None:
        """Train by the workers of an engine."""
        self.main = engine.writes
        rest = [[shard] for shard in range(self.whole.n_shards) if shard not in self.shards]
        with engine.over(self.whole, self.streams + rest) as pool:
            self.pool = pool
            try:
                self._measure()
                self.run()
            finally:
                self.pool = None

    def _measure(self) -> None:
        """Let every shard compute its row inputs; what a step stands for follows."""
        assert self.pool is not None
        objective, config, logging = self.objective, self.config, self.objective.rows.logging
        asked = config.batch_contexts or min(STREAMS * MICRO_CONTEXTS, step_contexts(config, self.whole) * STREAMS)
        n = len(self.streams)
        self.setup = TrainingSetup(
            copy.deepcopy(self.scorer),
            objective.spec,
            config,
            logging.whole.policy if isinstance(logging, LoggingPolicy) else logging,
            objective.reward_model,
            objective.rows.groups,
            self._uncertainty(logging) if objective.spec.needs_uncertainty else None,
            self.whole.n_contexts,
            max(1, asked // n),
        )
        found = list(self.pool.map(measured, self.pool.share(self.setup), only=list(self.shards)))
        if not any(counts for _, _, counts in found):
            raise ParameterError("There is nothing to learn from: no row has a reward above zero.")
        self.batches_of = {shard: batches for shard, (batches, _, _) in zip(self.shards, found, strict=True)}
        self.events = sum(events for _, events, _ in found)
        objective.events_a_batch = self.events / sum(self.batches_of.values())
        self.setup.events_a_batch = objective.events_a_batch
        self.shared = self.pool.share(self.setup)
        self._follow_log(0)

    def _uncertainty(self, beta: Policy | None) -> Callable[[LoggedData], Tensor]:
        """U of the rows of any shard; of a β̂ fitted to more rows than the sample, smaller by the root of how many."""
        assert isinstance(beta, LoggingPolicy)
        form, scale = {"form": "per_action", **form_of(self.config)}, self.scale
        if form == {"form": "per_action", "normalisation": "raw"}:
            model = UncertaintyModel.of(beta)
            return lambda shard: scale * model(shard)
        return lambda shard: scale * uncertainty_of(beta.whole, beta.log, shard, **form)

    def _plan(self, epoch: int) -> list[dict[int, int]]:
        """For each step the shard that each stream is at, and which of its batches it takes."""
        sequences = []
        for place, stream in enumerate(self.streams):
            random = torch_generator(self.config.seed, "learning", "shards", epoch, place)
            order = [stream[number] for number in torch.randperm(len(stream), generator=random).tolist()]
            sequences.append([(shard, piece) for shard in order for piece in range(self.batches_of[shard])])
        return [
            dict(sequence[number] for sequence in sequences if number < len(sequence))
            for number in range(self.steps_an_epoch)
        ]

    def _ascent(
        self, epoch: int, objective: Objective, joint: Alternation | None
    ) -> Generator[None, None, tuple[int, float, Epoch]]:
        """The steps of a pass over all shards."""
        assert self.pool is not None
        plan, norms, done, saved = self._plan(epoch), 0.0, 0, time.monotonic()
        if self.ahead is not None:  # what was set at the start of the epoch holds to its end
            done, norms = self.ahead["steps"], self.ahead["norms"]
            objective.observed = Observed(**self.ahead["observed"])
            objective.spec = replace(objective.spec, given={**objective.spec.given, **self.ahead["given"]})
            objective.moments = None if self.ahead["moments"] is None else Moments(**self.ahead["moments"])
            self.ahead = None
        for number in range(done, len(plan)):
            weights = [p.detach().numpy().copy() for p in trained(self.scorer)]
            buffers = [values.numpy().copy() for values in moving(self.scorer)]
            step = Step(epoch, number, weights, buffers, objective.spec, objective.moments, plan[number])
            found = list(self.pool.map(gradient, self.shared, step, only=list(plan[number]), together=STREAMS))
            norm = self._step(found, objective)
            if not math.isfinite(norm):
                raise DivergedError(
                    f"Learning {objective.spec.name!r} stopped: loss or gradient is not finite in epoch {epoch + 1}, "
                    f"step {number + 1}; the largest weight was {objective.observed.largest:.3g}. Use a bounded weight "
                    "(bips_cap, shrinkage, uips), set weight_cap, or lower the learning rate."
                )
            norms += norm
            if self.writes and time.monotonic() - saved > self.save_seconds and number + 1 < len(plan):
                assert self.directory is not None
                within = self._within(number + 1, norms, objective)
                checkpoint = self._checkpoint()
                write_checkpoint(self.directory, Checkpoint(checkpoint.tensors, {**checkpoint.facts, "within": within}))
                saved = time.monotonic()
            yield
        return len(plan), norms, {}

    def _within(self, steps: int, norms: float, objective: Objective) -> dict[str, Any]:
        """Where an epoch stands, ready for JSON."""
        spec = objective.spec
        return {
            "steps": steps,
            "norms": norms,
            "observed": vars(objective.observed),
            "given": {name: spec.values[name] for name in spec.auto if name in spec.hyper},
            "moments": None if objective.moments is None else vars(objective.moments),
        }

    def _step(self, found: list[MicroGradient], objective: Objective) -> float:
        """Add up gradients and observations in the order of streams, and take a step; the gradient's norm."""
        n, seen = len(self.streams), objective.observed
        for number, parameter in enumerate(trained(self.scorer)):
            total = torch.zeros_like(parameter)
            for one in found:
                total += tensor(one.gradient[number])
            parameter.grad = total.mul_(-1 / n)
        for number, values in enumerate(moving(self.scorer)):
            values.copy_(torch.from_numpy(np.mean([one.buffers[number] for one in found], 0)))
        for one in found:
            own = one.observed
            seen.events, seen.gain, seen.weight = (
                seen.events + own.events,
                seen.gain + own.gain,
                seen.weight + own.weight,
            )
            seen.largest = max(seen.largest, own.largest)
        seen.objective += sum(one.value for one in found) / n
        return clipped_step(self.optimiser, self.config.max_gradient_norm)

    def _restored(self, checkpoint: Checkpoint) -> None:
        """Continue within an epoch that a checkpoint was written in."""
        within = checkpoint.facts.get("within")
        self.begun = len(self.history), 0 if within is None else within["steps"]
        self.ahead = within
