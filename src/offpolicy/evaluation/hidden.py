"""What the columns do not hold: how strong hidden information must have been to overturn a conclusion.

If the odds of each action given everything the logger knew differ from those of β̂ by at most a factor Γ, then among the
rows that got another action the chance of a click on a, where β̂ = e and q̂ = p, is within
[max(p/Γ, 1 − Γ(1 − p)), min(Γp, 1 − (1 − p)/Γ)], and each end is reached by some logger: bounds for binary rewards are
sharp for each action. Rows that got a click p of the time whatever was hidden; they are a share e of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from offpolicy.evaluation.value import Array
from offpolicy.log import LoggedData
from offpolicy.policies import Policy, PopularityPolicy, batch_log_probs, logged_log_prob
from offpolicy.progress import progress
from offpolicy.propensity import fit_logging_policy, shortened
from offpolicy.results import ColumnStrength, Sensitivity
from offpolicy.rewards import RewardModel, choice_rewards

MOST_COLUMNS = 8
"""Columns that are left out in turn, the first of the log's."""
ROWS, NUMBERS = 20_000, 20_000_000
"""Most rows and most contexts × actions of the log that linear models are fitted to."""
QUANTILE = 0.9
"""Share of logged rows whose probabilities a column changes by no more than its strength."""


@dataclass(frozen=True, eq=False)
class SharpRange:
    """The range of a policy's value by reward model for each Γ."""

    gammas: Array
    low: Array
    high: Array


def sharp_ends(probability: Tensor, reward: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Both ends of E r(a) for binary rewards, given β̂(a|x) and q̂(x, a)."""
    p, e = reward.clamp(0, 1), probability
    low = torch.maximum(p / gamma, 1 - gamma * (1 - p))
    high = torch.minimum(p * gamma, 1 - (1 - p) / gamma)
    return e * p + (1 - e) * low, e * p + (1 - e) * high


def sharp_range(
    log: LoggedData, target: Policy, beta: Policy, rewards: RewardModel, gammas: Sequence[float]
) -> SharpRange:
    """The mean over contexts of Σ_a π(a|x) times either end, in one pass."""
    sums = np.zeros((2, len(gammas)))
    for batch in log.batches():
        events = torch.from_numpy(np.array(log.context_weight[batch.contexts]))
        policy = batch_log_probs(target, log, batch).double().exp() * events[:, None]
        logging = batch_log_probs(beta, log, batch).double().exp()
        reward = choice_rewards(rewards, log.contexts.take(batch.contexts)).double()
        for place, gamma in enumerate(gammas):
            sums[:, place] += [float((policy * end).sum()) for end in sharp_ends(logging, reward, gamma)]
    low, high = sums / log.context_weight.sum()
    return SharpRange(np.asarray(gammas, dtype=np.float64), low, high)


def moved_to(found: SharpRange, value: float) -> SharpRange:
    """The same range about another estimate: what hidden information adds to it or takes from it, within [0, 1]."""
    gap_low, gap_high = found.low[0] - found.low, found.high - found.high[0]
    return SharpRange(found.gammas, (value - gap_low).clip(0, 1), (value + gap_high).clip(0, 1))


def tipping(found: SharpRange, value: float, threshold: float) -> float | None:
    """Least Γ at which the end towards the threshold reaches it, between the Γ looked at by straight lines."""
    gaps = found.low - threshold if value >= threshold else threshold - found.high
    if gaps[0] <= 0:
        return 1.0
    reached = np.flatnonzero(gaps <= 0)
    if not len(reached):
        return None
    after = int(reached[0])
    share = gaps[after - 1] / (gaps[after - 1] - gaps[after])
    return float(found.gammas[after - 1] + share * (found.gammas[after] - found.gammas[after - 1]))


def column_strengths(log: LoggedData, seed: int = 0) -> list[ColumnStrength]:
    """How much leaving out each context column changes a linear β̂ of logged actions, the strongest first.

    Γ of a column is the factor that all but a tenth of the logged rows stay below.
    """
    log = shortened(log.without_propensities(), seed, ROWS, NUMBERS)
    # The ridge is chosen on held-out rows rather than on contexts, of which a single column may have two.
    log = replace(log, cluster=np.arange(log.n_rows, dtype=np.int32), cluster_vocabulary=None)
    columns = list(log.contexts)[:MOST_COLUMNS]
    strengths = []
    with progress("leaving out columns", len(columns) + 1) as advance:
        linear = fit_logging_policy(log, "linear", seed=seed)
        full = _scores(linear.whole.policy, log)
        advance("all columns")
        for column in columns:
            kept = {name: values for name, values in log.contexts.items() if name != column}
            part = replace(log, contexts=log.contexts.changed(kept)) if kept else log
            # The ridge stays as it is, else its choice would pass for an effect of the column.
            without = linear.refit(part).policy if kept else PopularityPolicy.fit(log)
            gamma, odds = np.exp(np.quantile(np.abs(_scores(without, part) - full), QUANTILE, axis=1)).tolist()
            strengths.append(ColumnStrength(column=column, gamma=gamma, odds_gamma=odds))
            advance(column)
    return sorted(strengths, key=lambda one: -(one.odds_gamma or 0.0))


def _scores(policy: Policy, log: LoggedData) -> Array:
    """log β̂ of logged rows and its log odds, (2, rows)."""
    log_prob = logged_log_prob(policy, log).numpy()
    return np.stack([log_prob, log_prob - np.log1p(-np.exp(log_prob).clip(max=1 - 1e-9))])


def hidden_sentence(found: Sensitivity) -> str:
    """What hidden information would do to the conclusion, measured by the columns that are known."""
    opening = "If the logger used something these columns do not hold, this number is wrong"
    sharp = bool(found.sharp_low)
    gamma = found.sharp_flips_at if sharp else found.flips_at
    if gamma is not None and gamma <= 1:
        return f"{opening}; there is no difference to the logging policy that it could overturn."
    if gamma is None or not np.isfinite(gamma):
        return f"{opening}; but nothing of a strength that was looked at would overturn the conclusion."
    needed = f"a factor of {gamma:.2f} in the {'odds' if sharp else 'probabilities'} of actions"
    strengths = {one.column: (one.odds_gamma if sharp else one.gamma) or 1.0 for one in found.columns}
    if not strengths:
        return f"{opening}; to overturn it, it must have been as strong as {needed}."
    enough = {column: strength for column, strength in strengths.items() if strength >= gamma}
    if enough:
        named = min(enough, key=enough.__getitem__)
        return (
            f"{opening}; to overturn it, it must have been as strong as leaving out {named} "
            f"({needed} is enough; {named} makes one of {enough[named]:.2f})."
        )
    named = max(strengths, key=strengths.__getitem__)
    return (
        f"{opening}; to overturn it, it must have been stronger than leaving out any one of the columns: {needed}, "
        f"where {named}, the strongest, makes one of {strengths[named]:.2f}."
    )
