"""Boosted trees as a policy: LightGBM's multi-class model, kept as its own text format."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offpolicy.log import ActionTable, BagColumn, CategoricalColumn, FeatureTable, LoggedData
from offpolicy.models import FittedColumn, IdColumn, NumberColumn, id_columns

FEWEST_ROWS = 20
"""Rows of a leaf, at least."""
MANY_ROWS = 100_000
"""Rows beyond which LightGBM gains from threads."""
LEAVES, STEP, RIDGE = 16, 0.15, 1.0


class TreesPolicy:
    """The probabilities of a boosted model over the actions it was trained with."""

    def __init__(self, booster: Any, columns: tuple[FittedColumn, ...], classes: Tensor, actions: ActionTable) -> None:
        """A LightGBM booster, the columns it reads, and the action of each of its classes."""
        self.booster, self.columns, self.classes, self.actions = booster, columns, classes, actions

    @classmethod
    def fit(
        cls, log: LoggedData, held_out: LoggedData | None, rounds: int, patience: int, seed: int
    ) -> tuple["TreesPolicy", int]:
        """At most so many rounds, fewer where held-out rows get no better; returns the rounds kept too."""
        import lightgbm

        columns = tree_columns(log.contexts)
        classes = np.flatnonzero(log.action_count)
        place = np.full(log.n_actions, -1)
        place[classes] = np.arange(len(classes))
        categorical = [i for i, kind in enumerate(_kinds(columns)) if kind]

        def data(part: LoggedData, reference: Any = None) -> Any:
            features = _features(columns, part.contexts)[part.context_index]
            known = place[part.action] >= 0
            weight = None if part.row_weight is None else part.row_weight[known]
            label = place[part.action][known]
            return lightgbm.Dataset(
                features[known], label, weight=weight, reference=reference, categorical_feature=categorical
            )

        parameters = {
            "objective": "multiclass",
            "num_class": len(classes),
            "num_leaves": LEAVES,
            "learning_rate": STEP,
            "min_data_in_leaf": min(FEWEST_ROWS, max(1, log.n_rows // 10)),
            "lambda_l2": RIDGE,
            "max_bin": 63,
            "num_threads": _threads(log.n_rows),
            "seed": seed,
            "deterministic": True,
            "force_col_wise": True,
            "verbose": -1,
        }
        if held_out is not None and not (place[held_out.action] >= 0).any():
            held_out = None  # nothing in it that trees could be judged by
        train = data(log)
        judges = None if held_out is None else [data(held_out, train)]
        stop: list[Any] | None = None if held_out is None else [lightgbm.early_stopping(patience, verbose=False)]
        booster = lightgbm.train(parameters, train, rounds, valid_sets=judges, callbacks=stop)
        kept = booster.best_iteration if held_out is not None and booster.best_iteration > 0 else rounds
        booster = lightgbm.Booster(model_str=booster.model_to_string(num_iteration=kept))
        return cls(booster, columns, torch.from_numpy(classes), log.actions), kept

    @classmethod
    def from_text(
        cls, text: str, columns: tuple[FittedColumn, ...], classes: Tensor, actions: ActionTable
    ) -> "TreesPolicy":
        """The inverse of `text`."""
        import lightgbm

        return cls(lightgbm.Booster(model_str=text), columns, classes, actions)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """The booster's probabilities; an action it was not trained with has none."""
        found = self.booster.predict(_features(self.columns, contexts), num_threads=_threads(contexts.n_rows))
        probs = torch.zeros(contexts.n_rows, len(self.actions), dtype=torch.float64)
        probs[:, self.classes] = torch.from_numpy(np.asarray(found)).reshape(contexts.n_rows, -1)
        return probs.log()

    def text(self) -> str:
        """The trees in LightGBM's own format."""
        return str(self.booster.model_to_string())


def missing_trees() -> str:
    """Why there are no trees on this machine; empty where LightGBM can be loaded."""
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError) as error:
        return f"Boosted trees need LightGBM, which cannot be loaded here ({error}). Install the system's libgomp1."
    return ""


def _threads(rows: int) -> int:
    """One thread where the rows are so few that threads wait for each other longer than they work."""
    return torch.get_num_threads() if rows > MANY_ROWS else 1


def tree_columns(table: FeatureTable) -> tuple[FittedColumn, ...]:
    """The columns trees can read: numbers, and categories that are not ids by the hundred."""
    ids = set(id_columns(table))
    return tuple(
        IdColumn.fit(name, column) if isinstance(column, CategoricalColumn) else NumberColumn.fit(name, column)
        for name, column in table.items()
        if name not in ids and not isinstance(column, BagColumn)
    )


def _kinds(columns: tuple[FittedColumn, ...]) -> list[bool]:
    """Whether each number the trees read is a category."""
    return [isinstance(column, IdColumn) for column in columns for _ in range(_width(column))]


def _width(column: FittedColumn) -> int:
    return 1 if isinstance(column, IdColumn) else column.width


def _features(columns: tuple[FittedColumn, ...], table: FeatureTable) -> npt.NDArray[np.float32]:
    out = np.empty((table.n_rows, sum(map(_width, columns))), dtype=np.float32)
    start = 0
    for column in columns:
        values = column.indexed(table)
        assert isinstance(values, Tensor)
        out[:, start : start + _width(column)] = values.numpy().reshape(table.n_rows, -1)
        start += _width(column)
    return out
