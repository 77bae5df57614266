"""Train a model of β̂ by minibatches of contexts until rows it does not see get no more likely."""

import math
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.models import Batch, ContextBatches, gradient_step
from offpolicy.policies import Policy, logged_log_prob
from offpolicy.progress import progress
from offpolicy.propensity.config import FitConfig, FitOutcome, event_weights, weighted_mean
from offpolicy.seeding import torch_generator

EPOCHS, PATIENCE = 40, 2
CUTS, FACTOR = 2, 0.3
"""How often the step is cut when held-out rows get no more likely, and to which share."""
WORTH = 2e-4
"""A relative gain of held-out likelihood below this is none."""


class Trainable(Protocol):
    """A model of β̂ with gradients."""

    def optimiser(self) -> torch.optim.Optimizer:
        """One over everything that is trained, with the step size to start with."""
        ...

    def total(self, batch: Batch, weight: Tensor) -> Tensor:
        """Σ weight·log β̂ of the batch's rows less penalties, or a function with its gradient."""
        ...

    def end_epoch(self) -> None:
        """Called after every pass."""
        ...

    def policy(self, log: LoggedData) -> Policy:
        """β̂ as it is now, over the actions this log shows."""
        ...

    def state(self) -> Any:
        """A copy of everything trained."""
        ...

    def restore(self, state: Any) -> None:
        """Go back to such a copy."""
        ...


def quick(config: FitConfig) -> FitConfig:
    """For models that learn in few passes: less patience."""
    return replace(config, epochs=min(config.epochs, EPOCHS), patience=min(config.patience, PATIENCE))


def train(
    model: Trainable, log: LoggedData, held_out: LoggedData | None, config: FitConfig, chosen: FitOutcome | None
) -> FitOutcome:
    """Train in place; with `held_out` find the steps by its likelihood, else repeat those `chosen`."""
    optimiser = model.optimiser()
    batches = ContextBatches(log, config.batch_contexts or min(512, max(32, log.n_contexts // 32)))
    random = torch_generator(config.seed, "propensity", "batches")
    plan = list(chosen.steps) if chosen is not None and chosen.steps else None
    epochs = len(plan) if plan is not None else config.epochs
    best, kept, steps, since, cuts = -math.inf, model.state(), list[float](), 0, 0
    done = 0
    with progress("logging policy", epochs, show=config.show_progress) as advance:
        for epoch in range(epochs):
            if plan is not None:
                _set_step(optimiser, plan[epoch])
            steps.append(float(optimiser.param_groups[0]["lr"]))
            _pass(model, optimiser, batches, log, random)
            if held_out is None:
                advance("")
                continue
            score = weighted_mean(logged_log_prob(model.policy(log), held_out), held_out)
            advance(f"held-out log-likelihood {score:.4f}")
            if not math.isfinite(score):
                raise ParameterError(
                    f"The logging policy's likelihood became {score} in epoch {epoch + 1}: the learning rate "
                    f"{steps[-1]:g} is too large for these features. Lower it or standardise the features."
                )
            if score > best + WORTH * abs(score):
                best, kept, since, done = score, model.state(), 0, len(steps)
                continue
            since += 1
            if since >= config.patience:
                if cuts == CUTS:
                    break
                cuts, since = cuts + 1, 0
                model.restore(kept)
                steps = steps[:done]
                _set_step(optimiser, float(optimiser.param_groups[0]["lr"]) * FACTOR)
    if held_out is not None:
        model.restore(kept)
        steps = steps[:done]
    return FitOutcome(1.0, len(steps), tuple(steps))


def _pass(
    model: Trainable,
    optimiser: torch.optim.Optimizer,
    batches: ContextBatches,
    log: LoggedData,
    random: torch.Generator,
) -> None:
    for batch in batches.epoch(random):
        weight = event_weights(log, batch.rows)
        events = float(weight.sum())
        if events > 0:
            gradient_step(optimiser, model.total(batch, weight) / events)
    model.end_epoch()


def _set_step(optimiser: torch.optim.Optimizer, step: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = step
