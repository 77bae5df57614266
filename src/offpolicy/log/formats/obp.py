"""Logs to and from Open Bandit Pipeline's bandit feedback dictionary, with names as that library spells them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.features import BagColumn, CategoricalColumn, Column, EmbeddingColumn, FeatureTable
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.slates import POSITION, slate_table
from offpolicy.log.vocabulary import Vocabulary

FEEDBACK = "the bandit feedback"


def from_obp(feedback: Mapping[str, Any], reward_range: tuple[float, float] = (0.0, 1.0)) -> LoggedData:
    """The log in a bandit feedback dictionary.

    `context` becomes an embedding; `position` joins the context as a categorical where it takes more than one value;
    `pscore` and `action_context` are taken where they are there. Dense arrays of probabilities or expected rewards
    (`pi_b`, `expected_reward`) are ignored. A dictionary with `slate_id` is a log of slates, whose `pscore_cascade`
    becomes the propensity of each action given those above.
    """
    if feedback.get("slate_id") is not None:
        return _slates_from_obp(feedback, reward_range)
    for name in ("context", "action", "reward", "n_actions"):
        if feedback.get(name) is None:
            present = ", ".join(sorted(map(str, feedback)))
            raise LogError(f"{FEEDBACK} has no {name!r}; it holds: {present}. Add it, as Open Bandit Pipeline does.")
    n_rounds = len(np.asarray(feedback["action"]))
    if feedback.get("n_rounds") not in (None, n_rounds):
        raise LogError(f"{FEEDBACK} says n_rounds = {feedback['n_rounds']}, but action has {n_rounds} entries.")
    context = _matrix("context", feedback["context"], n_rounds)
    contexts: dict[str, Any] = {"context": context}
    position = feedback.get("position")
    if position is not None and len(np.unique(position)) > 1:
        contexts["position"] = np.asarray(position)
    n_actions = int(feedback["n_actions"])
    described = feedback.get("action_context")
    features = None
    if described is not None:
        vectors = _matrix("action_context", described, n_actions)
        features = FeatureTable({"action_context": EmbeddingColumn(vectors)})
    table = ActionTable(Vocabulary(range(n_actions)), features)
    return LoggedData.from_arrays(
        contexts,
        feedback["action"],
        feedback["reward"],
        actions=table,
        logging_prob=feedback.get("pscore"),
        reward_range=reward_range,
    )


def _slates_from_obp(feedback: Mapping[str, Any], reward_range: tuple[float, float]) -> LoggedData:
    """The log in a slate feedback dictionary: a row a position."""
    for name in ("context", "action", "reward", "position", "n_unique_action"):
        if feedback.get(name) is None:
            present = ", ".join(sorted(map(str, feedback)))
            raise LogError(f"{FEEDBACK} has no {name!r}; it holds: {present}. Add it, as Open Bandit Pipeline does.")
    slate, position = np.asarray(feedback["slate_id"]), np.asarray(feedback["position"])
    distinct, owner = np.unique(slate, return_inverse=True)
    n_actions, described, cascade = int(feedback["n_unique_action"]), feedback.get("action_context"), None
    features = None
    if described is not None:
        features = FeatureTable({"action_context": EmbeddingColumn(_matrix("action_context", described, n_actions))})
    if feedback.get("pscore_cascade") is not None:
        cascade = np.asarray(feedback["pscore_cascade"], dtype=np.float64)
        order = np.lexsort((position, owner))
        above = np.concatenate(([1.0], cascade[order][:-1]))
        above[np.concatenate(([True], owner[order][1:] != owner[order][:-1]))] = 1.0
        cascade = cascade.copy()
        cascade[order] = np.minimum(cascade[order] / above, 1.0)
    return LoggedData.from_arrays(
        {"context": _matrix("context", feedback["context"], len(distinct))[owner]},
        feedback["action"],
        feedback["reward"],
        actions=ActionTable(Vocabulary(range(n_actions)), features),
        logging_prob=cascade,
        reward_range=reward_range,
        request=slate,
        position=position,
    )


def _matrix(name: str, values: Any, n_rows: int) -> npt.NDArray[np.float32]:
    matrix = np.asarray(values)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    if matrix.ndim != 2 or len(matrix) != n_rows or matrix.dtype.kind not in "iufb":
        raise LogError(
            f"{FEEDBACK}: {name!r} must be a matrix of numbers with {n_rows} rows, but it is {matrix.dtype} of shape "
            f"{matrix.shape}."
        )
    bad = ~np.isfinite(matrix)
    if bad.any():
        row, column = (int(at) for at in np.argwhere(bad)[0])
        raise LogError(
            f"{FEEDBACK}: {name!r} must hold finite numbers, but row {row}, column {column} holds "
            f"{matrix[row, column]}. Fill it in or drop the row."
        )
    return matrix.astype(np.float32)


def to_obp(log: LoggedData) -> dict[str, Any]:
    """The log as a bandit feedback dictionary.

    Rewards are on the user's scale. `context` is one dense matrix: numbers and embeddings as they are, categoricals
    one-hot, bags as the mean of their one-hot ids; a context column called `position` goes back to `position` where
    it holds integers. `pscore` is None where no propensities were recorded. A log of slates becomes a slate feedback
    dictionary, its rows in order of request and position.
    """
    if log.request is not None:
        return _slates_to_obp(log)
    columns = dict(log.contexts)
    position = None
    held = columns.get("position")
    if isinstance(held, CategoricalColumn) and len(columns) > 1 and held.vocabulary.ids.dtype.is_integer():
        del columns["position"]
        of_context = np.array([-1 if value is None else value for value in held.vocabulary.decode(held.codes)])
        position = of_context[log.context_index].astype(np.int64)
    features = log.actions.features
    return {
        "n_rounds": log.n_rows,
        "n_actions": log.n_actions,
        "context": _dense(columns)[log.context_index],
        "action_context": None if features is None else _dense(dict(features)),
        "action": log.action.astype(np.int64),
        "position": position,
        "reward": log.reward_to_user_scale(log.reward),
        "pscore": None if log.logging_prob is None else log.logging_prob.copy(),
    }


def _slates_to_obp(log: LoggedData) -> dict[str, Any]:
    """A slate feedback dictionary; the chance of an action in its position is known where actions may repeat."""
    assert log.request is not None
    assert log.position is not None
    order = np.lexsort((log.position, log.request))
    _, slate = np.unique(log.request[order], return_inverse=True)
    place = log.position[order].astype(np.int64)
    columns = {name: column for name, column in log.contexts.items() if name != POSITION} or dict(log.contexts)
    context = _dense(columns)[log.context_index[order]]
    prob = None if log.logging_prob is None else log.logging_prob[order]
    cascade, whole = None, None
    if prob is not None:
        table = slate_table(slate, place, prob, 1.0).cumprod(1)
        cascade, whole = table[slate, place], table[:, -1][slate]
    features = log.actions.features
    return {
        "n_rounds": int(slate.max()) + 1,
        "n_unique_action": log.n_actions,
        "slate_id": slate.astype(np.int64),
        "context": context[place == 0],
        "action_context": None if features is None else _dense(dict(features)),
        "action": log.action[order].astype(np.int64),
        "position": place,
        "reward": log.reward_to_user_scale(log.reward)[order],
        "pscore": whole,
        "pscore_cascade": cascade,
        "pscore_item_position": prob if log.candidates is None else None,
    }


def _dense(columns: Mapping[str, Column]) -> npt.NDArray[np.float64]:
    return np.concatenate([_block(column) for column in columns.values()], axis=1)


def _block(column: Column) -> npt.NDArray[np.float64]:
    if isinstance(column, CategoricalColumn):
        block = np.zeros((len(column), len(column.vocabulary)))
        block[np.arange(len(column)), column.codes] = 1.0
        return block
    if isinstance(column, BagColumn):
        block = np.zeros((len(column), len(column.vocabulary)))
        sizes = np.diff(column.offsets)
        np.add.at(block, (np.repeat(np.arange(len(column)), sizes), column.codes), 1.0)
        return block / np.maximum(sizes, 1)[:, None]
    values = column.values.astype(np.float64)
    return values if values.ndim == 2 else values[:, None]


def target_prob_from_obp(action_dist: Any, log_or_feedback: LoggedData | Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """π(a_n | x_n) of the logged rows, picked from a dense (n_rounds, n_actions, len_list) `action_dist`.

    Where the array has several positions, each row is read at its own `position`.
    """
    if isinstance(log_or_feedback, LoggedData):
        action: npt.NDArray[Any] = log_or_feedback.action
        position = _logged_position(log_or_feedback)
        n_actions = log_or_feedback.n_actions
    else:
        action = np.asarray(log_or_feedback["action"])
        position = log_or_feedback.get("position")
        n_actions = int(log_or_feedback["n_actions"])
    dist = np.asarray(action_dist)
    dist = dist[:, :, None] if dist.ndim == 2 else dist
    n_rows = len(action)
    if dist.ndim != 3 or dist.shape[:2] != (n_rows, n_actions) or dist.dtype.kind not in "iufb":
        raise LogError(
            f"action_dist must have shape ({n_rows}, {n_actions}, positions), one row per round and one column per "
            f"action, but it is {dist.dtype} of shape {dist.shape}."
        )
    place = np.zeros(n_rows, dtype=np.int64)
    if dist.shape[2] > 1:
        place = _checked_position(position, dist.shape[2])
    prob: npt.NDArray[np.float64] = dist[np.arange(n_rows), action, place].astype(np.float64)
    if not ((prob >= 0.0) & (prob <= 1.0)).all():
        row = int(np.argmin((prob >= 0.0) & (prob <= 1.0)))
        raise LogError(f"action_dist must hold probabilities in [0, 1], but its entry for row {row} is {prob[row]}.")
    return prob


def _logged_position(log: LoggedData) -> npt.NDArray[Any] | None:
    held = log.contexts.get("position")
    if not isinstance(held, CategoricalColumn):
        return None
    return np.array(held.vocabulary.decode(held.codes))[log.context_index]


def _checked_position(position: Any, n_positions: int) -> npt.NDArray[np.int64]:
    if position is None:
        raise LogError(f"action_dist has {n_positions} positions, but the log has no position. Pass one position only.")
    place = np.asarray(position)
    if place.dtype.kind not in "iu" or (place.size and (place.min() < 0 or place.max() >= n_positions)):
        raise LogError(f"position must hold integers in 0..{n_positions - 1}, the positions of action_dist.")
    return place.astype(np.int64)
