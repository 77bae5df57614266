"""The scalar a step climbs: registry weights under stop-gradient, an objective's coefficients, and log π.

Weights, value and gradient come from one fused pass over the softmax. Where a row's coefficient depends on the whole
batch (self-normalised values, worst cases) and the batch does not fit a tile, log π of the batch comes first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator, Hyper
from offpolicy.evaluation import ALL_ACTION_INPUTS
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import Gradient, Method
from offpolicy.learning.objectives import Moments, Objective, RowTerms, top_k_factor
from offpolicy.learning.rows import RowInputs, context_inputs
from offpolicy.models import Batch, Full, InBatch, Normaliser, Places, Scorer, Values, total_expectation

BatchValues = Callable[[Batch, Tensor | None], Values]
"""q̂(x, ·) of a batch's contexts, tile by tile; the fold of each row says which model did not see it."""


@dataclass(frozen=True)
class Plan:
    """A method with everything settled: what weighs, what is climbed, how."""

    method: Method
    hyper: Mapping[str, Hyper]
    gradient: Gradient = "frozen"
    shift: float = 0.0
    """The reward baseline."""
    top_k: int = 1
    cap: float | None = None
    in_batch: bool = False

    @classmethod
    def of(cls, method: Method, hyper: Mapping[str, Hyper], config: LearnerConfig, mean_reward: float) -> "Plan":
        """The plan of a method under a configuration."""
        baseline = config.reward_baseline
        shift = mean_reward if isinstance(baseline, str) else baseline
        gradient = config.gradient or method.gradient
        if gradient == "exact" and (method.inputs & set(ALL_ACTION_INPUTS) or method.weight is None):
            raise ParameterError(
                f"The exact gradient of {method.name!r} is not available: its weight "
                f"{'does not depend on π' if method.weight is None else 'sums over all actions'}. "
                "Use gradient='frozen'."
            )
        return cls(method, hyper, gradient, shift, config.top_k, config.weight_cap, config.in_batch)

    @property
    def objective(self) -> Objective:
        """The row of the table of objectives."""
        return self.method.climbs

    @property
    def leaves_out(self) -> bool:
        """Whether rows with zero reward provably have a zero coefficient."""
        whole = self.method.estimator is not None and self.method.estimator.whole_log
        silent = self.objective.silent or self.hyper.get("translation") == 0
        per_row = self.objective.per_row and not whole
        return silent and per_row and self.shift == 0 and not self.method.uses_reward_model and not self.in_batch

    @property
    def per_row(self) -> bool:
        """Whether the fused pass serves."""
        return self.objective.per_row and not (self.method.estimator is not None and self.method.estimator.whole_log)

    @property
    def merges(self) -> bool:
        """Whether equal rows may stand as one: no quantity is taken over the rows of the log or the batch as such."""
        return not self.in_batch and not (self.method.estimator is not None and self.method.estimator.whole_log)

    def capped(self, cap: float) -> "Plan":
        """The same with the weight min(ρ, cap), for the first epoch."""
        method = Method(self.method.name, "clipped", "value")
        return Plan(method, {"cap": cap}, "frozen", self.shift, self.top_k, None, self.in_batch)

    def chosen(self, rows: RowInputs) -> Tensor:
        """Which rows the method's selection keeps, decided over all of them."""
        if self.method.selection is None:
            return torch.ones(len(rows.fixed["reward"]), dtype=torch.bool)
        chooser = ESTIMATORS[self.method.selection]
        even = torch.zeros_like(rows.fixed["log_logging"])
        asked = {name: self.hyper[name] for name in chooser.hyper}
        return chooser.terms(rows.fixed | {"log_ratio": even}, **asked)[0] > 0

    def counted(self, rows: RowInputs) -> Tensor:
        """Which rows can have a coefficient other than zero."""
        kept = self.chosen(rows)
        return kept & (rows.fixed["reward"] != 0) if self.leaves_out else kept


@dataclass
class Observed:
    """Sums over the rows of an epoch, for the record."""

    rows: int = 0
    gain: float = 0.0
    weight: float = 0.0
    largest: float = 0.0
    surrogate: float = 0.0

    def add(self, terms: RowTerms, count: Tensor | None = None) -> None:
        """Take in some rows, each as often as its count says."""
        weight = terms.weight if count is None else terms.weight * count
        self.rows += len(terms.weight) if count is None else int(count.sum())
        self.gain += float((weight * terms.gain).sum())
        self.weight += float(weight.sum())
        self.largest = max(self.largest, float(terms.weight.amax())) if len(terms.weight) else self.largest


@dataclass
class Surrogate:
    """Builds the scalar of a batch, on the scale of a mean over the log's rows."""

    plan: Plan
    rows: RowInputs
    rows_a_batch: float
    """Rows of the log a batch stands for, those left out included."""
    values: BatchValues | None = None
    """q̂ of all actions, where a reward model is present."""
    live: Scorer | None = None
    """β̂'s scorer, where its probabilities are to be those of the moment."""
    moments: Moments | None = None
    observed: Observed = field(default_factory=Observed)
    count: Tensor | None = None
    """How many equal rows each row of the log stands for; None where each stands for itself."""

    @property
    def normaliser(self) -> Normaliser:
        """How π is normalised in ratio and gradient."""
        return InBatch() if self.plan.in_batch else Full()

    def of(self, scorer: Scorer, batch: Batch) -> Tensor:
        """The scalar to climb; its gradient is that of the stated estimator with φ frozen."""
        weights, bias = scorer.actions()
        states = batch.states(scorer)
        total = self._correction(states, weights, bias, batch) if self.plan.method.corrects else states.new_zeros(())
        if self.values is not None:
            total = total + self._baseline(states, weights, bias, batch)
        mean = total / (self.rows_a_batch if self.plan.per_row else len(batch.rows))
        self.observed.surrogate += float(mean.detach())
        return mean

    def _correction(self, states: Tensor, weights: Tensor, bias: Tensor, batch: Batch) -> Tensor:
        coefficients = self.coefficients(states, weights, bias, batch)
        head = (states, weights, bias, batch.row_context, batch.row_action)
        return self.normaliser.surrogate(*head, coefficients, together=not self.plan.per_row)

    def coefficients(
        self, states: Tensor, weights: Tensor, bias: Tensor, batch: Batch
    ) -> Callable[[Tensor, Places], Tensor]:
        """c_n as a function of log π of some rows of the batch and their places in it."""
        terms_of = self.batch_terms(states, weights, bias, batch)

        def coefficients(log_prob: Tensor, places: Places) -> Tensor:
            terms = terms_of(log_prob, places)
            count = None if self.count is None else self.count[batch.rows[places]]
            self.observed.add(terms, count)
            if count is not None and not self.plan.objective.per_row:
                terms = terms.times(count)
            row = self.plan.objective.of(terms, self.plan.hyper)
            if count is not None and self.plan.objective.per_row:
                row = row * count
            return row if self.plan.top_k == 1 else row * top_k_factor(log_prob, self.plan.top_k)

        return coefficients

    def batch_terms(
        self, states: Tensor, weights: Tensor, bias: Tensor, batch: Batch
    ) -> Callable[[Tensor, Places], RowTerms]:
        """The terms of some rows of the batch as a function of their log π and their places in it."""
        live = None if self.live is None else self._live_log_prob(batch).to(states.dtype)
        sums = context_inputs(self.plan.method.inputs, self.rows, batch, states, weights, bias)

        def terms(log_prob: Tensor, places: Places) -> RowTerms:
            given = self.rows.of(batch.rows[places])
            if live is not None:
                given["log_logging"] = live[places]
            given |= {name: values[batch.row_context[places]] for name, values in sums.items()}
            return self.terms(log_prob, given)

        return terms

    def terms(self, log_prob: Tensor, given: dict[str, Tensor]) -> RowTerms:
        """Weight, slope, normaliser and gain of some rows."""
        estimator = self.plan.method.estimator
        reward = given["reward"]
        gain = reward - given["imputed"] if self.values is not None else reward - self.plan.shift
        if estimator is None:
            one = torch.ones_like(log_prob)
            return RowTerms(log_prob, one, one, one, reward, gain, self.moments)
        if self.plan.gradient == "frozen":
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
        if "log_recorded" in given:
            inputs["recorded_log_ratio"] = log_prob - given["log_recorded"]
        wanted = {name: values for name, values in inputs.items() if name in self.plan.method.inputs}
        weight, normaliser = estimator.terms(wanted, **{name: self.plan.hyper[name] for name in estimator.hyper})
        if self.plan.cap is None:
            return weight, normaliser
        capped = weight.clamp(max=self.plan.cap)
        return capped, capped if estimator.normaliser == "weight" else normaliser

    def _baseline(self, states: Tensor, weights: Tensor, bias: Tensor, batch: Batch) -> Tensor:
        """Σ over rows of Σ_a π(a|x) (q̂(x, a) − b), each context counted as often as it has rows."""
        rewards, shift, top_k = self.rewards(batch), self.plan.shift, self.plan.top_k
        fixed_states, fixed_weights, fixed_bias = states.detach(), weights.detach(), bias.detach()

        def values(part: slice) -> Tensor:
            found = (rewards(part) - shift).to(states.dtype)
            if top_k == 1:
                return found
            log_prob = torch.addmm(fixed_bias, fixed_states[part], fixed_weights.T).log_softmax(1)
            return found * top_k_factor(log_prob, top_k)

        times = None if self.count is None else self.count[batch.rows]
        counts = torch.bincount(batch.row_context, times, minlength=len(states)).to(states.dtype)
        return total_expectation(states, weights, bias, values, counts)

    def rewards(self, batch: Batch) -> Values:
        """q̂(x, ·) of a batch's contexts, by models that did not see their rows where it is cross-fitted."""
        known, fold = self.rows.by_context.get("rewards"), self.rows.fixed.get("fold")
        if known is not None:
            return lambda part: known[batch.numbers[part]]
        assert self.values is not None
        return self.values(batch, None if fold is None else fold[batch.rows])

    @torch.no_grad()
    def _live_log_prob(self, batch: Batch) -> Tensor:
        """log β̂ of the batch's rows as its scorer stands, normalised as π is."""
        assert self.live is not None
        self.live.eval()
        weights, bias = self.live.actions()
        states = batch.states(self.live)
        return self.normaliser.log_prob(states, weights, bias, batch.row_context, batch.row_action)
