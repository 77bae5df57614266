"""The actions there are, and the codes of those that were logged."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.features import FeatureTable
from offpolicy.log.ids import UNKNOWN, Codes, codes_in, id_series, owned
from offpolicy.log.vocabulary import Vocabulary


@dataclass(frozen=True)
class ActionTable:
    """All actions there are: the user's ids in code order and, where known, their features."""

    vocabulary: Vocabulary
    features: FeatureTable | None = None

    def __post_init__(self) -> None:
        """Check that there is a choice to make and that the features fit."""
        if len(self.vocabulary) < 2:
            raise LogError(
                f"A log needs at least two actions to choose between, but there is {len(self.vocabulary)}: "
                f"{self.vocabulary.to_list()}. Give the full list of actions if only one was ever logged."
            )
        if self.features is not None and self.features.n_rows != len(self.vocabulary):
            raise LogError(
                f"Action features must have one entry per action, but there are {len(self.vocabulary)} actions "
                f"and {self.features.n_rows} entries."
            )

    @classmethod
    def numbered(cls, count: int) -> "ActionTable":
        """Actions called 0, 1, ..., count − 1."""
        return cls(Vocabulary(range(int(count))))

    def __len__(self) -> int:
        """The number of actions."""
        return len(self.vocabulary)


def coded_actions(action: Any, actions: Any) -> tuple[ActionTable, Codes]:
    """The action table, and the code of each logged action."""
    if isinstance(actions, bool):
        raise ParameterError(f"actions must be a number of actions or their ids, but it is {actions!r}.")
    if isinstance(actions, int | np.integer):
        return ActionTable.numbered(int(actions)), action
    ids = id_series(action).alias("action")
    if ids.null_count():
        row = ids.is_null().arg_max()
        raise LogError(f"action must name an action in every row, but row {row} holds null. Drop that row.")
    if isinstance(actions, ActionTable):
        table = actions
    elif isinstance(actions, Vocabulary):
        table = ActionTable(actions)
    else:
        table = ActionTable(Vocabulary.of(ids) if actions is None else Vocabulary(actions))
    codes = codes_in(ids, table.vocabulary.ids)
    if len(codes) and codes.min() == UNKNOWN:
        row = int(codes.argmin())
        raise LogError(
            f"action must be one of the {len(table)} ids in actions, but row {row} holds {ids[row]!r}. "
            "Add the id to actions or drop the row."
        )
    return table, owned(codes)
