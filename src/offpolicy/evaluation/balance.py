"""Importance ratios without β̂: a classifier that tells actions drawn from π from logged ones, in the same contexts.

Where it is right, its odds are π(a|x)/β(a|x), whatever made the log. It is fitted on one half of the clusters,
calibrated there by two folds, and asked about the other half. Needs scikit-learn.
"""

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix
from offpolicy.policies import Policy, batch_log_probs, drawn_actions, rows_only, tensor
from offpolicy.seeding import generator, torch_generator

Array = npt.NDArray[np.float64]
BALANCED_INPUT = "log_balanced_ratio"
MOST_CODES = 255
"""Actions that fit into a categorical feature of the classifier; beyond, their frequency stands for them."""
LEAST_LOG = -30.0
"""Log-probabilities are cut here before the classifier sees them."""


def can_balance(target: Policy) -> bool:
    """Whether the classifier is installed and actions can be drawn from the policy."""
    return importlib.util.find_spec("sklearn") is not None and not rows_only(target)


def balanced_log_ratio(log: LoggedData, target: Policy, seed: int = 0) -> Tensor:
    """log P(C=1|x,a)/P(C=0|x,a) of every logged row; −inf where π never takes the action."""
    drawn, of_drawn, of_logged = _draws(log, target, seed)
    features = DesignMatrix.fit(log.contexts).encode(log.contexts).double().numpy()[log.context_index]
    half = generator(seed, "balanced", "halves").permutation(int(log.cluster_index.max()) + 1)[log.cluster_index] % 2
    result = np.zeros(log.n_rows)
    for part in (0, 1):
        fit, ask = half != part, half == part
        if not fit.any() or not ask.any():
            continue
        frequency = np.log(np.bincount(log.action[fit], minlength=log.n_actions) + 1.0)

        def table(rows: npt.NDArray[np.bool_], action: Any, log_prob: Array, frequency: Array = frequency) -> Array:
            code = action[rows] if log.n_actions <= MOST_CODES else np.zeros(int(rows.sum()))
            columns = (code, log_prob[rows].clip(min=LEAST_LOG), frequency[action[rows]])
            return np.column_stack([*columns, features[rows]])

        known = np.concatenate([table(fit, log.action, of_logged), table(fit, drawn, of_drawn)])
        label = np.repeat([0, 1], int(fit.sum()))
        events = None if log.row_weight is None else np.tile(log.row_weight[fit], 2)
        model = _classifier(log.n_actions <= MOST_CODES, seed).fit(known, label, sample_weight=events)
        prob = model.predict_proba(table(ask, log.action, of_logged))[:, 1].clip(1e-9, 1 - 1e-9)
        result[ask] = np.log(prob / (1 - prob))
    return tensor(np.where(np.isneginf(of_logged), -np.inf, result))


def _classifier(coded: bool, seed: int) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.ensemble import HistGradientBoostingClassifier

    categorical = [0] if coded else None
    trees = HistGradientBoostingClassifier(
        max_iter=60, learning_rate=0.15, max_leaf_nodes=15, categorical_features=categorical, random_state=seed
    )
    return CalibratedClassifierCV(trees, method="sigmoid", cv=2)


def _draws(log: LoggedData, target: Policy, seed: int) -> tuple[npt.NDArray[np.int64], Array, Array]:
    """For every row an action from π(·|x), its log-probability, and that of the logged action."""
    random = torch_generator(seed, "balanced", "draws")
    uniform = torch.rand(log.n_rows, generator=random, dtype=torch.float64)
    drawn = np.zeros(log.n_rows, dtype=np.int64)
    of_drawn, of_logged = np.empty(log.n_rows), np.empty(log.n_rows)
    for batch in log.batches():
        log_prob = batch_log_probs(target, log, batch).double()
        row = torch.from_numpy(batch.row_context)
        pick = drawn_actions(log_prob, row, uniform[torch.from_numpy(batch.rows)])
        drawn[batch.rows] = pick.numpy()
        if log.candidates is not None:
            drawn[batch.rows] = log.candidates.take(batch.contexts).padded()[batch.row_context, pick.numpy()]
        of_drawn[batch.rows] = log_prob[row, pick].numpy()
        of_logged[batch.rows] = log_prob[row, torch.from_numpy(batch.row_place)].numpy()
    return drawn, of_drawn, of_logged
