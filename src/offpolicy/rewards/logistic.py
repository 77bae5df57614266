"""A logistic regression for every action, all at once by Newton's method, pooled as far as the data ask.

    q̂(x, a) = sigmoid(c + x·b + δ₁ x·θ_a + δ₀ log n_a + b_a + x·w_a)

c, b, δ₁ and δ₀ are shared by all actions and fitted to all rows; b_a and w_a are an action's own, pulled to zero by a
ridge κ. θ_a is the direction in which the contexts of action a differ from the others (linear discriminants), n_a how
often it was logged: what the logger prefers says something about rewards, for or against, and δ₁ and δ₀ learn which.
κ is chosen by the log-loss of rows held out by fold. Everything is linear in x, so that the greedy policy is too.

Rows of one context and action stand as one. If the m of them say much the same (a label is right or wrong whenever it
is shown), they are no m pieces of evidence: they count as m/(1 + (m − 1)φ), φ being the correlation of what
q̂ leaves of two of them (extra-binomial variation; Williams, 1982).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import Scorer

Integers = npt.NDArray[np.int64]

RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 1e4)
"""Values of κ that are tried; the last leaves hardly more than what all actions share."""
STEPS, HALVINGS, TOLERANCE = 25, 12, 1e-4
"""Newton steps at most, how often one that overshoots is halved, and the largest change that ends them."""
LARGEST_STEP = 4.0
"""A step of the shared coefficients moves none further than this."""
LARGEST_HESSIANS = 1 << 25
"""Numbers in the Hessians of all actions, (actions, d + 1, d + 1); larger models are fitted by minibatches."""
AT_ONCE = 1 << 22
"""Numbers of features that are gathered at once."""
FEW_ROWS, LEAST_RIDGE = 2, 0.1
"""An action with at most 1/FEW_ROWS times as many rows as features is solved in the space of its rows."""
ROWS_TO_CHOOSE = 60_000
"""The ridge is chosen on no more pairs than about this many."""


def fits_in_memory(scorer: Scorer) -> bool:
    """Whether the Hessians of all actions do."""
    return scorer.n_actions * (scorer.dim + 1) ** 2 <= LARGEST_HESSIANS


@dataclass(frozen=True)
class Shared:
    """What all actions share: the mean of the prior of each action's coefficients."""

    prior: Tensor  # (actions, d + 1)

    def scores(self, rows: "ActionRows", own: Tensor | float = 0.0) -> Tensor:
        """The log-odds of rows, with the actions' own coefficients added."""
        theta = self.prior + own
        return torch.cat([(x * theta[rows.action[part]]).sum(1) for part, x in rows.parts()])


@dataclass(frozen=True)
class ActionRows:
    """Pairs of a context and an action, sorted by action, that point at the features of contexts, (contexts, d + 1),
    whose last column is 1.
    """

    features: Tensor
    context: Tensor
    action: Tensor
    reward: Tensor
    """The mean over the rows of the pair."""
    square: Tensor
    """The mean of their squares."""
    rows: Tensor
    """How many rows the pair has."""
    events: Tensor
    """How many independent ones they count as."""
    fold: Tensor
    n_actions: int

    @classmethod
    def of(cls, scorer: Scorer, log: LoggedData, row_fold: Integers | None = None) -> "ActionRows":
        """The pairs of a log on a scorer's states; rows of a pair that are in several folds stay apart."""
        with torch.no_grad():
            states = scorer.states(log.contexts).double()
        row_fold = np.zeros(log.n_rows, dtype=np.int64) if row_fold is None else row_fold
        weight = np.ones(log.n_rows) if log.row_weight is None else np.asarray(log.row_weight, dtype=np.float64)
        place = log.action.astype(np.int64) * log.n_contexts + log.context_index
        _, first, pair = np.unique(place * (row_fold.max() + 1) + row_fold, return_index=True, return_inverse=True)
        rows, reward, square = (np.bincount(pair, weight * log.reward**power) for power in range(3))
        known = np.maximum(rows, np.finfo(np.float64).tiny)
        numbers = (log.context_index[first].astype(np.int64), log.action[first].astype(np.int64))
        context, action = map(torch.from_numpy, numbers)
        mean, mean_square, count = (torch.from_numpy(each) for each in (reward / known, square / known, rows))
        features = torch.cat([states, torch.ones(len(states), 1, dtype=torch.float64)], 1)
        fold = torch.from_numpy(row_fold[first])
        return cls(features, context, action, mean, mean_square, count, count, fold, log.n_actions)

    @property
    def width(self) -> int:
        """d + 1."""
        return self.features.shape[1]

    def take(self, kept: Tensor) -> "ActionRows":
        """Some pairs, by a mask."""
        own = ("context", "action", "reward", "square", "rows", "events", "fold")
        return replace(self, **{name: getattr(self, name)[kept] for name in own})

    def counted(self, alike: float) -> "ActionRows":
        """The same, m rows of a pair counted as m/(1 + (m − 1)φ)."""
        return replace(self, events=self.rows / (1 + (self.rows - 1).clamp(min=0) * alike))

    def alike(self, scores: Tensor) -> float:
        """φ: the correlation of what these log-odds leave of two rows of a pair, none where it is negative."""
        prob = scores.sigmoid()
        left, square = self.reward - prob, self.square - prob * (2 * self.reward - prob)
        others = (self.rows - 1).clamp(min=0)
        together = self.rows * ((others + 1) * left.square() - square) * (others > 0)
        most = float((self.rows * others * square).sum())
        return min(max(float(together.sum()) / most, 0.0), 1.0) if most > 0 else 0.0

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The features of the rows, some at a time."""
        step = max(AT_ONCE // self.width, 1)
        for start in range(0, len(self.context), step):
            part = slice(start, start + step)
            yield part, self.features[self.context[part]]

    def shared(self) -> Shared:
        """Fit c, b, δ₁ and δ₀ to all rows by Newton's method."""
        direction, popularity, evidence = self._directions()
        width = self.width
        theta = torch.zeros(width + 2, dtype=torch.float64)
        mean = float((self.reward * self.events).sum() / self.events.sum())
        theta[width - 1] = float(np.log(max(mean, 1e-6) / max(1 - mean, 1e-6)))
        ridge = torch.ones_like(theta)
        ridge[width - 1] = 1e-6
        for _ in range(STEPS):
            gradient, curvature = -ridge * theta, torch.diag(ridge)
            for part, x in self.parts():
                z = torch.cat([x, evidence[part, None], popularity[self.action[part], None]], 1)
                prob, events = (z @ theta).sigmoid(), self.events[part]
                gradient = gradient + z.T @ (events * (self.reward[part] - prob))
                curvature = curvature + (z * (events * prob * (1 - prob))[:, None]).T @ z
            step = torch.linalg.solve(curvature, gradient).clamp(-LARGEST_STEP, LARGEST_STEP)
            theta = theta + step
            if float(step.abs().max()) < TOLERANCE:
                break
        prior = theta[:width] + theta[width] * direction
        logged = torch.bincount(self.action, minlength=self.n_actions) > 0
        trend = theta[width + 1] * popularity
        prior[:, -1] += torch.where(logged, trend, trend[logged].amin())  # never logged: as the least of the others
        return Shared(prior)

    def _directions(self) -> tuple[Tensor, Tensor, Tensor]:
        """θ_a with its intercept (actions, d + 1), log n_a centred, and x·θ_a of each row without the row itself."""
        counts = torch.zeros(self.n_actions, dtype=torch.float64).index_add_(0, self.action, self.events)
        weight = torch.zeros(len(self.features), dtype=torch.float64).index_add_(0, self.context, self.events)
        x = self.features[:, :-1]
        mean = weight @ x / weight.sum()
        centred = x - mean
        covariance = (centred * (weight / weight.sum())[:, None]).T @ centred
        jitter = 1e-3 * float(covariance.diagonal().mean()) if len(covariance) else 0.0
        inverse = torch.linalg.inv(covariance + max(jitter, 1e-9) * torch.eye(len(covariance), dtype=torch.float64))
        sums = torch.zeros(self.n_actions, x.shape[1], dtype=torch.float64)
        for part, features in self.parts():
            sums.index_add_(0, self.action[part], (features[:, :-1] - mean) * self.events[part, None])
        slopes = sums @ inverse / (counts + 1)[:, None]
        evidence = []
        for part, features in self.parts():
            own, action, events = features[:, :-1] - mean, self.action[part], self.events[part, None]
            without = (sums[action] - own * events) @ inverse / (counts[action, None] - events + 1)
            evidence.append((own * without).sum(1))
        popularity = (counts + 1).log()
        direction = torch.cat([slopes, -(slopes @ mean)[:, None]], 1)
        return direction, popularity - popularity.mean(), torch.cat(evidence)

    def own(self, shared: Shared, ridge: float, start: Tensor | None = None) -> Tensor:
        """The actions' own coefficients beside the shared ones, (actions, d + 1)."""
        own = torch.zeros_like(shared.prior) if start is None else start.clone()
        offset = shared.scores(self)
        for actions, rows, real in self._groups():
            x, reward, events = self.features[self.context[rows]], self.reward[rows], self.events[rows] * real
            own[actions] = _newton(x, reward, events, offset[rows], ridge, own[actions])
        return own

    def _groups(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Actions with about equally many rows: their numbers, the places of their rows, padded, and which are real."""
        count = torch.bincount(self.action, minlength=self.n_actions)
        first = torch.cumsum(count, 0) - count
        order = torch.argsort(count, stable=True)
        order = order[count[order] > 0]
        start = 0
        while start < len(order):
            sizes = count[order[start:]]
            together = sizes * torch.arange(1, len(sizes) + 1) * self.width
            fits = (sizes <= max(2 * int(sizes[0]), 8)) & (together <= AT_ONCE)
            end = start + max(int(fits.long().cumprod(0).sum()), 1)
            actions = order[start:end]
            places = torch.arange(int(count[actions].max()))
            real = places < count[actions, None]
            yield actions, (first[actions, None] + places).where(real, first[actions, None]), real
            start = end

    def doubt(self, theta: Tensor, ridge: float) -> Tensor:
        """The standard deviation of each action's intercept, 1/√(κ + Σ q̂(1 − q̂)) over its rows."""
        prob = Shared(theta).scores(self).sigmoid()
        known = torch.zeros(self.n_actions, dtype=torch.float64)
        return (ridge + known.index_add_(0, self.action, self.events * prob * (1 - prob))).rsqrt()

    def log_loss(self, shared: Shared, own: Tensor) -> float:
        """Binary cross-entropy, summed over events."""
        scores = shared.scores(self, own)
        return float(F.binary_cross_entropy_with_logits(scores, self.reward, self.events, reduction="sum"))


def _newton(x: Tensor, reward: Tensor, events: Tensor, offset: Tensor, ridge: float, theta: Tensor) -> Tensor:
    """Maximise the penalised likelihood of each of some actions, x (actions, rows, d + 1), from θ (actions, d + 1)."""

    def scores_and_value(theta: Tensor) -> tuple[Tensor, Tensor]:
        scores = offset + (x @ theta[:, :, None])[:, :, 0]
        likelihood = (events * (reward * scores - F.softplus(scores))).sum(1)
        return scores, likelihood - ridge / 2 * theta.square().sum(1)

    scores, value = scores_and_value(theta)
    for _ in range(STEPS):
        prob = scores.sigmoid()
        gradient = (x.transpose(1, 2) @ (events * (reward - prob))[:, :, None])[:, :, 0] - ridge * theta
        step = _solved(x, events * prob * (1 - prob), ridge, gradient)
        for _ in range(HALVINGS):
            scores, moved = scores_and_value(theta + step)
            worse = moved < value
            if not bool(worse.any()):
                break
            step = torch.where(worse[:, None], step / 2, step)
        theta, value = theta + step, moved
        if float(step.abs().max()) < TOLERANCE:
            break
    return theta


def _solved(x: Tensor, weight: Tensor, ridge: float, gradient: Tensor) -> Tensor:
    """(κI + XᵀDX)⁻¹g of each action; where it has few rows by way of the smaller matrix κI + √D·XXᵀ·√D."""
    rows, width = x.shape[1:]
    if FEW_ROWS * rows > width or ridge < LEAST_RIDGE:
        curvature = x.transpose(1, 2) @ (x * weight[:, :, None])
        curvature.diagonal(dim1=1, dim2=2).add_(ridge)
        direct: Tensor = torch.linalg.solve(curvature, gradient)
        return direct
    half = x * weight.sqrt()[:, :, None]  # (actions, rows, d + 1)
    gram = half @ half.transpose(1, 2)
    gram.diagonal(dim1=1, dim2=2).add_(ridge)
    inner = torch.linalg.solve(gram, (half @ gradient[:, :, None])[:, :, 0])
    solved: Tensor = (gradient - (half.transpose(1, 2) @ inner[:, :, None])[:, :, 0]) / ridge
    return solved


@dataclass(frozen=True)
class Regressions:
    """The coefficients fitted to all rows and to those outside each fold, (actions, d + 1), and how well they do."""

    whole: Tensor
    folds: tuple[Tensor, ...]
    ridge: float
    log_loss: float
    """Mean binary cross-entropy of rows held out by fold."""


def fit_regressions(
    scorer: Scorer,
    log: LoggedData,
    row_fold: npt.NDArray[np.int64],
    *,
    ridges: Sequence[float] = RIDGES,
    pessimism: float = 0.0,
) -> Regressions:
    """Fit every action's regression, the ridge by the log-loss of held-out folds.

    Each intercept is lowered by `pessimism` standard deviations, which only actions with few rows feel.
    """
    rows = ActionRows.of(scorer, log, row_fold)
    n_folds = int(row_fold.max()) + 1
    used = 1 if len(rows.context) > ROWS_TO_CHOOSE else n_folds
    alike = [_alike(rows.take(rows.fold != k), ridges[0]) for k in range(n_folds)]
    others = [rows.take(rows.fold != k).counted(alike[k]) for k in range(n_folds)]
    shares = [each.shared() for each in others]
    losses, events = np.zeros(len(ridges)), 0.0
    for k in range(used):
        train, held = _fewer(others[k]), rows.take(rows.fold == k).counted(alike[k])
        events += float(held.events.sum())
        own: Tensor | None = None
        for i in reversed(range(len(ridges))):  # from the strongest pull, so that each fit starts near its end
            own = train.own(shares[k], ridges[i], own)
            losses[i] += held.log_loss(shares[k], own)
    best = int(losses.argmin())
    ridge = ridges[best]

    def fitted(some: ActionRows, shared: Shared) -> Tensor:
        theta = shared.prior + some.own(shared, ridge)
        theta[:, -1] -= pessimism * some.doubt(theta, ridge)
        return theta

    folds = tuple(map(fitted, others, shares))
    rows = rows.counted(_alike(rows, ridges[0]))
    return Regressions(fitted(rows, rows.shared()), folds, ridge, float(losses[best]) / max(events, 1.0))


def _alike(rows: ActionRows, ridge: float) -> float:
    """φ beside the least penalised q̂, so that only what no q̂ explains counts as alike."""
    if not bool((rows.rows > 1).any()):
        return 0.0
    rows = _fewer(rows)
    shared = rows.shared()
    return rows.alike(shared.scores(rows, rows.own(shared, ridge)))


def _fewer(rows: ActionRows) -> ActionRows:
    """At most about `ROWS_TO_CHOOSE` pairs, evenly spaced, which keeps the actions in proportion."""
    stride = -(-len(rows.context) // ROWS_TO_CHOOSE)
    return rows if stride == 1 else rows.take(torch.arange(0, len(rows.context), stride))
