"""The rules of a log's rows: types, ranges, codes without gaps."""

from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.errors import LogError
from offpolicy.log.actions import ActionTable
from offpolicy.log.candidates import Candidates
from offpolicy.log.ids import Codes, sealed
from offpolicy.log.mapped import AT_ONCE, joined, mapped_file
from offpolicy.log.vocabulary import Vocabulary

ROW_ARRAYS: dict[str, Any] = {
    "context_index": np.int32,
    "action": np.int32,
    "reward": np.float64,
    "logging_prob": np.float64,
    "cluster": np.int32,
    "timestamp": np.int64,
    "row_weight": np.float64,
    "request": np.int32,
    "position": np.int32,
}


def sealed_rows(name: str, values: Any, dtype: Any, n_rows: int) -> npt.NDArray[Any]:
    """One value of this type for each row, read-only."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) != n_rows:
        raise LogError(f"{name} must hold one value for each of the {n_rows} rows, but its shape is {array.shape}.")
    if dtype is not np.float64 and array.dtype.kind not in "iu":
        raise LogError(f"{name} must hold integers, but it holds {array.dtype}.")
    if dtype is np.float64 and array.dtype.kind not in "iufb":
        raise LogError(f"{name} must hold numbers, but it holds {array.dtype}.")
    if array.dtype.kind in "iu" and array.size and array.dtype != dtype and dtype is not np.float64:
        info = np.iinfo(dtype)
        check_within(name, array, info.min, info.max)
    return sealed(array, dtype)


def integer_times(timestamp: Any) -> Any:
    """NumPy datetimes as microseconds, the unit that `read_log` gives them; anything else as it is."""
    times = np.asarray(timestamp)
    if timestamp is None or times.dtype.kind != "M":
        return timestamp
    if np.isnat(times).any():
        row = int(np.argmax(np.isnat(times)))
        raise LogError(f"timestamp must hold an instant in every row, but row {row} holds NaT. Drop the row.")
    return times.astype("datetime64[us]").astype(np.int64)


def check_within(name: str, values: npt.NDArray[Any], low: float, high: float) -> None:
    """Refuse values outside a range, naming the first."""
    if values.min() >= low and values.max() <= high:  # NaN fails both
        return
    row = int(np.argmin((values >= low) & (values <= high)))
    ends = "(0, 1]" if name == "logging_prob" else f"{low:g}..{high:g}"
    raise LogError(f"{name} must lie in {ends}, but row {row} holds {values[row]}. Fix or drop that row.")


def check_clusters(cluster: Codes | None, vocabulary: Vocabulary | None) -> None:
    """Refuse codes that are not contiguous or do not fit their vocabulary."""
    if cluster is None:
        if vocabulary is not None:
            raise LogError("A cluster vocabulary was given without the cluster of each row. Give both or neither.")
        return
    check_within("cluster", cluster, 0, len(cluster) - 1)
    unused = np.flatnonzero(np.bincount(cluster) == 0)
    if unused.size:
        raise LogError(f"cluster codes must be contiguous from 0, but no row has code {unused[0]}. Renumber them.")
    if vocabulary is not None and len(vocabulary) != int(cluster.max()) + 1:
        raise LogError(f"There are {int(cluster.max()) + 1} clusters but {len(vocabulary)} cluster ids. Match them.")


def compacted(index: Codes, size: int) -> tuple[npt.NDArray[np.int64], Codes]:
    """The positions still used, ascending, and the index into them."""
    used = used_of(index, size)
    renumbered = np.cumsum(used, dtype=np.int32)
    renumbered -= 1
    pieces = (renumbered[index[start : start + AT_ONCE]] for start in range(0, len(index), AT_ONCE))
    return np.flatnonzero(used), joined(pieces, len(index), np.int32, mapped_file(index))


def used_of(index: Codes, size: int) -> npt.NDArray[np.bool_]:
    """Which of so many positions an index points at."""
    used = np.zeros(size, dtype=np.bool_)
    for start in range(0, len(index), AT_ONCE):  # an index is widened while it is used
        used[index[start : start + AT_ONCE]] = True
    return used


def check_offered(candidates: Candidates, actions: ActionTable, context_index: Codes, action: Codes) -> None:
    """Refuse sets of other actions than the table's, and rows whose action was not on offer."""
    if candidates.vocabulary is not actions.vocabulary and candidates.vocabulary != actions.vocabulary:
        raise LogError("Candidates must be actions of the log's table, in its codes. Recode them with `recoded`.")
    outside = candidates.places(context_index, action) < 0
    if outside.any():
        row = int(np.argmax(outside))
        named = actions.vocabulary.decode([int(action[row])])[0]
        raise LogError(f"Row {row} shows the action {named!r}, which is not among its candidates. Fix or drop it.")
