"""q̂(x, a): the expected reward of every action, with the logging model's architecture, cross-fitted.

    q̂(x, a) = sigmoid(c + h(x)·w_a + b_a),   c the log-odds of the mean reward

Fitted to logged rows by binary cross-entropy (rewards in [0, 1]): where the states h(x) are given, a regression for
every action, to convergence (`logistic`); else by minibatches, stopped on the log-loss of held-out contexts. With
folds, each row's imputed reward and its context's rewards come from a model that did not see it.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from offpolicy.checks import check_choice
from offpolicy.errors import ParameterError
from offpolicy.log import FeatureTable, LoggedData, pieces
from offpolicy.models import (
    ContextBatches,
    Scorer,
    Values,
    candidate_logits,
    gradient_step,
    linear_scorer,
    linear_values,
    offered_in,
    set_actions,
    spectral_scorer,
    two_tower_scorer,
    with_candidate_features,
)
from offpolicy.progress import progress
from offpolicy.rewards.logistic import RIDGES, fit_regressions, fits_in_memory
from offpolicy.rewards.model import choice_rewards, rewards_of_rows
from offpolicy.seeding import torch_generator

ScorerMaker = Callable[[LoggedData], Scorer]
Integers = npt.NDArray[np.int64]

WIDEST_LOG_ODDS = 20.0
"""Log-odds of a mean reward of 0 or 1."""


@dataclass(frozen=True)
class RewardFitConfig:
    """How a reward model is fitted."""

    epochs: int = 100
    """Maximum number of passes over the log."""
    learning_rate: float = 0.02
    """Adam's step size."""
    batch_contexts: int | None = None
    """Contexts per step, with all their rows; None takes 512, or fewer so that an epoch has at least 16 steps."""
    ridge: float | None = None
    """Penalty κ/2·|θ|² over the whole log; None chooses it on held-out folds, or takes 0 for towers."""
    pessimism: float = 0.0
    """Standard deviations by which an action's intercept is lowered; felt by actions with few rows (not by towers)."""
    held_out: float = 0.1
    """Share of contexts (or clusters) whose log-loss chooses the number of epochs."""
    patience: int = 4
    """Epochs without a better held-out log-loss before training ends."""
    seed: int = 0
    """Order of batches and split."""
    show_progress: bool | None = None
    """A progress bar: always, never, or (None) only on a terminal."""


@dataclass(frozen=True)
class FittedRewards:
    """One fitted q̂."""

    scorer: Scorer
    log_odds: float
    """c."""

    def _head(self) -> tuple[Tensor, Tensor]:
        self.scorer.eval()
        weights, bias = self.scorer.actions()
        return weights.detach(), bias.detach() + self.log_odds

    @torch.no_grad()
    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q̂(x, a), (contexts, actions)."""
        weights, bias = self._head()
        return torch.addmm(bias, self.scorer.states(contexts), weights.T).sigmoid_()

    @torch.no_grad()
    def rewards_among(self, contexts: FeatureTable) -> Tensor:
        """q̂ of the candidates, (contexts, width); 0 beyond a set's end."""
        assert contexts.candidates is not None
        weights, bias = self._head()
        offered = offered_in(contexts.candidates, self.scorer)
        return candidate_logits(self.scorer.states(contexts), weights, bias, offered).sigmoid_()

    @torch.no_grad()
    def values(self, contexts: FeatureTable) -> Values:
        """The same, tile by tile."""
        if contexts.candidates is not None:
            return lambda part: self.rewards_among(contexts.take(part))
        weights, bias = self._head()
        return linear_values(self.scorer.states(contexts), weights, bias)

    @torch.no_grad()
    def row_rewards(self, log: LoggedData) -> Tensor:
        """q̂(x_n, a_n) of logged rows, float64."""
        if log.candidates is not None:
            return rewards_of_rows(self, log)
        weights, bias = self._head()
        result = torch.empty(log.n_rows, dtype=torch.float64)
        for batch in log.batches(width=weights.shape[1]):
            states = self.scorer.states(log.contexts.take(batch.contexts))
            rows = (torch.from_numpy(batch.row_context), torch.from_numpy(batch.row_action))
            result[batch.rows] = _scores(states, weights, bias, *rows).sigmoid().double()
        return result


@dataclass(frozen=True)
class CrossFittedRewards:
    """The reward model of a log: one fitted to all rows, and with folds one for each that did not see it."""

    log: LoggedData = field(repr=False)
    whole: FittedRewards
    log_loss: float
    """Mean binary cross-entropy on the held-out rows, before the refit on all."""
    folds: tuple[FittedRewards, ...] = ()
    row_fold: Integers | None = None

    def rewards(self, contexts: FeatureTable) -> Tensor:
        """q̂(x, a), (contexts, actions), by the model fitted to all rows."""
        return self.whole.rewards(contexts)

    def rewards_among(self, contexts: FeatureTable) -> Tensor:
        """q̂ of the candidates, (contexts, width), by the model fitted to all rows."""
        return self.whole.rewards_among(contexts)

    def row_rewards(self, log: LoggedData) -> Tensor:
        """q̂(x_n, a_n), float64; for the log it was fitted to, by models that did not see the row."""
        return self._own_rows if log.same_as(self.log) else self.whole.row_rewards(log)

    @cached_property
    def _own_rows(self) -> Tensor:
        if self.row_fold is None:
            return self.whole.row_rewards(self.log)
        result = torch.empty(self.log.n_rows, dtype=torch.float64)
        for k, model in enumerate(self.folds):
            rows = np.flatnonzero(self.row_fold == k)
            result[torch.from_numpy(rows)] = model.row_rewards(self.log.take(rows))
        return result

    @cached_property
    def context_rewards(self) -> Tensor | None:
        """q̂ of every context of its log, (contexts, width), by the model that saw none of its rows, if there is one.

        None without folds, or where the rows of a context are in several.
        """
        if self.row_fold is None:
            return None
        fold = np.zeros(self.log.n_contexts, dtype=np.int64)
        fold[self.log.context_index] = self.row_fold
        if (fold[self.log.context_index] != self.row_fold).any():
            return None
        result = torch.zeros(self.log.n_contexts, self.log.width)
        for k, model in enumerate(self.folds):
            contexts = np.flatnonzero(fold == k)
            for piece in pieces(len(contexts), self.log.width):
                part = contexts[piece]
                found = choice_rewards(model, self.log.contexts.take(part))
                result[torch.from_numpy(part), : found.shape[1]] = found
        return result

    def values(self, contexts: FeatureTable, share: Tensor | None = None) -> Values:
        """q̂(x, ·) tile by tile; `share` (contexts, folds) says which folds the rows of each context belong to.

        A context's rewards are the average over its rows of those of the row's own fold.
        """
        if share is None or not self.folds:
            return self.whole.values(contexts)
        width = self.whole.scorer.n_actions if contexts.candidates is None else contexts.candidates.width
        total = share.sum(1, keepdim=True).clamp(min=1e-12)

        def values(part: slice) -> Tensor:
            found: Tensor | None = None
            numbers = np.arange(*part.indices(contexts.n_rows))
            for k, model in enumerate(self.folds):
                mine = share[part, k].nonzero().squeeze(1)
                if not len(mine):
                    continue
                rewards = choice_rewards(model, contexts.take(numbers[mine.numpy()]))
                if found is None:
                    found = rewards.new_zeros(len(numbers), width)
                rewards *= (share[part, k] / total[part, 0])[mine, None].to(rewards.dtype)
                found[:, : rewards.shape[1]].index_add_(0, mine, rewards)
            return choice_rewards(self.whole, contexts.take(part)) if found is None else found

        return values


def fit_reward_model(
    log: LoggedData,
    model: str | ScorerMaker = "linear",
    *,
    folds: int | None = 3,
    config: RewardFitConfig | None = None,
    seed: int = 0,
) -> CrossFittedRewards:
    """Fit q̂ to the log.

    `model` is "linear", "two_tower", "spectral" or a function that makes a `Scorer` for a log. With `folds`, rows are
    divided by cluster (or context), and each fold is imputed by a model of the others; None fits one model to all rows.
    """
    config = config or RewardFitConfig(seed=seed)
    makers: dict[str, ScorerMaker] = {
        "linear": linear_scorer,
        "two_tower": lambda part: two_tower_scorer(part, seed=config.seed),
        "spectral": spectral_scorer,
    }
    maker = makers[check_choice("model", model, makers)] if isinstance(model, str) else model
    groups = len(np.unique(log.cluster_index))
    scorer = with_candidate_features(maker(log), log)
    if groups > 1 and 0 < log.mean_reward < 1 and fits_in_memory(scorer) and set_actions(scorer, *scorer.actions()):
        return _by_regressions(log, scorer, folds, config)
    if groups < 2:
        epochs, log_loss = config.epochs, math.nan
    else:
        share = min(max(config.held_out, 1 / groups), 1 - 1 / groups)
        train, valid = log.split((1 - share, share), seed=config.seed)
        epochs, log_loss = _chosen_epochs(maker, train, valid, config)
    whole = _fit(maker, log, config, epochs)[0]
    if folds is None:
        return CrossFittedRewards(log, whole, log_loss)
    row_fold = log.folds(folds, seed=config.seed)
    fitted = tuple(_fit(maker, log.take(row_fold != k), config, epochs)[0] for k in range(folds))
    return CrossFittedRewards(log, whole, log_loss, fitted, row_fold)


def _by_regressions(log: LoggedData, scorer: Scorer, folds: int | None, config: RewardFitConfig) -> CrossFittedRewards:
    """A regression for every action on the states of a scorer, whose own weights are replaced."""
    groups = len(np.unique(log.cluster_index))
    row_fold = log.folds(min(folds or 3, groups), seed=config.seed)
    ridges = RIDGES if config.ridge is None else (config.ridge,)
    found = fit_regressions(scorer, log, row_fold, ridges=ridges, pessimism=config.pessimism)

    def model(theta: Tensor) -> FittedRewards:
        own = copy.deepcopy(scorer)
        set_actions(own, theta[:, :-1], theta[:, -1])
        return FittedRewards(own, 0.0)

    if folds is None:
        return CrossFittedRewards(log, model(found.whole), found.log_loss)
    return CrossFittedRewards(log, model(found.whole), found.log_loss, tuple(map(model, found.folds)), row_fold)


def _chosen_epochs(
    maker: ScorerMaker, train: LoggedData, valid: LoggedData, config: RewardFitConfig
) -> tuple[int, float]:
    _, epochs, log_loss = _fit(maker, train, config, config.epochs, valid)
    return epochs, log_loss


def _fit(
    maker: ScorerMaker, log: LoggedData, config: RewardFitConfig, epochs: int, valid: LoggedData | None = None
) -> tuple[FittedRewards, int, float]:
    """A model after so many epochs or, with held-out rows, after those with the least log-loss."""
    scorer = with_candidate_features(maker(log), log)
    mean = log.mean_reward
    log_odds = max(-WIDEST_LOG_ODDS, min(WIDEST_LOG_ODDS, math.log(mean / (1 - mean)) if 0 < mean < 1 else math.inf))
    model = FittedRewards(scorer, log_odds if mean > 0 else -WIDEST_LOG_ODDS)
    reward = torch.from_numpy(log.reward.astype(np.float32))
    events = None if log.row_weight is None else torch.from_numpy(log.row_weight * (log.n_rows / log.n_events))
    ridge = scorer.default_ridge if config.ridge is None else config.ridge
    optimiser = torch.optim.Adam(list(scorer.parameters()), lr=config.learning_rate, weight_decay=ridge / log.n_events)
    batches = ContextBatches(log, config.batch_contexts or min(512, max(64, log.n_contexts // 16)))
    best, best_epoch, best_state = math.inf if valid is None else _log_loss(model, valid), 0, None
    if valid is not None:
        best_state = copy.deepcopy(scorer.state_dict())
    with progress("reward model", epochs, show=config.show_progress) as advance:
        for epoch in range(epochs):
            scorer.train()
            for batch in batches.epoch(torch_generator(config.seed, "reward-model", "epoch", epoch)):
                weights, bias = scorer.actions()
                rows = (batch.row_context, batch.row_action)
                scores = _scores(batch.states(scorer), weights, bias + model.log_odds, *rows)
                offered = batch.offered(scorer)
                if offered is not None and offered.scores is not None:
                    scores = scores + offered.scores[rows[0], offered.place(*rows)]
                weight = None if events is None else events[batch.rows].to(scores.dtype)
                loss = F.binary_cross_entropy_with_logits(scores, reward[batch.rows].to(scores.dtype), weight)
                if not math.isfinite(gradient_step(optimiser, -loss)):
                    raise ParameterError(
                        f"The reward model's loss became {float(loss.detach())} in epoch {epoch + 1}: the learning "
                        f"rate {config.learning_rate:g} is too large for these features. Lower it."
                    )
            if valid is None:
                advance("")
                continue
            score = _log_loss(model, valid)
            advance(f"held-out log-loss {score:.4f}")
            if score < best:
                best, best_epoch, best_state = score, epoch + 1, copy.deepcopy(scorer.state_dict())
            elif epoch + 1 - best_epoch >= config.patience:
                break
    if best_state is not None:
        scorer.load_state_dict(best_state)
    return model, best_epoch, best


def _scores(states: Tensor, weights: Tensor, bias: Tensor, row_context: Tensor, row_action: Tensor) -> Tensor:
    """h·w_a + b_a of some rows."""
    logged = weights.index_select(0, row_action)
    return (states[row_context] * logged).sum(1) + bias[row_action]


def _log_loss(model: FittedRewards, log: LoggedData) -> float:
    """Mean binary cross-entropy of logged rows."""
    reward = torch.from_numpy(np.array(log.reward))
    found = model.row_rewards(log).clamp(1e-12, 1 - 1e-12)
    events = None if log.row_weight is None else torch.from_numpy(log.row_weight * (log.n_rows / log.n_events))
    return float(F.binary_cross_entropy(found, reward, events))
