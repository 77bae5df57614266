"""The one training loop: batches, steps, record, metric, checkpoint; the objective decides what is maximised."""

import math
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import DivergedError, OffPolicyError, ParameterError
from offpolicy.json_writer import jsonable
from offpolicy.learning.alternation import Alternation
from offpolicy.learning.budget import most_epochs
from offpolicy.learning.checkpoints import (
    Checkpoint,
    Epoch,
    TensorBoard,
    flat_optimiser,
    read_checkpoint,
    restore_optimiser,
    write_checkpoint,
    write_metrics,
)
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.log_driven import second_moment
from offpolicy.learning.monitors import HeldOut, Monitor, sharpen_policy
from offpolicy.learning.objective import Objective, Observed
from offpolicy.learning.objectives import Moments
from offpolicy.learning.rows import PolicyHead, along_slates, batches_of, merged_rows, rows_with_events
from offpolicy.log import LoggedData
from offpolicy.models import Batch, Batches, Scorer, gradient_step
from offpolicy.policies import ScorerPolicy, logged_log_prob
from offpolicy.progress import Advance, progress
from offpolicy.seeding import torch_generator

HUGE_WEIGHT = 1e12
"""Weights beyond this say that β̂ of a logged row is as good as zero."""


@dataclass
class Best:
    """The best epoch so far; without a metric, the last."""

    epoch: int = -1
    metric: float | None = None
    state: dict[str, Tensor] | None = None


@dataclass
class Trainer:
    """Trains a scorer in place; with a directory, writes a checkpoint after every epoch and resumes from it."""

    scorer: Scorer
    log: LoggedData
    objective: Objective
    config: LearnerConfig
    alternation: Alternation | None = None
    """Where β̂ and U are re-estimated in every epoch."""
    monitor: Monitor | None = None
    directory: Path | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Which training this is; a directory with another one is refused."""
    history: list[Epoch] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    started: bool = False
    """Whether the scorer starts at a policy worth keeping."""
    converged: bool = False
    """Whether it starts at the maximum itself."""

    def __post_init__(self) -> None:
        """Choose the rows that count and split them into batches."""
        parameters = [p for p in self.scorer.parameters() if p.requires_grad]
        config, objective = self.config, self.objective
        self.optimiser = torch.optim.Adam(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        counted = objective.counted()
        if not bool(counted.any()):
            raise ParameterError(
                "There is nothing to learn from: no row has a reward above zero. Check the reward column, or set "
                "reward_baseline so that the other rows count."
            )
        rows = None if bool(counted.all()) else np.flatnonzero(counted.numpy())
        merges = objective.spec.merges and config.batch_rows is None and config.first_epoch_cap is None
        merged = merged_rows(self.log, objective.rows, np.flatnonzero(counted.numpy())) if merges else None
        if merged is not None:
            rows, objective.count = merged
        self.batches = batches_of(self.log, config, rows)
        objective.events_a_batch = self.log.n_events / len(self.batches)
        self._follow_log(0)

    @property
    def most_epochs(self) -> int:
        """Epochs at most."""
        return most_epochs(self.config, self.objective.spec, self.log)

    @property
    def steps_an_epoch(self) -> int:
        """Steps of a pass."""
        return len(self.batches)

    @property
    def n_events(self) -> float:
        """The events that are learned from."""
        return self.log.n_events

    @property
    def writes(self) -> bool:
        """Whether this process writes the files of the training."""
        return self.directory is not None

    @cached_property
    def _numbers(self) -> int:
        """How many numbers are learned."""
        return sum(p.numel() for p in self.scorer.parameters() if p.requires_grad)

    @cached_property
    def all_batches(self) -> Batches:
        """Batches of every row, for an epoch in which β̂ and the policy learn jointly."""
        return batches_of(self.log, self.config, rows_with_events(self.log))

    def run(self) -> None:
        """Train until the epochs or the patience run out; the scorer ends with the best weights."""
        with _own_randomness(self.config.seed):
            self._resume()
            if self.converged:
                self._record({"epoch": 0, "seconds": 0.0})
                return
            if self.started and not self.history and self.monitor is not None:
                self.best = self._kept(-1)
            board, most = self._board(), self.most_epochs
            steps = max(most - len(self.history), 0) * self.steps_an_epoch
            with progress(f"learning {self.objective.spec.name}", steps, show=self.config.show_progress) as bar:
                while len(self.history) < most and not self._out_of_patience():
                    self._record(self._epoch(len(self.history), bar))
                    if board is not None:
                        board.add(self.history[-1])
            if board is not None:
                board.close()
        if self.best.state is not None:
            self.scorer.load_state_dict(self.best.state)
        if self.config.epochs is None:
            self._sharpen()

    def _kept(self, epoch: int) -> Best:
        """The scorer as it is now, with its score."""
        assert self.monitor is not None
        state = {name: values.detach().clone() for name, values in self.scorer.state_dict().items()}
        return Best(epoch, self.monitor.score(self._policy()), state)

    def _policy(self) -> ScorerPolicy:
        """The policy of the scorer as it is now."""
        return ScorerPolicy(self.scorer, self.log.actions)

    def _sharpen(self) -> None:
        """Sharpen the best policy as far as held-out rows let it."""
        if self.best.metric is None or not isinstance(self.monitor, HeldOut) or not self.monitor.is_value:
            return
        factor = sharpen_policy(self.scorer, self.log.actions, self.monitor)
        if factor > 1:
            self.best = self._kept(self.best.epoch)
        if self.history:
            self.history[-1]["sharpened"] = factor

    def _follow_log(self, epoch: int) -> None:
        """Set the hyper-parameters that follow the log, under the current policy."""
        spec = self.objective.spec
        if not spec.auto:
            return
        random = torch_generator(self.config.seed, "learning", "lambda", epoch)
        moment = second_moment(self.objective, self.scorer, self.batches.epoch(random), self.log.n_events)
        if moment is not None:
            self.objective.spec = spec.following(moment, self.n_events, self._numbers)

    def _epoch(self, epoch: int, bar: Advance) -> Epoch:
        """One pass; returns its record."""
        steps, text = self.steps(epoch), self._progress_text()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                record: Epoch = end.value
                return record
            bar(text)

    def steps(self, epoch: int) -> Generator[None, None, Epoch]:
        """One pass, pausing after every step; its record is the generator's value."""
        start = time.perf_counter()
        alternation = self.alternation
        facts = {} if alternation is None else alternation.begin(epoch)
        joint = alternation if alternation is not None and alternation.is_joint(epoch) else None
        self._follow_log(epoch)
        objective = self._objective(epoch)
        self.scorer.train()
        steps, norms, own = yield from self._ascent(epoch, objective, joint)
        seen = objective.observed
        return {
            "epoch": epoch,
            "objective": seen.objective / steps,
            "weighted_reward": seen.gain / self.n_events,
            "mean_weight": seen.weight / seen.events if seen.events else 0.0,
            "largest_weight": seen.largest,
            "gradient_norm": norms / steps,
            **{
                name: float(objective.spec.values[name]) for name in objective.spec.auto if name in objective.spec.hyper
            },
            **(facts | own),
            "seconds": round(time.perf_counter() - start, 3),
        }

    def _ascent(
        self, epoch: int, objective: Objective, joint: Alternation | None
    ) -> Generator[None, None, tuple[int, float, Epoch]]:
        """The steps of a pass; returns how many they are, the sum of their gradients' norms, and facts about β̂."""
        random = torch_generator(self.config.seed, "learning", "epoch", epoch)
        batches = self.batches if joint is None else self.all_batches
        norms, likelihood = 0.0, 0.0
        for number, batch in enumerate(batches.epoch(random)):
            value = objective.of(self.scorer, batch)
            finite = bool(value.detach().isfinite())
            norm = gradient_step(self.optimiser, value, self.config.max_gradient_norm) if finite else math.nan
            if not math.isfinite(norm):
                raise DivergedError(self._why_not_finite(epoch, number, batch, objective))
            norms += norm
            if joint is not None:
                likelihood += joint.step(batch)
            yield
        facts = {} if joint is None else {"logging_log_likelihood": likelihood / self.log.n_events}
        return len(batches), norms, facts

    def _objective(self, epoch: int) -> Objective:
        """The objective of an epoch: capped in the first if configured, with fresh moments and slates if used."""
        spec, cap, scorer = self.objective.spec, self.config.first_epoch_cap, self.objective.current_propensity_scorer
        if epoch == 0 and cap is not None and spec.weighs:
            spec = spec.capped(cap)
        if self.alternation is not None and self.alternation.is_joint(epoch):
            scorer = self.alternation.scorer
        fresh = replace(self.objective, spec=spec, current_propensity_scorer=scorer, observed=Observed(), moments=None)
        if spec.follows_slates and self.log.request is not None:
            log_prob = logged_log_prob(ScorerPolicy(self.scorer, self.log.actions), self.log)
            fresh.rows = along_slates(self.log, fresh.rows, log_prob, spec)
        if spec.formula.uses_moments:
            fresh.moments = self._moments(replace(fresh, observed=Observed()))
        return fresh

    @torch.no_grad()
    def _moments(self, objective: Objective) -> Moments:
        """Mean and deviation of w·gain over all events of the log, those of skipped rows being zero."""
        self.scorer.eval()
        weights, bias = self.scorer.actions()
        total, square = 0.0, 0.0
        for batch in self.batches.epoch():
            head = PolicyHead(batch.states(self.scorer), weights, bias, batch.offered(self.scorer))
            parts, rows = (head.states, weights, bias), (batch.row_context, batch.row_action)
            log_prob = objective.head(batch).log_prob(*parts, *rows, offered=head.offered)
            terms = objective.batch_terms(head, batch)(log_prob, slice(None))
            gained = (terms.weight * terms.gain).double()
            times = 1.0 if objective.count is None else objective.count[batch.rows].double()
            total, square = total + float((gained * times).sum()), square + float((gained**2 * times).sum())
        n = self.log.n_events
        variance = max(square - total**2 / n, 0.0) / max(n - 1, 1)
        return Moments(total / n, math.sqrt(variance), n)

    def _record(self, epoch: Epoch) -> None:
        """Score the epoch, record it, and write a checkpoint."""
        if self.monitor is None:
            self.best = Best(epoch["epoch"])
        else:
            found = self._kept(epoch["epoch"])
            epoch[self.monitor.name] = found.metric
            if self.best.metric is None or found.metric > self.best.metric:  # type: ignore[operator]
                self.best = found
        self.history.append(epoch)
        if self.directory is not None and self.writes:
            write_checkpoint(self.directory, self._checkpoint())
            write_metrics(self.directory, self.history)

    def _out_of_patience(self) -> bool:
        since = len(self.history) - 1 - self.best.epoch
        return self.monitor is not None and bool(self.history) and since >= self.config.patience

    def _progress_text(self) -> str:
        if self.monitor is None or not self.history:
            return f"epoch {len(self.history) + 1}"
        return f"epoch {len(self.history) + 1}, {self.monitor.name} {self.history[-1][self.monitor.name]:.4f}"

    def _board(self) -> TensorBoard | None:
        if not self.config.tensorboard:
            return None
        if self.directory is None:
            raise ParameterError("tensorboard=True needs a directory to write to. Pass directory.")
        return TensorBoard(self.directory, len(self.history))

    def _checkpoint(self) -> Checkpoint:
        tensors = {f"scorer/{name}": values for name, values in self.scorer.state_dict().items()}
        moving, groups = flat_optimiser(self.optimiser)
        tensors |= {f"optimiser/{name}": values for name, values in moving.items()}
        facts: dict[str, Any] = {"optimiser": groups}
        if self.alternation is not None:
            own = {n: v for n, v in self.alternation.scorer.state_dict().items() if not n.startswith("user.")}
            tensors |= {f"logging/{name}": values for name, values in own.items()}
            moving, facts["logging_optimiser"] = flat_optimiser(self.alternation.optimiser)
            tensors |= {f"logging_optimiser/{name}": values for name, values in moving.items()}
        if self.best.state is not None:
            tensors |= {f"best/{name}": values for name, values in self.best.state.items()}
        tensors["random"] = torch.get_rng_state()
        facts |= {"identity": dict(self.identity), "history": self.history}
        return Checkpoint(tensors, facts | {"best": {"epoch": self.best.epoch, "metric": self.best.metric}})

    def _resume(self) -> None:
        """Resume from the directory's checkpoint, if it has one."""
        if self.directory is None:
            return
        checkpoint = read_checkpoint(self.directory)
        if checkpoint is None:
            return
        mine = jsonable(self.identity)
        theirs = checkpoint.facts["identity"]
        if theirs != mine:
            names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
            raise OffPolicyError(
                f"{self.directory} holds another training: {', '.join(names)} differ. Choose another directory, or "
                "delete this one."
            )
        done = len(checkpoint.facts["history"])
        if done > self.most_epochs:
            raise OffPolicyError(
                f"{self.directory} holds this training after {done} epochs, but {self.most_epochs} are asked "
                "for: epochs cannot be undone. Choose another directory, delete this one, or ask for as many or more."
            )
        self.scorer.load_state_dict(checkpoint.under("scorer"))
        restore_optimiser(self.optimiser, checkpoint.under("optimiser"), checkpoint.facts["optimiser"])
        if self.alternation is not None:
            self.alternation.scorer.load_state_dict(checkpoint.under("logging"), strict=False)
            moving, groups = checkpoint.under("logging_optimiser"), checkpoint.facts["logging_optimiser"]
            restore_optimiser(self.alternation.optimiser, moving, groups)
        self.history = list(checkpoint.facts["history"])
        self.best = Best(**checkpoint.facts["best"], state=checkpoint.under("best") or None)
        torch.set_rng_state(checkpoint.tensors["random"])
        self._restored(checkpoint)
        if self.writes:
            write_metrics(self.directory, self.history)

    def _restored(self, checkpoint: Checkpoint) -> None:
        """What else a checkpoint says."""

    def _why_not_finite(self, epoch: int, number: int, batch: Batch, objective: Objective) -> str:
        """One paragraph: where it happened and the likeliest cause."""
        kept = "" if self.directory is None else f" The checkpoint of epoch {epoch} in {self.directory} is kept."
        where = f"Learning {objective.spec.name!r} stopped: loss or gradient is not finite in epoch {epoch + 1}, "
        where += f"batch {number + 1}. "
        if not all(bool(p.isfinite().all()) for p in self.scorer.parameters()):
            return f"{where}The policy's own weights are not finite: the learning rate is too large. Lower it.{kept}"
        with torch.no_grad():
            if not bool(batch.states(self.scorer).isfinite().all()):
                return f"{where}Some features of its contexts are not finite. Fix them.{kept}"
        largest = objective.observed.largest
        if not largest < HUGE_WEIGHT:
            return (
                f"{where}A weight reached {largest:.3g}: the logging probability of some row is as good as zero. Use a "
                f"bounded weight (bips_cap, shrinkage, uips), set weight_cap, or fit another logging policy.{kept}"
            )
        for name, values in objective.rows.fixed.items():
            if values.is_floating_point() and bool(values[batch.rows].isnan().any()):
                return f"{where}{name} is not a number in some of its rows. Fix or drop them.{kept}"
        rate = self.config.learning_rate
        return f"{where}The learning rate {rate:g} is the likeliest cause. Lower it or standardise the features.{kept}"


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Torch's global stream, for modules that draw (dropout), seeded here and restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_generator(seed, "learning", "global").initial_seed())
        yield
