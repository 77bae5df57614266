"""Compute the inputs that weights ask for by name, in one pass over the log, whatever the number of policies.

Row quantities are gathered; sums over all actions need π(·|x) and β̂(·|x) of a context, never of a row, and never more
than a batch of contexts at once. π of all actions is computed once per policy.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from offpolicy.estimators import bounded_exp, log_floor
from offpolicy.log import LogBatch, LoggedData
from offpolicy.policies import Policy, aligned, batch_log_probs, logged_log_prob, rows_only, tensor
from offpolicy.rewards import RewardModel, choice_rewards, row_rewards

ContextSum = Callable[[Tensor, Tensor], Tensor]

CONTEXT_SUMS: Mapping[str, ContextSum] = {
    "log_second_moment": lambda target, logging: torch.logsumexp(2 * target - log_floor(logging), 1),
    "log_minvar_mass": lambda target, logging: torch.logsumexp(logging - 2 * log_floor(target), 1),
    "log_stablevar_mass": lambda target, logging: torch.logsumexp(logging / 2 - log_floor(target), 1),
}
"""Inputs that sum over all actions of a context, as functions of log π and log β̂ (contexts, actions)."""

TOP_P_INPUTS = ("logging_rank", "log_target_top", "log_logging_top")
GROUP_INPUT = "log_group_ratio"
BASELINE = "baseline"
ALL_ACTION_INPUTS = (*CONTEXT_SUMS, *TOP_P_INPUTS, GROUP_INPUT)

SLATE_RATIOS = ("log_slate_ratio", "log_cascade_ratio", "log_position_ratio")
"""The log-ratio of an action in a slate, with all positions, those above, or by itself."""

UNSUPPORTED = 0.005
"""An action with less than this share of the uniform probability 1/K in a context has no support there."""


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs of one policy on one log."""

    rows: dict[str, Tensor]
    """The named inputs of every row, `reward`, and `imputed` and `baseline` where there is a reward model."""
    unsupported: Tensor | None = field(default=None, repr=False)
    """Per context, π's mass on actions that logging hardly ever shows there; None where it cannot be known."""


def policy_inputs(
    names: Iterable[str],
    log: LoggedData,
    targets: Mapping[str, Policy],
    logging: Policy,
    *,
    uncertainty: Tensor | None = None,
    reward_model: RewardModel | None = None,
    top_p: float = 100.0,
    support: bool = False,
    groups: Tensor | None = None,
    other_rewards: Mapping[str, RewardModel] | None = None,
    known: Mapping[str, Tensor] | None = None,
) -> dict[str, PolicyInputs]:
    """The named inputs of every target; with `support`, also the mass that each puts on unsupported actions.

    `groups` numbers the group of each action, for weights of groups. `other_rewards` are models of further rewards, of
    which q̂(x, π) is kept beside that of the first. `known` holds log β̂ ("log_logging") and q̂ ("imputed") of the rows
    where they are known already.
    """
    wanted, given = set(names), known or {}
    models = {} if reward_model is None else {BASELINE: reward_model}
    models |= {other_baseline(name): model for name, model in (other_rewards or {}).items()}
    logging = aligned(logging, log.actions, "logging")
    log_logging = given["log_logging"] if "log_logging" in given else logged_log_prob(logging, log)
    common = _common(wanted, log, log_logging, uncertainty)
    passes = {
        name: _Pass(aligned(target, log.actions, name), log, wanted, models, support and not rows_only(logging), groups)
        for name, target in targets.items()
    }
    asked = {name: one for name, one in passes.items() if one.needs_all_actions}
    imputed = given.get("imputed")
    if imputed is None and reward_model is not None and asked:
        imputed = row_rewards(reward_model, log)
    for batch in log.batches() if asked else ():
        contexts = log.contexts.take(batch.contexts)
        beta = batch_log_probs(logging, log, batch) if any(one.needs_logging for one in asked.values()) else None
        rewards = {name: choice_rewards(model, contexts) for name, model in models.items()}
        for one in asked.values():
            one.add(batch, beta, rewards, top_p)
    inputs = {}
    for name, one in passes.items():
        rows = common | one.finish(log_logging, imputed)
        kept = {key for key in rows if key in wanted or key in ("reward", "imputed", *models)}
        inputs[name] = PolicyInputs({key: rows[key] for key in kept}, one.unsupported)
    return inputs


def weight_inputs(
    names: Iterable[str],
    log: LoggedData,
    target: Policy,
    logging: Policy,
    *,
    uncertainty: Tensor | None = None,
    reward_model: RewardModel | None = None,
    top_p: float = 100.0,
    groups: Tensor | None = None,
) -> dict[str, Tensor]:
    """The named inputs of one policy for every row of the log."""
    given = {"uncertainty": uncertainty, "reward_model": reward_model, "groups": groups}
    return policy_inputs(names, log, {"target": target}, logging, top_p=top_p, **given)["target"].rows  # type: ignore[arg-type]


def _common(wanted: set[str], log: LoggedData, log_logging: Tensor, uncertainty: Tensor | None) -> dict[str, Tensor]:
    """Inputs that do not depend on the target."""
    inputs: dict[str, Tensor] = {
        "log_logging": log_logging,
        "reward": tensor(log.reward),
        "sample_size": torch.tensor(float(log.n_contexts)),
    }
    for name in ("action", "context_index"):
        if name in wanted:
            inputs[name] = tensor(getattr(log, name)).long()
    if uncertainty is not None:
        inputs["uncertainty"] = uncertainty
    if "log_count_prob" in wanted:
        inputs["log_count_prob"] = log_count_prob(log)
    return inputs


class _Pass:
    """One policy's share of the pass: what it needs, and its results so far."""

    def __init__(
        self,
        target: Policy,
        log: LoggedData,
        wanted: set[str],
        models: Mapping[str, RewardModel],
        support: bool,
        groups: Tensor | None = None,
    ) -> None:
        self._target, self._log, self._wanted, self._groups = target, log, wanted, groups
        self._sums = set() if rows_only(target) else wanted.intersection(ALL_ACTION_INPUTS)
        if groups is None:
            self._sums.discard(GROUP_INPUT)
        self._baselines = () if rows_only(target) else tuple(models)
        support = support and not rows_only(target)
        self.needs_logging = bool(self._sums) or support
        self.needs_all_actions = self.needs_logging or bool(self._baselines)
        kept = self._sums | set(self._baselines)
        kept |= {"log_target"} if self.needs_all_actions else set()
        self._rows = {name: torch.empty(log.n_rows, dtype=torch.float64) for name in sorted(kept)}
        self.unsupported = torch.empty(log.n_contexts, dtype=torch.float64) if support else None

    def add(self, batch: LogBatch, log_logging: Tensor | None, rewards: Mapping[str, Tensor], top_p: float) -> None:
        log_target = batch_log_probs(self._target, self._log, batch)
        cell = (torch.from_numpy(batch.row_context), torch.from_numpy(batch.row_place))
        parts = {"log_target": log_target[cell]}
        if log_logging is not None:
            for name in self._sums.intersection(CONTEXT_SUMS):
                parts[name] = CONTEXT_SUMS[name](log_target, log_logging)[cell[0]]
            if self._sums.intersection(TOP_P_INPUTS):
                parts |= _top_p_parts(log_target, log_logging, cell, top_p)
            if GROUP_INPUT in self._sums:
                parts[GROUP_INPUT] = group_ratio(log_target, log_logging, cell, self._groups_of(batch))
        prob = log_target.exp() if rewards or self.unsupported is not None else log_target
        for name in self._baselines:
            parts[name] = (prob * rewards[name]).sum(1)[cell[0]]
        if self.unsupported is not None:
            assert log_logging is not None
            least = np.log(least_support(log_logging.shape[1]))
            if self._log.candidates is not None:
                sizes = torch.from_numpy(self._log.candidates.sizes[batch.contexts])
                least = (UNSUPPORTED / sizes).log().unsqueeze(1)
            hardly_shown = log_logging < least
            self.unsupported[batch.contexts] = (prob * hardly_shown).sum(1, dtype=torch.float64)
        for name, values in self._rows.items():
            values[batch.rows] = parts[name].double()

    def _groups_of(self, batch: LogBatch) -> Tensor:
        """The group of each action, or of each candidate of a batch, (contexts, width)."""
        assert self._groups is not None
        if self._log.candidates is None:
            return self._groups
        return self._groups[torch.from_numpy(self._log.candidates.take(batch.contexts).padded()).clamp(min=0)]

    def finish(self, log_logging: Tensor, imputed: Tensor | None) -> dict[str, Tensor]:
        """What was found, which is let go of here, so that log π of one policy at a time is held."""
        inputs, self._rows = self._rows, {}
        log_target = inputs.pop("log_target", None)
        if log_target is None:
            log_target = logged_log_prob(self._target, self._log)
        inputs["log_ratio"] = _difference(log_target, log_logging)
        if "log_target" in self._wanted:
            inputs["log_target"] = log_target
        if "recorded_log_ratio" in self._wanted and self._log.logging_prob is not None:
            inputs["recorded_log_ratio"] = log_target - tensor(self._log.logging_prob).log()
        if BASELINE in self._baselines:
            assert imputed is not None
            inputs["imputed"] = imputed
        if self._log.request is None:  # a request that shows one action is a slate of one position
            inputs |= dict.fromkeys(SLATE_RATIOS, inputs["log_ratio"])
            if "slate_surplus" in self._wanted:
                inputs["slate_surplus"] = bounded_exp(inputs["log_ratio"]) - 1
        return inputs


def other_baseline(reward: str) -> str:
    """The name under which q̂(x, π) of a further reward is kept."""
    return f"{BASELINE} of {reward}"


def least_support(n_actions: int) -> float:
    """The least logging probability that counts as support, relative to uniform logging over K actions."""
    return UNSUPPORTED / n_actions


def _top_p_parts(
    log_target: Tensor, log_logging: Tensor, cell: tuple[Tensor, Tensor], top_p: float
) -> dict[str, Tensor]:
    order = log_logging.argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1, stable=True)
    top = order[:, : int(min(top_p, order.shape[1]))]
    return {
        "logging_rank": rank[cell],
        "log_target_top": log_target.gather(1, top).logsumexp(1)[cell[0]],
        "log_logging_top": log_logging.gather(1, top).logsumexp(1)[cell[0]],
    }


def group_ratio(log_target: Tensor, log_logging: Tensor, cell: tuple[Tensor, Tensor], groups: Tensor) -> Tensor:
    """log π(g|x) − log β̂(g|x) of the rows' groups; `groups` of all actions, or of the candidates of each context."""
    masses = []
    for log_prob in (log_target, log_logging):
        mass = torch.zeros(len(log_prob), int(groups.max()) + 1, dtype=torch.float64)
        if groups.ndim == 2:
            mass.scatter_add_(1, groups, log_prob.double().exp())
            masses.append(mass[cell[0], groups[cell]].log())
            continue
        masses.append(mass.index_add_(1, groups, log_prob.double().exp())[cell[0], groups[cell[1]]].log())
    return _difference(masses[0], masses[1])


def _difference(log_target: Tensor, log_logging: Tensor) -> Tensor:
    """log π − log β̂, with π = 0 giving −inf even where β̂ = 0 too."""
    return (log_target - log_logging).masked_fill_(log_target == -torch.inf, -torch.inf)


def log_count_prob(log: LoggedData) -> Tensor:
    """log N(x, a)/N(x) of each row, counted in events."""
    pair = log.context_index.astype(np.int64) * log.n_actions + log.action
    _, place = np.unique(pair, return_inverse=True)
    share = np.bincount(place, log.row_weight)[place] / log.context_weight[log.context_index]
    return torch.from_numpy(share).log()
