"""Three ways to normalise a softmax while it trains, behind one interface: full, in-batch, sampled.

All score with f(x, a) = h·w_a + b_a. `full` sums over all actions and is the policy itself. The other two sum over a
few actions, for vocabularies one cannot afford to sum over at every step; at use time take the exact head (`Full`),
or for `in_batch` its own probability as some published code does.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.models.choices import Offered
from offpolicy.models.softmax import log_normaliser, softmax_log_prob, weighted, weighted_log_likelihood
from offpolicy.models.tiles import Coefficients, Places


class Normaliser(Protocol):
    """What training asks of a normaliser."""

    @property
    def name(self) -> str:
        """The name reports print, so that a result says which normaliser it used."""

    def log_prob(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        *,
        offered: Offered | None = None,
    ) -> Tensor:
        """log p(a_n|x_n) of each row, differentiable in states, weights and bias."""

    def surrogate(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        coefficients: Coefficients,
        *,
        whole_batch: bool = False,
        offered: Offered | None = None,
    ) -> Tensor:
        """Σ sg(c_n) log p(a_n|x_n), the scalar whose gradient trains the scorer; followed by autograd.

        With `whole_batch`, coefficients that are a function are asked for once, for all rows.
        """
        log_prob = self.log_prob(states, weights, bias, row_context, row_action, offered=offered)
        return weighted(log_prob, coefficients)


@dataclass(frozen=True)
class Full(Normaliser):
    """The exact softmax over all actions."""

    name: ClassVar[str] = "full"

    def log_prob(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        *,
        offered: Offered | None = None,
    ) -> Tensor:
        """log π(a_n|x_n)."""
        return softmax_log_prob(states, weights, bias, row_context, row_action, offered=offered)

    def surrogate(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        coefficients: Coefficients,
        *,
        whole_batch: bool = False,
        offered: Offered | None = None,
    ) -> Tensor:
        """Value and gradient in one fused pass."""
        rows = (row_context, row_action)
        return weighted_log_likelihood(
            states, weights, bias, *rows, coefficients, whole_batch=whole_batch, offered=offered
        )


@dataclass(frozen=True)
class InBatch(Normaliser):
    """The softmax over the actions of the batch's own rows, each as often as it occurs.

    Without `frequency` its optimum is f = log β*(a|x) − log m(a) + c(x), m the marginal frequency of actions in the
    log: a lift, not a propensity. With `frequency` m̂, log m̂(a) is subtracted from the training logits and the
    optimum is f = log β*(a|x) + c(x), whose full softmax is β*.
    """

    frequency: Tensor | None = None  # (actions,) positive, on any scale
    count: Tensor | None = None  # (rows,) positive: how many events each row of the batch stands for

    @property
    def name(self) -> str:
        """Says whether the frequency correction was on."""
        return "in_batch" if self.frequency is None else "in_batch_corrected"

    def log_prob(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        *,
        offered: Offered | None = None,
    ) -> Tensor:
        """log of the share of the logged action among the batch's actions."""
        _refuse(offered, self.name)
        own = self._present(weights, bias, row_action)
        return softmax_log_prob(states, own.weights, own.bias, row_context, own.place) - own.repeats

    def surrogate(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        coefficients: Coefficients,
        *,
        whole_batch: bool = False,
        offered: Offered | None = None,
    ) -> Tensor:
        """Value and gradient in one fused pass over the batch's actions."""
        _refuse(offered, self.name)
        own = self._present(weights, bias, row_action)
        constant = states.new_zeros(())

        def shifted(log_prob: Tensor, places: Places) -> Tensor:
            repeats = own.repeats[places]
            row = coefficients(log_prob - repeats, places) if callable(coefficients) else coefficients[places]
            constant.add_((row * repeats).sum().detach())
            return row

        head = (states, own.weights, own.bias, row_context, own.place)
        return weighted_log_likelihood(*head, shifted, whole_batch=whole_batch) - constant

    def _present(self, weights: Tensor, bias: Tensor | None, row_action: Tensor) -> "_Present":
        actions, place, counts = torch.unique(row_action, return_inverse=True, return_counts=True)
        if self.count is not None:
            counts = self.count.new_zeros(len(actions)).index_add_(0, place, self.count)
        log_count = counts.to(weights.dtype).log()
        offset = log_count
        if self.frequency is not None:
            frequency = self.frequency[actions].to(weights.dtype)
            if not bool((frequency > 0).all()):
                action = int(actions[(frequency <= 0).nonzero()[0]])
                raise ParameterError(
                    f"Action {action} occurs in the batch but its frequency is {float(self.frequency[action])}. "
                    "Count frequencies on the log that is trained on, or smooth them."
                )
            offset = log_count - frequency.log()
        return _Present(*_chosen(weights, bias, actions, offset), place, log_count[place])


class _Present(NamedTuple):
    """The actions of a batch, as a head in which one that occurs n times has the weight of n."""

    weights: Tensor  # (actions, d)
    bias: Tensor  # (actions,)
    place: Tensor  # (rows,) of each row's action among them
    repeats: Tensor  # (rows,) log of how often it occurs


@dataclass(frozen=True)
class Sampled(Normaliser):
    """S actions drawn from a proposal Q in place of all, corrected by −log Q, fresh for every batch.

    log p = f_n − log Ẑ with Ẑ = (1/S)·(exp(f_n)/Q(a_n) + Σ_s exp(f_s)/Q(a_s)): its gradient is that of the usual
    sampled softmax (logits f − log Q, the logged action among the candidates), its value tends to log π as S grows.
    """

    proposal: Tensor  # (actions,) positive, on any scale
    negatives: int
    generator: torch.Generator
    _cumulative: Tensor = field(init=False, repr=False)

    name: ClassVar[str] = "sampled"

    def __post_init__(self) -> None:
        """Refuse proposals that leave actions out."""
        if self.negatives < 1:
            raise ParameterError(f"negatives must be at least 1, but it is {self.negatives}.")
        if not bool((self.proposal > 0).all()) or not bool(self.proposal.isfinite().all()):
            raise ParameterError("The proposal must give every action a positive, finite share. Smooth it first.")
        object.__setattr__(self, "_cumulative", self.proposal.double().cumsum(0))

    def log_prob(
        self,
        states: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        row_context: Tensor,
        row_action: Tensor,
        *,
        offered: Offered | None = None,
    ) -> Tensor:
        """log π(a_n|x_n) with the normaliser estimated from the draws and the logged action."""
        _refuse(offered, self.name)
        total = self._cumulative[-1]
        uniform = torch.rand(self.negatives, dtype=torch.float64, generator=self.generator)
        drawn = torch.searchsorted(self._cumulative, uniform.to(total.device) * total, right=True)
        actions, counts = torch.unique(drawn, return_counts=True)
        log_expected = (self.proposal.double() / total * self.negatives).log().to(states.dtype)  # log S·Q(a)
        offset = counts.to(states.dtype).log() - log_expected[actions]
        log_total = log_normaliser(states, *_chosen(weights, bias, actions, offset))

        logit = (states[row_context] * weights.index_select(0, row_action)).sum(1)
        logit = logit if bias is None else logit + bias[row_action]
        return logit - torch.logaddexp(log_total[row_context], logit - log_expected[row_action])


def _refuse(offered: Offered | None, name: str) -> None:
    if offered is not None:
        raise ParameterError(
            f"The {name} normaliser stands in for a sum over all actions, but this log has candidates, over which the "
            "sum is exact. Leave it out."
        )


def _chosen(weights: Tensor, bias: Tensor | None, actions: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of some actions, and their bias moved by an offset."""
    chosen = weights.index_select(0, actions)
    return chosen, offset if bias is None else bias.index_select(0, actions) + offset
