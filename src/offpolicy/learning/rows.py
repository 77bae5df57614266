"""What the weights need of each row: quantities that do not depend on π, and sums over all actions that do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import bounded_exp
from offpolicy.evaluation import CONTEXT_SUMS, GROUP_INPUT, TOP_P_INPUTS, group_ratio, log_count_prob, top_actions
from offpolicy.learning.budget import step_contexts
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.log import LoggedData
from offpolicy.models import (
    Batch,
    Batches,
    ContextBatches,
    Offered,
    RowBatches,
    candidate_logits,
    iterate_log_probs,
)
from offpolicy.policies import Policy, choice_log_probs, logged_log_prob, tensor

Integers = npt.NDArray[np.int64]
WHOLE_NUMBERS = ("context_index", "action", "logging_rank", "fold")
KEPT_BYTES = 64 << 20
"""A table of contexts × actions is kept while learning if it is no larger; else its rows are computed when needed."""
WORTH_MERGING = 0.8
"""Equal rows are merged where at most this share of them remains."""


@dataclass
class RowInputs:
    """Everything that does not depend on π, by row and by context; alternation replaces β̂ and U between epochs."""

    fixed: dict[str, Tensor]
    logging: Policy | None = None
    """β̂ over all actions, for weights that sum over them."""
    by_context: dict[str, Tensor] = field(default_factory=dict)
    """Of each context: `top`, its p likeliest actions under β̂; `log_logging` and `rewards`, those of all actions.

    `top` is there if a weight keeps to it, the others if they are asked for and small enough to keep.
    """
    sample_size: Tensor = field(default_factory=lambda: torch.tensor(1.0))
    groups: Tensor | None = None
    """The group of each action, for weights that are ratios of groups."""

    def of(self, rows: Tensor) -> dict[str, Tensor]:
        """The fixed quantities of some rows."""
        return {name: values[rows] for name, values in self.fixed.items()}

    def put(self, name: str, values: Tensor) -> None:
        """Set a quantity, in the precision of the others."""
        self.fixed[name] = values.long() if name in WHOLE_NUMBERS else values.to(self.fixed["reward"].dtype)

    def taken(self, part: LoggedData, rows: Integers, contexts: Integers) -> "RowInputs":
        """Those of a part of the log: its rows, and its contexts, by their numbers in the log."""
        fixed = {name: values[torch.from_numpy(rows)] for name, values in self.fixed.items()}
        by_context = {name: values[torch.from_numpy(contexts)] for name, values in self.by_context.items()}
        taken = RowInputs(fixed, self.logging, by_context, self.sample_size, self.groups)
        if "context_index" in fixed:
            taken.put("context_index", tensor(part.context_index))
        return taken


def row_inputs(
    spec: MethodSpec,
    config: LearnerConfig,
    log: LoggedData,
    dtype: torch.dtype,
    *,
    logging: Policy | None = None,
    uncertainty: Tensor | None = None,
) -> RowInputs:
    """The fixed quantities of a log's rows that a method asks for."""
    wanted = spec.inputs
    size = torch.tensor(float(log.n_contexts) if config.sample_size is None else config.sample_size)
    rows = RowInputs({"reward": tensor(log.reward).to(dtype)}, logging, {}, size)
    if logging is not None:
        rows.put("log_logging", logged_log_prob(logging, log))
    if "recorded_log_ratio" in wanted:
        if log.logging_prob is None:
            raise ParameterError(
                "This method weighs by recorded propensities, but the log has none. Read it with `propensity`, or "
                "choose a method that estimates them."
            )
        rows.put("log_recorded", tensor(log.logging_prob).log())
    if uncertainty is not None:
        rows.put("uncertainty", uncertainty)
    if "log_count_prob" in wanted:
        rows.put("log_count_prob", log_count_prob(log))
    for name, values in (("context_index", log.context_index), ("action", log.action)):
        if name in wanted:
            rows.put(name, tensor(values))
    if wanted & {*CONTEXT_SUMS, GROUP_INPUT} and logging is not None and is_kept(log):
        rows.by_context["log_logging"] = torch.cat(
            [
                _widened(choice_log_probs(logging, log.contexts.take(tile.contexts)).to(dtype), log.width)
                for tile in log.batches()
            ]
        )
    if wanted & set(TOP_P_INPUTS):
        assert logging is not None
        _put_top(rows, log, logging, int(min(float(spec.values.get("top_p", 100.0)), log.width)))
    return rows


def along_slates(log: LoggedData, rows: RowInputs, log_prob: Tensor, spec: MethodSpec) -> RowInputs:
    """The rows of slates with what π, as it is now, does above and below them.

    Σ_l (Π_{m≤l} ρ_m)·r_l has the gradient Σ_m (Π_{k≤m} ρ_k)·G_m·∇log π_m with G_m = r_m + ρ_{m+1}·G_{m+1}: the ratios
    above a row join its weight, and the weighted rewards below it join its reward.
    """
    request, position = tensor(log.request).long(), tensor(log.position).long()
    shape, dtype = (int(request.max()) + 1, int(position.max()) + 1), torch.float64
    log_ratio, gain = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    log_ratio[request, position] = log_prob.double() - rows.fixed["log_logging"].double()
    gain[request, position] = rows.fixed["reward"].double() - spec.reward_baseline
    ratio = bounded_exp(log_ratio)
    ratio = ratio if spec.weight_cap is None else ratio.clamp(max=spec.weight_cap)
    for place in range(shape[1] - 2, -1, -1):
        gain[:, place] += ratio[:, place + 1] * gain[:, place + 1]
    above = log_ratio.cumsum(1) - log_ratio
    changed = RowInputs(dict(rows.fixed), rows.logging, rows.by_context, rows.sample_size)
    changed.put("log_above", above[request, position])
    changed.put("reward", gain[request, position] + spec.reward_baseline)
    return changed


def _put_top(rows: RowInputs, log: LoggedData, logging: Policy, p: int) -> None:
    """The top-p actions of β̂ in every context, the rank of each row's action among them (p outside) and their mass."""
    top = torch.empty(log.n_contexts, p, dtype=torch.int32)
    mass, rank = torch.empty(log.n_rows), torch.empty(log.n_rows, dtype=torch.int64)
    for tile in log.batches():
        log_probs = _widened(choice_log_probs(logging, log.contexts.take(tile.contexts)), log.width)
        best = top_actions(log_probs, p)
        top[tile.contexts] = best.int()
        mass[tile.rows] = log_probs.gather(1, best).logsumexp(1).float()[tile.row_context]
        place = torch.full(log_probs.shape, p)
        place.scatter_(1, best, torch.arange(p).expand_as(best))
        rank[tile.rows] = place[tile.row_context, tile.row_place] if p < log.width else 0
    rows.by_context["top"] = top
    rows.put("log_logging_top", mass)
    rows.put("logging_rank", rank)


def is_kept(log: LoggedData) -> bool:
    """Whether a table of the log's contexts × actions is small enough to keep."""
    return log.n_contexts * log.width * torch.float32.itemsize <= KEPT_BYTES


def row_count(log: LoggedData, dtype: torch.dtype) -> Tensor | None:
    """How many events each row stands for; None where each is one."""
    return None if log.row_weight is None else tensor(log.row_weight).to(dtype)


def rows_with_events(log: LoggedData) -> Integers | None:
    """The rows that stand for any event; None where all do."""
    return None if log.row_weight is None or log.row_weight.all() else np.flatnonzero(log.row_weight)


def merged_rows(log: LoggedData, inputs: RowInputs, rows: Integers) -> tuple[Integers, Tensor] | None:
    """One row of each set of equal ones, and how many events each row of the log stands for; None where few are equal.

    Rows are equal if context, action and every fixed quantity are, so that their coefficients always will be.
    """
    keys = log.reward[rows], log.action[rows], log.context_index[rows]
    order = rows if _in_order(*keys) else rows[np.lexsort(keys)]
    equal = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in (log.context_index, log.action, *(values.numpy() for values in inputs.fixed.values())):
        sorted_column = column[order]
        equal &= sorted_column[1:] == sorted_column[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~equal)))
    if len(first) > WORTH_MERGING * len(order):
        return None
    count = torch.zeros(log.n_rows, dtype=inputs.fixed["reward"].dtype)
    sizes = np.ones(len(order)) if log.row_weight is None else log.row_weight[order]
    events = np.add.reduceat(sizes, first)
    count[torch.from_numpy(order[first])] = torch.from_numpy(events).to(count.dtype)
    return order[first], count


def _in_order(*keys: npt.NDArray[Any]) -> bool:
    """Whether sorting by the last key, then by the one before it, and so on would move nothing."""
    ordered = np.ones(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    for key in keys:
        before, after = key[:-1], key[1:]
        ordered = (before < after) | ((before == after) & ordered)
    return bool(ordered.all())


def batches_of(log: LoggedData, config: LearnerConfig, rows: Integers | None = None) -> Batches:
    """The batches a configuration asks for, of all rows or these."""
    if config.batch_rows is not None:
        return RowBatches(log, config.batch_rows, rows)
    return ContextBatches(log, step_contexts(config, log), rows)


@dataclass(frozen=True)
class PolicyHead:
    """π of a batch's contexts: states, weights and bias of the softmax, and what is on offer where not all is."""

    states: Tensor
    weights: Tensor
    bias: Tensor
    offered: Offered | None = None

    def detached(self) -> "PolicyHead":
        """The same without gradients."""
        return PolicyHead(self.states.detach(), self.weights.detach(), self.bias.detach(), self.offered)

    def log_probs(self, part: slice) -> Tensor:
        """log π of what some of the contexts offer."""
        if self.offered is None:
            return torch.addmm(self.bias, self.states[part], self.weights.T).log_softmax(1)
        with torch.no_grad():
            logits = candidate_logits(self.states[part], self.weights, self.bias, self.offered.take(part))
            return logits.log_softmax(1)


@torch.no_grad()
def context_inputs(wanted: frozenset[str], rows: RowInputs, batch: Batch, head: PolicyHead) -> Mapping[str, Tensor]:
    """Inputs of a batch's contexts that sum π (and β̂) over actions, a tile of contexts at a time."""
    states = head.states
    sums = [name for name in CONTEXT_SUMS if name in wanted]
    names = sums + (["log_target_top"] if "log_target_top" in wanted else [])
    inputs = {name: states.new_empty(len(states)) for name in names}
    if not names:
        return inputs
    top = rows.by_context.get("top")
    for part, log_prob in iterate_log_probs(states, head.weights, head.bias, offered=head.offered):
        if sums:
            log_logging = _log_logging(rows, batch, part).to(log_prob)
            for name in sums:
                inputs[name][part] = CONTEXT_SUMS[name](log_prob, log_logging)
        if top is not None:
            chosen = top[batch.numbers[part]].long()
            found = _widened(log_prob, None if head.offered is None else int(chosen.amax()) + 1)
            inputs["log_target_top"][part] = found.gather(1, chosen).logsumexp(1)
    return inputs


@torch.no_grad()
def group_inputs(rows: RowInputs, batch: Batch, head: PolicyHead) -> Tensor:
    """log π(g|x) − log β̂(g|x) of the groups of a batch's rows, a tile of contexts at a time."""
    assert rows.groups is not None
    ratio = head.states.new_empty(len(batch.rows))
    for part, log_prob in iterate_log_probs(head.states, head.weights, head.bias):
        inside = (batch.row_context >= part.start) & (batch.row_context < part.stop)
        cell = batch.row_context[inside] - part.start, batch.row_action[inside]
        ratio[inside] = group_ratio(log_prob, _log_logging(rows, batch, part), cell, rows.groups).to(ratio)
    return ratio


def _log_logging(rows: RowInputs, batch: Batch, part: slice) -> Tensor:
    """log β̂ of all actions in some contexts of a batch: looked up if it is kept."""
    known = rows.by_context.get("log_logging")
    width = None if batch.table.candidates is None else batch.contexts.candidates.width  # type: ignore[union-attr]
    if known is not None:
        return known[batch.numbers[part], :width]
    assert rows.logging is not None
    return _widened(choice_log_probs(rows.logging, batch.contexts.take(part)), width)


def _widened(log_probs: Tensor, width: int | None) -> Tensor:
    """Padded with impossible columns to a width."""
    if width is None or log_probs.shape[1] == width:
        return log_probs
    return torch.nn.functional.pad(log_probs, (0, width - log_probs.shape[1]), value=-torch.inf)


def check_rows(name: str, values: Any, n_rows: int) -> Tensor:
    """One finite, non-negative number per row, as float64."""
    rows = torch.as_tensor(values).detach().double()
    if rows.shape != (n_rows,):
        raise ParameterError(
            f"{name} must hold one number for each of {n_rows} rows; its shape is {tuple(rows.shape)}."
        )
    bad = (~rows.isfinite() | (rows < 0)).nonzero()
    if len(bad):
        raise ParameterError(
            f"{name} must be finite and at least 0, but row {int(bad[0])} holds {float(rows[bad[0]])}."
        )
    return rows
