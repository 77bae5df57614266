"""Slates: the ratios of a request's positions, multiplied as far down as users are assumed to look.

Every row has log π − log β̂ of its action given those above it. Summed over the request (any user), down to the row
(users who go from top to bottom) or not at all (users who look at each position by itself), they are what the ordinary
estimators call the log-ratio: values, errors, intervals and comparisons then apply as they are, clusters being
requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, bounded_exp
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.log import Candidates, FeatureTable, LoggedData, pieces, shows_repeats
from offpolicy.policies import PlacedPolicy, Policy, choice_log_probs, rows_only, tensor
from offpolicy.seeding import torch_generator

Rows = npt.NDArray[np.int64]
RATIO_OF = {"any": "log_slate_ratio", "cascade": "log_cascade_ratio", "independent": "log_position_ratio"}
"""The log-ratio under each user model, the weakest assumption first."""
SLATE_ESTIMATORS = ("sips", "rips", "cascade_dr", "iips", "pseudo_inverse", "snips", "sn_shrinkage", "snuips")
"""Estimators for slates; the last three under the user model of the evaluation."""
KEPT = ("reward", "sample_size", "log_logging", *RATIO_OF.values(), "slate_surplus")
"""Inputs that stay what they are under every user model; all others are those of single actions."""
ENOUGH = 200.0
"""Effective requests with which a user model's weights can be carried: four times what a verdict asks for."""
DRAWS = 32
"""Slates drawn of each request to learn how likely an action is in a position."""


def with_slates(rows: PolicyRows, target: Policy, logging: Policy) -> PolicyRows:
    """The rows of a log of slates, with the log-ratios of every user model that the log can tell."""
    log = rows.log
    own = _table(log, rows.log_ratio)
    cascade = own.cumsum(1)
    above = torch.cat([torch.zeros_like(own[:, :1]), cascade[:, :-1]], 1)
    place = _place(log)
    inputs = dict(rows.inputs) | {"log_slate_ratio": own.sum(1)[place[0]]}
    if "baseline" in inputs:  # q̂ is a share of what the longest slate can earn
        inputs["imputed"] = inputs["imputed"] * own.shape[1]
        inputs["baseline"] = inputs["baseline"] * own.shape[1] * bounded_exp(above)[place]
    if not one_reward(log):
        inputs["log_cascade_ratio"] = cascade[place]
        of_position = _position_log_ratio(rows, target, logging)
        inputs |= {} if of_position is None else {"log_position_ratio": of_position}
    if positions_are_independent(log):
        inputs["slate_surplus"] = (bounded_exp(own) - 1).sum(1)[place[0]]
    return replace(rows, inputs=inputs)


def positions_are_independent(log: LoggedData) -> bool:
    """Whether what stands above changes nothing of what may be chosen: actions may be shown twice."""
    assert log.request is not None
    return log.candidates is None or shows_repeats(log.request, log.action)


def one_reward(log: LoggedData) -> bool:
    """Whether every request has one reward in all its rows: that of the slate, not of its positions."""
    assert log.request is not None
    first = np.zeros(int(log.request.max()) + 1)
    first[log.request[::-1]] = log.reward[::-1]
    return bool((first[log.request] == log.reward).all()) and len(first) < log.n_rows


def with_user_model(rows: PolicyRows, user_model: str) -> PolicyRows:
    """The same rows with the log-ratio of a user model in place of that of single actions.

    U is summed as the log-ratio is: errors of β̂ in the positions of one request are taken to add up.
    """
    name = RATIO_OF[user_model]
    if name not in rows.inputs:
        raise ParameterError(f"The user model {user_model!r} cannot be used here: {why_missing(name, rows.log)}.")
    kept = {key: values for key, values in rows.inputs.items() if key in KEPT}
    kept["log_ratio"] = rows.inputs[name]
    if user_model == "cascade" and rows.has_reward_model:
        kept |= {key: rows.inputs[key] for key in ("imputed", "baseline")}
    if "uncertainty" in rows.inputs:
        table, place = _table(rows.log, rows.inputs["uncertainty"]), _place(rows.log)
        sums = {"any": table.sum(1, keepdim=True).expand_as(table), "cascade": table.cumsum(1), "independent": table}
        kept["uncertainty"] = sums[user_model][place]
    return replace(rows, inputs=kept)


def chosen_user_model(rows: Iterable[PolicyRows]) -> str:
    """The weakest assumption under which every policy keeps enough effective requests, else the strongest there is."""
    asked = list(rows)
    known = [name for name, key in RATIO_OF.items() if all(key in one.inputs for one in asked)]
    for name in known:
        sums = [with_user_model(one, name).clustered(ESTIMATORS["ips"]) for one in asked]
        if min(one.effective_clusters for one in sums) >= ENOUGH:
            return name
    return known[-1]


def why_missing(name: str, log: LoggedData) -> str:
    """Why an input of slates is not known, in words."""
    if name in ("log_cascade_ratio", "log_position_ratio") and one_reward(log):
        return "it needs a reward for each position, but every request of this log has one reward"
    if name == "slate_surplus":
        return "it needs positions filled independently of each other, but here no action is shown twice in a request"
    return "it needs the policy's probabilities of all actions, but those of the logged ones alone are known"


def _position_log_ratio(rows: PolicyRows, target: Policy, logging: Policy) -> Tensor | None:
    """log π_l − log β̂_l of the action in its position, whatever stands above; None where it cannot be known."""
    log = rows.log
    if positions_are_independent(log):
        return rows.log_ratio
    if any(rows_only(one) or isinstance(one, PlacedPolicy) for one in (target, logging)):
        return None
    log_target, log_logging = (position_log_prob(one, log) for one in (target, logging))
    return torch.where(log_target == -torch.inf, log_target, log_target - log_logging)


def position_log_prob(policy: Policy, log: LoggedData, draws: int = DRAWS, seed: int = 0) -> Tensor:
    """log of the chance that a policy puts each row's action in its position, over all it may put above.

    Each position chooses by the policy's probabilities renormalised over what is left. What stands above is drawn
    among the other actions, with the same numbers for every policy; that the action itself is not drawn above, and is
    chosen then, are chances and not draws.
    """
    assert log.candidates is not None
    row_of = _table(log, torch.arange(log.n_rows), -1).numpy()
    row_of = row_of[row_of[:, 0] >= 0]
    result = torch.empty(log.n_rows, dtype=torch.float64)
    for number, part in enumerate(pieces(len(row_of), 4 * draws * log.candidates.width)):
        rows = row_of[part]
        offered = log.candidates.take(log.context_index[rows[:, 0]])
        filled = np.where(
            rows >= 0, rows, rows[:, :1]
        )  # a shorter slate goes on with its first row, which nobody reads
        base = [_base(policy, log, own, offered) for own in filled.T]
        for position, own in enumerate(filled.T):
            there = torch.from_numpy(offered.places(np.arange(len(rows)), log.action[own])).clamp(min=0)
            random = torch_generator(seed, "slates", number, position)
            found = _chance_in_position(base[: position + 1], there, draws, random)
            real = torch.from_numpy(rows[:, position] >= 0)
            result[torch.from_numpy(own)[real]] = found[real].log()
    return result


def _base(policy: Policy, log: LoggedData, rows: Rows, offered: Candidates) -> Tensor:
    """π of all that a request offers, in the contexts of some of its rows; (requests, width)."""
    contexts = FeatureTable(dict(log.contexts.take(log.context_index[rows])), offered)
    prob = choice_log_probs(policy, contexts).double().exp()
    # Where all that is possible has been shown, the rest are alike.
    return torch.where(torch.from_numpy(offered.padded()) >= 0, prob.clamp(min=np.finfo(np.float64).tiny), 0.0)


def _chance_in_position(base: Sequence[Tensor], there: Tensor, draws: int, random: torch.Generator) -> Tensor:
    """The chance of the candidate at `there` in the last of some positions, given π of each of them."""
    n, width = base[0].shape
    column = there[:, None, None].expand(n, draws, 1)
    taken, not_above = torch.zeros(n, draws, width, dtype=torch.bool), torch.ones(n, draws, dtype=torch.float64)
    for position, prob in enumerate(base):
        left = prob[:, None, :].expand(n, draws, width).masked_fill(taken, 0.0)
        chance = left.gather(2, column).squeeze(2) / left.sum(2)
        if position == len(base) - 1:
            break
        not_above = not_above * (1 - chance)
        below = left.scatter(2, column, 0.0).cumsum(2)
        # The draws of a request are spread evenly.
        order = torch.rand(n, draws, generator=random).argsort(1)
        uniform = (order + torch.rand(n, draws, generator=random, dtype=torch.float64)) / draws
        drawn = torch.searchsorted(below, uniform[:, :, None] * below[:, :, -1:], right=True).clamp(max=width - 1)
        taken = taken.scatter(2, drawn, True)
    return (not_above * chance).mean(1)


def _place(log: LoggedData) -> tuple[Tensor, Tensor]:
    """Request and position of every row."""
    return tensor(log.request).long(), tensor(log.position).long()


def _table(log: LoggedData, values: Tensor, fill: float = 0) -> Tensor:
    """One value a row as a table (requests, positions)."""
    request, position = _place(log)
    table = torch.full((int(request.max()) + 1, int(position.max()) + 1), fill, dtype=values.dtype)
    table[request, position] = values
    return table
