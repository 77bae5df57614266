"""How large the error of log β̂ is, measured on rows that a model fitted to the others did not see.

For one action, s = Σ z_n(1{a_n = a} − β̂(a|x_n)) over held-out rows has E[sᵀH⁻¹s] = rank H + Σ wΔ², where
w = β̂(1 − β̂), H = Σ w z zᵀ and Δ is the error of the action's logit as far as it is linear in z. With z = x, what is
left after the rank is estimation error, Σ w c²U² if the error is c times as large as the per-action U; what squares
of x add to it is misspecification. Two fits, whatever the number of rows; errors that neither x nor its squares can
describe stay unseen.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.policies import all_log_probs
from offpolicy.progress import progress
from offpolicy.propensity import FittedModel, LoggingPolicy
from offpolicy.seeding import torch_generator
from offpolicy.uncertainty.factor import cholesky, quadratic_form
from offpolicy.uncertainty.rows import row_uncertainty, state_function

MOST_ACTIONS = 256
"""How many of the most frequent actions are looked at; rarer ones say little, one by one."""

COUNTED = ("popularity", "counts")
"""Models that know no features."""

COLLINEAR = 1e-9
"""Directions whose share of H's largest eigenvalue is below this count as zero."""


@dataclass(frozen=True)
class HeldOutError:
    """The size of the error of log β̂."""

    scale: float
    """Estimation error in units of the per-action U: about 1 where β̂ is well specified."""
    misspecification: float
    """Root mean square error of logits that more rows would not reduce."""


@dataclass
class _Sums:
    linear: float = 0.0
    beyond: float = 0.0
    expected: float = 0.0
    mass: float = 0.0


def held_out_error(logging_policy: LoggingPolicy, splits: int = 5, seed: int = 0) -> HeldOutError:
    """Fit each half of the contexts, test it on the other half; averaged over several splits to reduce noise."""
    log = logging_policy.log
    if logging_policy.model in COUNTED:
        raise ParameterError(
            f"The held-out method tests models by the features of contexts, which the {logging_policy.model} model "
            f"does not use. Calibrate it with method='bootstrap'."
        )
    often = np.argsort(-log.action_count, kind="stable")[:MOST_ACTIONS]
    actions = torch.from_numpy(np.sort(often[log.action_count[often] > 0]))
    sums = _Sums()
    with progress("calibrating γ", 2 * splits) as advance:
        for split in range(splits):
            fold = log.folds(2, seed=seed + split)
            for k in range(2):
                train = log.take(fold != k)
                _add_half(sums, logging_policy.refit(train), train, log.take(fold == k), actions)
                advance("")
    scale = max(sums.linear, 0.0) / max(sums.expected, 1e-12)
    return HeldOutError(scale**0.5, (max(sums.beyond, 0.0) / max(sums.mass, 1e-12)) ** 0.5)


def held_out_errors(logging_policy: LoggingPolicy, draws: int = 10, seed: int = 0) -> Tensor:
    """Errors |log β̂ − log β*| as large as `draws` refits on halves tell, from normal laws; (draws, rows)."""
    error = held_out_error(logging_policy, max(1, draws // 2), seed)
    variance = (error.scale * row_uncertainty(logging_policy, "per_action")) ** 2 + error.misspecification**2
    # An error Δ of a logit is an error of (1 − β̂)Δ of its log-probability.
    deviation = -torch.expm1(logging_policy.row_log_prob.clamp(max=0.0)) * variance.sqrt()
    random = torch_generator(seed, "calibration", "held-out")
    return torch.randn(draws, len(deviation), generator=random, dtype=torch.float64).abs() * deviation


def _add_half(sums: _Sums, model: FittedModel, train: LoggedData, held_out: LoggedData, actions: Tensor) -> None:
    train = model.in_view(train)[1]
    model, held_out = model.in_view(held_out)
    state = state_function(model.softmax, train, intercept=True)
    x_train, x = state(train).double(), state(held_out).double()
    centred = x - x.mean(0)
    z = torch.cat([x, centred.square()], 1)
    rows_of = torch.from_numpy(np.bincount(held_out.context_index, minlength=held_out.n_contexts)).double()
    prob, taken = _all_of(model, held_out, actions)
    for place, action in enumerate(actions.tolist()):
        own = torch.from_numpy(train.context_index[train.action == action].astype(np.int64))
        if len(own) == 0:
            continue  # its β̂ is back-off, which no U of this form describes
        beta = prob[:, place]
        weight = rows_of * beta * (1 - beta)
        score = z.T @ (taken[:, place] - rows_of * beta)
        information = z.T @ (weight.unsqueeze(1) * z)
        d = x.shape[1]
        linear = _excess(score[:d], information[:d, :d])
        matrix = x_train[own].T @ x_train[own]
        matrix.diagonal().add_(model.ridge)
        sums.linear += linear
        sums.beyond += _excess(score, information) - linear
        sums.expected += float((weight * quadratic_form(cholesky(matrix), x)).sum())
        sums.mass += float(weight.sum())


def _all_of(model: FittedModel, log: LoggedData, actions: Tensor) -> tuple[Tensor, Tensor]:
    """β̂ of some actions in every context, and how often each was taken there."""
    prob = torch.empty(log.n_contexts, len(actions), dtype=torch.float64)
    for tile in log.batches(width=log.n_actions):
        log_probs = all_log_probs(model.policy, log.contexts.take(tile.contexts))
        prob[tile.contexts] = log_probs[:, actions].double().exp()
    column = torch.full((log.n_actions,), -1, dtype=torch.int64)
    column[actions] = torch.arange(len(actions))
    place = column[torch.from_numpy(log.action.astype(np.int64))]
    cell = torch.from_numpy(log.context_index.astype(np.int64)) * len(actions) + place
    taken = torch.bincount(cell[place >= 0], minlength=prob.numel()).double()
    return prob, taken.view_as(prob)


def _excess(score: Tensor, information: Tensor) -> float:
    """sᵀH⁻¹s less its expectation under a perfect β̂, the rank of H."""
    values, vectors = torch.linalg.eigh(information)
    real = values > COLLINEAR * float(values[-1])
    along = (vectors.T @ score)[real]
    return float((along.square() / values[real]).sum()) - int(real.sum())
