"""What the default fit of the logging policy costs, in exact softmax epochs and against SciPy's L-BFGS.

Run: python benchmarks/propensity_speed.py [--json] [--rows N] [--actions N] [--contexts N] [--model NAME] [--threads N]

The log is the one of three_commands.py, less a tenth of its users, on which both are judged. `propensity.fit_epochs` is
the time of `fit_logging_policy` with all its choices and quality figures, over the time of one exact epoch: value and
gradients of the likelihood of all rows, through the fused head. `propensity.fit_speedup` is the time that SciPy's
L-BFGS-B takes until it predicts the other users' rows as well (to 0.1 %), over the time of our fit. SciPy gets what a
user would write: the whole log in float64, each context once, one ridge, which is the one we chose. It is stopped at a
multiple of our time, and the speedup is then a lower bound.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

import figures
from offpolicy.log import LoggedData, read_log
from offpolicy.models import linear_scorer, softmax_log_prob, weighted_log_likelihood
from offpolicy.policies import logged_log_prob, tensor
from offpolicy.propensity import fit_logging_policy
from offpolicy.threads import set_threads
from three_commands import NUMBERS, WORDS, Size, write_log

ROWS, ACTIONS, CONTEXTS = 1_000_000, 2_000, 50_000
LIMITS = {"fit_epochs": 40, "fit_speedup": 8}
CAP = 12
"""SciPy is stopped at this many times the seconds of our fit."""
NEAR = 1e-3
"""A held-out likelihood counts as reached within this share."""
HELD_OUT = 0.1
AT_ONCE = 2_000  # contexts whose logits SciPy's objective holds at a time


def synthetic_log(size: Size, folder: Path) -> LoggedData:
    """The log of the three commands, read back from its file."""
    path = folder / "log.parquet"
    write_log(path, size)
    kinds: Any = {"age": "numeric"}
    return read_log(path, context=[*WORDS, *NUMBERS], action="item", reward="click", cluster="user", kinds=kinds)


def exact_epoch(log: LoggedData) -> Callable[[], float]:
    """Value and gradients of the likelihood of all rows; returns its seconds."""
    scorer = linear_scorer(log)
    states = scorer.states(log.contexts).detach()
    context, action = tensor(log.context_index).long(), tensor(log.action).long()
    ones = torch.ones(log.n_rows)

    def run() -> float:
        start = time.perf_counter()
        weights, bias = scorer.actions()
        value = weighted_log_likelihood(states, weights, bias, context, action, ones)
        torch.autograd.grad(value, [weights, bias])
        return time.perf_counter() - start

    run()
    return run


class Enough(Exception):  # noqa: N818 (not an error)
    """SciPy has reached the held-out likelihood, or used its time."""


def scipy_seconds(
    train: LoggedData, valid: LoggedData, target: float, ridge: float, cap: float
) -> tuple[float, float, bool]:
    """Seconds until SciPy reaches the target (its held-out checks not counted), its likelihood, whether it did."""
    scorer = linear_scorer(train)
    held_states, held_action = scorer.states(valid.contexts).double(), tensor(valid.action).long()
    held_context = tensor(valid.context_index).long()
    features = scorer.states(train.contexts).double()
    features = torch.cat([features, features.new_ones(len(features), 1)], 1)
    count = tensor(np.bincount(train.context_index, minlength=train.n_contexts)).double()
    sums = features.new_zeros(train.n_actions, features.shape[1])
    rows = torch.arange(train.n_rows)
    for part in torch.split(rows, 1 << 18):
        own = features[tensor(train.context_index).long()[part]]
        sums.index_add_(0, tensor(train.action).long()[part], own)
    start, unused = time.perf_counter(), 0.0
    best, seconds = -np.inf, 0.0

    def negative(flat: Any) -> tuple[float, Any]:
        theta = torch.from_numpy(flat).view_as(sums)
        value, gradient = 0.0, -sums
        for first in range(0, len(features), AT_ONCE):
            x, n = features[first : first + AT_ONCE], count[first : first + AT_ONCE]
            logits = x @ theta.T
            log_total = logits.logsumexp(1)
            value += float(n @ log_total)
            gradient += (logits - log_total[:, None]).exp_().mul_(n[:, None]).T @ x
        penalty = theta.clone()
        penalty[:, -1] = 0
        value += ridge / 2 * float(penalty.square().sum()) - float((theta * sums).sum())
        return value / train.n_rows, ((gradient + ridge * penalty) / train.n_rows).flatten().numpy()

    def look(flat: Any) -> None:
        nonlocal unused, best, seconds
        now = time.perf_counter()
        seconds = now - start - unused
        best = max(best, held_out(torch.from_numpy(np.asarray(flat)).view_as(sums)))
        unused += time.perf_counter() - now
        if best >= target - NEAR * abs(target) or seconds > cap:
            raise Enough

    def held_out(theta: Tensor) -> float:
        found = softmax_log_prob(held_states, theta[:, :-1].contiguous(), theta[:, -1], held_context, held_action)
        return float(found.mean())

    with contextlib.suppress(Enough):
        minimize(negative, np.zeros(sums.numel()), jac=True, method="L-BFGS-B", callback=look, options={"maxiter": 999})
    return seconds, best, best >= target - NEAR * abs(target)


def main() -> None:
    parser = figures.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--actions", type=int, default=ACTIONS)
    parser.add_argument("--contexts", type=int, default=CONTEXTS)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    set_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        log = synthetic_log(Size(options.rows, options.actions, options.contexts), Path(folder))
    log, valid = log.split((1 - HELD_OUT, HELD_OUT), seed=0)
    epoch = exact_epoch(log)
    epochs = [epoch() for _ in range(3)]
    start = time.perf_counter()
    fitted = fit_logging_policy(log, options.model)
    seconds = time.perf_counter() - start
    typical = median([*epochs, *(epoch() for _ in range(3))])
    ours = float(logged_log_prob(fitted.whole.policy, valid).mean())
    ridges = [each.chosen.ridge for each in fitted.candidates if each.name == "linear"]
    facts: dict[str, object] = {"rows": log.n_rows, "actions": log.n_actions, "contexts": log.n_contexts}
    facts |= {"seconds": round(seconds, 2), "epoch_seconds": round(typical, 3), "held_out": round(ours, 5)}
    note = f"{fitted.description}: {seconds:.1f} s of {typical:.2f} s an epoch, held-out log-likelihood {ours:.4f}"
    value = seconds / typical
    figures.Figure("propensity.fit_epochs", value, LIMITS["fit_epochs"], facts=facts, note=note).show(options.json)
    theirs, reached, done = scipy_seconds(log, valid, ours, ridges[0] if ridges else fitted.chosen.ridge, CAP * seconds)
    facts = {"scipy_seconds": round(theirs, 1), "scipy_held_out": round(reached, 5), "lower_bound": not done}
    note = f"SciPy {'took' if done else 'was stopped after'} {theirs:.0f} s at held-out log-likelihood {reached:.4f}"
    speedup, limit = theirs / seconds, LIMITS["fit_speedup"]
    figures.Figure("propensity.fit_speedup", speedup, limit, "at least", facts=facts, note=note).show(options.json)


if __name__ == "__main__":
    main()
