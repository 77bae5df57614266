"""What a training maximises: registry weights under stop-gradient, an objective's coefficients, and log π.

Weights, value and gradient come from one fused pass over the softmax. Where a row's coefficient depends on the whole
batch (self-normalised values, worst cases) and the batch does not fit a tile, log π of the batch comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offpolicy.estimators import ESTIMATORS, Estimator
from offpolicy.evaluation import GROUP_INPUT
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.objectives import Moments, RowTerms, top_k_factor
from offpolicy.learning.rows import PolicyHead, RowInputs, context_inputs, group_inputs
from offpolicy.models import Batch, Full, InBatch, Normaliser, Places, Scorer, Values, total_expectation
from offpolicy.rewards import CrossFittedRewards, RewardModel, choice_rewards


@dataclass
class Observed:
    """Sums over the events of an epoch, for the record."""

    events: float = 0.0
    gain: float = 0.0
    weight: float = 0.0
    largest: float = 0.0
    objective: float = 0.0

    def add(self, terms: RowTerms, count: Tensor | None = None) -> None:
        """Take in some rows, each as often as its count says."""
        weight = terms.weight if count is None else terms.weight * count
        self.events += len(terms.weight) if count is None else float(count.sum())
        self.gain += float((weight * terms.gain).sum())
        self.weight += float(weight.sum())
        self.largest = max(self.largest, float(terms.weight.amax())) if len(terms.weight) else self.largest


@dataclass
class Objective:
    """The objective of a method on the rows of a log; `of` a batch it is a scalar, on the scale of a mean over events.

    Its gradient is that of the stated estimator, with φ = w/ρ frozen unless the method asks for the exact one.
    """

    spec: MethodSpec
    rows: RowInputs
    reward_model: RewardModel | None = None
    """q̂, where the method has one."""
    count: Tensor | None = None
    """How many events each row of the log stands for; None where each is one."""
    current_propensity_scorer: Scorer | None = None
    """β̂'s scorer, where its current probabilities are used."""
    events_a_batch: float = 1.0
    """Events of the log a batch stands for, those of skipped rows included."""
    moments: Moments | None = None
    observed: Observed = field(default_factory=Observed)

    def of(self, scorer: Scorer, batch: Batch) -> Tensor:
        """The scalar to ascend."""
        weights, bias = scorer.actions()
        states = batch.states(scorer)
        head = PolicyHead(states, weights, bias, batch.offered(scorer))
        total = self._correction(head, batch) if self.spec.corrects else states.new_zeros(())
        if self.reward_model is not None:
            total = total + self._baseline(head, batch)
        mean = total / (self.events_a_batch if self.spec.per_row else self.events(batch))
        self.observed.objective += float(mean.detach())
        return mean

    def events(self, batch: Batch) -> float:
        """How many events the rows of a batch stand for."""
        return float(len(batch.rows) if self.count is None else self.count[batch.rows].sum())

    def head(self, batch: Batch) -> Normaliser:
        """How π is normalised in ratio and gradient: over all actions, or over those of the batch."""
        if not self.spec.in_batch:
            return Full()
        return InBatch(count=None if self.count is None else self.count[batch.rows])

    def chosen(self) -> Tensor:
        """Which rows the method's selection keeps, decided over all of them."""
        if self.spec.selection is None:
            return torch.ones(len(self.rows.fixed["reward"]), dtype=torch.bool)
        chooser = ESTIMATORS[self.spec.selection]
        even = torch.zeros_like(self.rows.fixed["log_logging"])
        asked = {name: self.spec.values[name] for name in chooser.hyper}
        return chooser.terms(self.rows.fixed | {"log_ratio": even}, **asked)[0] > 0

    def counted(self) -> Tensor:
        """Which rows can have a coefficient other than zero."""
        kept = self.chosen()
        if self.count is not None:
            kept = kept & (self.count > 0)
        return kept & (self.rows.fixed["reward"] != 0) if self.spec.skips_zero_reward else kept

    def _correction(self, head: PolicyHead, batch: Batch) -> Tensor:
        coefficients = self.coefficients(head, batch)
        rows = (head.states, head.weights, head.bias, batch.row_context, batch.row_action)
        whole = not self.spec.per_row
        return self.head(batch).surrogate(*rows, coefficients, whole_batch=whole, offered=head.offered)

    def coefficients(self, head: PolicyHead, batch: Batch) -> Callable[[Tensor, Places], Tensor]:
        """c_n as a function of log π of some rows of the batch and their places in it."""
        terms_of = self.batch_terms(head, batch)
        formula = self.spec.formula

        def coefficients(log_prob: Tensor, places: Places) -> Tensor:
            terms = terms_of(log_prob, places)
            count = None if self.count is None else self.count[batch.rows[places]]
            self.observed.add(terms, count)
            if count is not None and not formula.per_row:
                terms = terms.times(count)
            row = formula.of(terms, self.spec.values)
            if count is not None and formula.per_row:
                row = row * count
            return row if self.spec.top_k == 1 else row * top_k_factor(log_prob, self.spec.top_k)

        return coefficients

    def batch_terms(self, head: PolicyHead, batch: Batch) -> Callable[[Tensor, Places], RowTerms]:
        """The terms of some rows of the batch as a function of their log π and their places in it."""
        scorer = self.current_propensity_scorer
        current = None if scorer is None else self._current_log_logging(scorer, batch).to(head.states.dtype)
        sums = context_inputs(self.spec.inputs, self.rows, batch, head)
        ratio = group_inputs(self.rows, batch, head) if GROUP_INPUT in self.spec.inputs else None

        def terms(log_prob: Tensor, places: Places) -> RowTerms:
            given = self.rows.of(batch.rows[places])
            if current is not None:
                given["log_logging"] = current[places]
            given |= {name: values[batch.row_context[places]] for name, values in sums.items()}
            if ratio is not None:
                given[GROUP_INPUT] = ratio[places]
            return self.terms(log_prob, given)

        return terms

    def terms(self, log_prob: Tensor, given: dict[str, Tensor]) -> RowTerms:
        """Weight, slope, normaliser and gain of some rows."""
        estimator = self.spec.estimator
        reward = given["reward"]
        gain = reward - given["imputed"] if self.reward_model is not None else reward - self.spec.reward_baseline
        if estimator is None:
            one = torch.ones_like(log_prob)
            return RowTerms(log_prob, one, one, one, reward, gain, self.moments)
        if self.spec.gradient == "frozen":
            weight, normaliser = self._weigh(estimator, log_prob, given)
            return RowTerms(log_prob, weight, weight, normaliser, reward, gain, self.moments)
        with torch.enable_grad():
            free = log_prob.detach().requires_grad_()
            weight, normaliser = self._weigh(estimator, free, given)
            slope = torch.autograd.grad(weight.sum(), free)[0] if weight.requires_grad else torch.zeros_like(weight)
        return RowTerms(log_prob, weight.detach(), slope, normaliser.detach(), reward, gain, self.moments)

    def _weigh(self, estimator: Estimator, log_prob: Tensor, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        inputs = dict(given, log_target=log_prob, sample_size=self.rows.sample_size)
        if "log_logging" in given:
            inputs["log_ratio"] = torch.where(log_prob == -torch.inf, log_prob, log_prob - given["log_logging"])
            inputs["log_position_ratio"] = inputs["log_ratio"]  # given the actions that stand above in the log
            inputs["log_cascade_ratio"] = inputs["log_ratio"] + given.get("log_above", 0.0)
        if "log_recorded" in given:
            inputs["recorded_log_ratio"] = log_prob - given["log_recorded"]
        wanted = {name: values for name, values in inputs.items() if name in self.spec.inputs}
        weight, normaliser = estimator.terms(wanted, **{name: self.spec.values[name] for name in estimator.hyper})
        if self.spec.weight_cap is None:
            return weight, normaliser
        capped = weight.clamp(max=self.spec.weight_cap)
        return capped, capped if estimator.normaliser == "weight" else normaliser

    def _baseline(self, head: PolicyHead, batch: Batch) -> Tensor:
        """Σ over events of Σ_a π(a|x) (q̂(x, a) − b): each context counts as often as it has events."""
        rewards, shift, top_k = self.rewards(batch), self.spec.reward_baseline, self.spec.top_k
        states, fixed = head.states, head.detached()

        def values(part: slice) -> Tensor:
            gains = (rewards(part) - shift).to(states.dtype)
            if top_k == 1:
                return gains
            return gains * top_k_factor(fixed.log_probs(part), top_k)

        times = None if self.count is None else self.count[batch.rows]
        counts = torch.bincount(batch.row_context, times, minlength=len(states)).to(states.dtype)
        return total_expectation(states, head.weights, head.bias, values, counts, head.offered)

    def rewards(self, batch: Batch) -> Values:
        """q̂(x, ·) of a batch's contexts, by models that did not see their rows where it is cross-fitted."""
        model, known, fold = self.reward_model, self.rows.by_context.get("rewards"), self.rows.fixed.get("fold")
        if known is not None:
            width = known.shape[1] if batch.table.candidates is None else batch.contexts.candidates.width  # type: ignore[union-attr]
            return lambda part: known[batch.numbers[part], :width]
        assert model is not None
        if not isinstance(model, CrossFittedRewards):
            return lambda part: choice_rewards(model, batch.contexts.take(part))
        if fold is None:
            return model.values(batch.contexts)
        events = torch.ones(len(batch.rows)) if self.count is None else self.count[batch.rows].float()
        share = torch.zeros(len(batch.numbers), len(model.folds))
        share.index_put_((batch.row_context, fold[batch.rows]), events, accumulate=True)
        return model.values(batch.contexts, share)

    @torch.no_grad()
    def _current_log_logging(self, scorer: Scorer, batch: Batch) -> Tensor:
        """log β̂ of the batch's rows from its current scorer, normalised as π is."""
        scorer.eval()
        weights, bias = scorer.actions()
        states = batch.states(scorer)
        rows, offered = (batch.row_context, batch.row_action), batch.offered(scorer)
        return self.head(batch).log_prob(states, weights, bias, *rows, offered=offered)
