"""What decides when to stop, and how far to sharpen what was learned: a held-out value or its lower bound, ranking on
unbiased lists, or the caller's number.

Larger is better, always.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from offpolicy.checks import check_choice
from offpolicy.datasets import CandidateLists
from offpolicy.errors import ParameterError
from offpolicy.evaluation import (
    ActionSets,
    ClusteredDifference,
    ClusteredTerms,
    RankingSums,
    Terms,
    clustered,
    rank_all,
    rank_lists,
)
from offpolicy.learning.objective import Objective
from offpolicy.learning.rows import PolicyHead, along_slates, context_inputs
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import ContextBatches, Scorer, expectation, sharpen, softmax_log_prob
from offpolicy.policies import Policy, ScorerPolicy, tensor

HELD_OUT_METRICS = ("value", "lower_bound")
BOUND = 1.64
"""Standard errors below the value: a one-sided 95 % bound."""

SHARPEST, NO_CHANGE = 64.0, 0.002
"""The most by which a policy is sharpened, and the relative change of its held-out value that is as good as none."""

CONTEXTS_AT_ONCE = 512

_RANKING = re.compile(r"(P|R|NDCG)@([1-9][0-9]*)")


class Monitor(Protocol):
    """A number to maximise."""

    @property
    def name(self) -> str:
        """The name of its column in the history."""
        ...

    @property
    def is_value(self) -> bool:
        """Whether it estimates the policy's value from logged rows."""
        ...

    def score(self, policy: ScorerPolicy) -> float:
        """The score of a policy."""
        ...


@dataclass(frozen=True)
class Called:
    """The caller's own function."""

    function: Callable[[Policy], float]
    name: str = "validation"
    is_value = False

    def score(self, policy: ScorerPolicy) -> float:
        """Call it."""
        return float(self.function(policy))


@dataclass(frozen=True)
class Ranked:
    """A ranking metric over candidate lists, or over all actions of contexts with known positives."""

    name: str
    lists: CandidateLists | None = None
    contexts: FeatureTable | None = None
    positives: ActionSets | None = None
    is_value = False

    def score(self, policy: ScorerPolicy) -> float:
        """P@k, R@k or NDCG@k."""
        match = _RANKING.fullmatch(self.name)
        assert match is not None
        sums = RankingSums(int(match[2]))
        if self.lists is not None:
            ranking = rank_lists(policy, self.lists, sums)
        else:
            assert self.contexts is not None
            assert self.positives is not None
            ranking = rank_all(policy, self.contexts, self.positives, sums)
        return ranking.means[self.name]


@dataclass(frozen=True)
class HeldOut:
    """The self-normalised estimate of the policy's value on held-out rows, or its lower bound over clusters."""

    name: str
    log: LoggedData
    objective: Objective
    """Weighs the held-out rows as the training rows are."""

    @property
    def is_value(self) -> bool:
        """Unless likelihood takes its place."""
        return self.objective.spec.estimator is not None

    @torch.no_grad()
    def score(self, policy: ScorerPolicy) -> float:
        """V̂, or V̂ − 1.64·s.e.; without a weight (likelihood) the mean of r·log π takes the place of V̂."""
        estimate = self.estimate(policy)
        if self.name == "value":
            return float(estimate.value)
        return float(estimate.value - BOUND * estimate.standard_error) if estimate.clusters > 1 else -np.inf

    @torch.no_grad()
    def estimate(self, policy: ScorerPolicy) -> ClusteredTerms:
        """V̂ and its sums over clusters, by which two policies can be compared in pairs."""
        return clustered(self._terms(policy), tensor(self.log.cluster_index).long(), self.objective.count)

    def _terms(self, policy: ScorerPolicy) -> Terms:
        objective, spec, rows = self.objective, self.objective.spec, self.objective.rows
        given = dict(rows.fixed)
        dtype = given["reward"].dtype
        log_prob = torch.empty(self.log.n_rows, dtype=dtype)
        baseline = torch.zeros(self.log.n_rows, dtype=torch.float64)
        for batch in ContextBatches(self.log, CONTEXTS_AT_ONCE).epoch():
            offered = batch.offered(policy.scorer)
            head = PolicyHead(policy.states(batch.contexts), policy.weights, policy.bias, offered)
            parts, taken = (head.states, head.weights, head.bias), (batch.row_context, batch.row_action)
            log_prob[batch.rows] = softmax_log_prob(*parts, *taken, offered=offered)
            for name, values in context_inputs(spec.inputs, rows, batch, head).items():
                given.setdefault(name, torch.empty(self.log.n_rows, dtype=dtype))
                given[name][batch.rows] = values[batch.row_context]
            if objective.reward_model is not None:
                mean = expectation(*parts, objective.rewards(batch), offered)
                baseline[batch.rows] = mean.double()[batch.row_context]
        reward = given["reward"].double()
        if spec.estimator is None:
            gain = (reward * log_prob.double()).where(reward != 0, 0.0)
            return Terms.without_reward_model(torch.ones_like(gain), torch.ones_like(gain), gain)
        if spec.follows_slates and self.log.request is not None:
            given["log_above"] = along_slates(self.log, rows, log_prob, spec).fixed["log_above"]
        weight = torch.zeros_like(reward)
        if spec.corrects:
            weight = objective.terms(log_prob, given).weight.double() * objective.chosen()
        imputed = given["imputed"].double() if objective.reward_model is not None else torch.zeros_like(reward)
        return Terms(weight, weight, reward, imputed, baseline)


def sharpen_policy(scorer: Scorer, actions: ActionTable, monitor: HeldOut) -> float:
    """Double the scores until that changes next to nothing or held-out rows object; the factor they end with.

    Scores rank actions better than they tell how much better one is. Held-out rows object if the value falls by a
    standard error of the paired difference to the policy as it was.
    """
    first = monitor.estimate(ScorerPolicy(scorer, actions))
    factor, last, change = 1.0, first.value, np.inf
    while factor < SHARPEST and change > NO_CHANGE * abs(last) and sharpen(scorer, 2.0):
        found = monitor.estimate(ScorerPolicy(scorer, actions))
        difference = ClusteredDifference(found, first)
        if difference.refusal or difference.value < -difference.standard_error:
            sharpen(scorer, 0.5)
            break
        factor, last, change = 2 * factor, found.value, abs(found.value - last)
    return factor


def monitor_of(validation: Any, metric: str | None) -> Monitor | None:
    """The monitor of anything but a log: lists to rank, (contexts, positives), a function, or nothing."""
    if validation is None:
        return None
    if isinstance(validation, CandidateLists):
        return Ranked(_ranking_metric(metric), lists=validation)
    if isinstance(validation, tuple) and len(validation) == 2 and isinstance(validation[0], FeatureTable):
        return Ranked(_ranking_metric(metric), contexts=validation[0], positives=validation[1])
    if callable(validation):
        return Called(validation, metric or "validation")
    raise ParameterError(
        "validation must be a log, candidate lists, a pair (contexts, positives as ActionSets) or a function of the "
        f"policy, but it is {type(validation).__name__}."
    )


def held_out_metric(metric: str | None) -> str:
    """The name of a metric on logged rows, checked."""
    return check_choice("metric (on logged rows)", metric or "value", HELD_OUT_METRICS)


def _ranking_metric(metric: str | None) -> str:
    name = "NDCG@5" if metric is None else metric
    if not _RANKING.fullmatch(name):
        raise ParameterError(f"metric must be P@k, R@k or NDCG@k to rank by, such as 'NDCG@5', but it is {metric!r}.")
    return name


def is_ranking(metric: str | None) -> bool:
    """Whether a metric needs lists to rank."""
    return metric is not None and _RANKING.fullmatch(metric) is not None
