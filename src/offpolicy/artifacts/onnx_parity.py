"""Whether an exported policy says what the library says, on real contexts, run by onnxruntime."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.artifacts.onnx_graph import length_name, missing_key, takes_text
from offpolicy.artifacts.ranking import best
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.errors import ArtifactError, MissingExtraError
from offpolicy.log import BagColumn, CategoricalColumn, EmbeddingColumn, FeatureTable, NumericColumn, Vocabulary
from offpolicy.models import IdColumn

TOLERANCE = 1e-4
"""Largest difference of log π, relative to 1 + |log π|; single precision leaves about a hundredth of it."""

LEAST = float(np.finfo(np.float32).tiny)
"""Probabilities below this are zero in single precision."""

TILE_ROWS = 256


@dataclass(frozen=True)
class Parity:
    """How an exported policy compares with the library."""

    rows: int
    """Contexts compared."""
    same_lists: int
    """Contexts whose top k are the same in the same order; in the others, equals within the tolerance swapped."""
    largest_difference: float
    """Largest |log π − log π'|/(1 + |log π|) over all contexts and actions."""


def runtime_module() -> Any:
    """The package that runs models, or the error that says how to get it."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError(
            "Checking an ONNX file needs the onnx extra. Run: pip install offpolicy[onnx]"
        ) from None
    return onnxruntime


def check_parity(saved: SavedPolicy, onnx_path: str | Path, contexts: Any, k: int = 10, *, rows: int = 1000) -> Parity:
    """Compare top k and probabilities on the first `rows` contexts; a disagreement is an `ArtifactError`."""
    session = session_of(Path(onnx_path))
    result = Parity(0, 0, 0.0)
    for table in _tables(saved, contexts, rows):
        result = _compared(saved, session, table, k, result)
    if not result.rows:
        raise ArtifactError("There is no context to compare the exported policy on. Give at least one.")
    return result


def session_of(path: Path) -> Any:
    """The model of a file, ready to run."""
    runtime = runtime_module()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = 1
    try:
        return runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises kinds of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"{path} cannot be run as an ONNX model: {reason}. Export the policy again.") from None


def _tables(saved: SavedPolicy, contexts: Any, rows: int) -> Iterator[FeatureTable]:
    left = rows
    for encoded, _ in saved.encoded(contexts):
        for start in range(0, min(encoded.table.n_rows, left), TILE_ROWS):
            yield encoded.table.take(slice(start, min(start + TILE_ROWS, left)))
        left -= encoded.table.n_rows
        if left <= 0:
            return


def _compared(saved: SavedPolicy, session: Any, table: FeatureTable, k: int, before: Parity) -> Parity:
    names = ["log_probabilities", "top_actions", "top_ids", "probability"]
    try:
        log_prob, top, ids, probability = session.run(names, model_inputs(saved, table))
    except Exception as error:  # as above
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArtifactError(f"The exported model does not run on these contexts: {reason}.") from None
    k = min(k, top.shape[1])
    expected = saved.log_probs(table).double()
    ours, _ = best(saved.policy, table, k)
    worst = _largest_difference(expected.numpy(), log_prob.astype(np.float64))
    chosen = np.take_along_axis(expected.numpy(), top, 1)
    listed = _largest_difference(np.maximum(chosen, np.log(LEAST)), np.log(np.maximum(probability, LEAST)))
    swapped = _largest_difference(expected.gather(1, ours).numpy(), chosen[:, :k])
    if max(worst, listed, swapped) > TOLERANCE or not _ids_agree(saved, top, ids):
        raise ArtifactError(
            f"The exported policy disagrees with the library: log π by up to {max(worst, listed):.3g} and the top {k} "
            f"by up to {swapped:.3g}, relative to 1 + |log π|, where {TOLERANCE:g} is allowed. Nothing was written."
        )
    same = int((ours.numpy() == top[:, :k]).all(1).sum())
    return Parity(before.rows + table.n_rows, before.same_lists + same, max(before.largest_difference, worst))


def _largest_difference(expected: npt.NDArray[Any], actual: npt.NDArray[Any]) -> float:
    if np.isnan(actual).any():
        return float("inf")
    with np.errstate(invalid="ignore"):
        relative = np.abs(expected - actual) / (1 + np.abs(expected))
    return float(np.where(expected == actual, 0.0, np.nan_to_num(relative, nan=np.inf)).max())


def _ids_agree(saved: SavedPolicy, top: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> bool:
    return saved.actions.vocabulary.decode(top.ravel()) == ids.ravel().tolist()


def model_inputs(saved: SavedPolicy, table: FeatureTable) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table as the inputs of the exported policy."""
    inputs: dict[str, npt.NDArray[Any]] = {}
    for fitted in saved.policy.scorer.columns:
        column = table[fitted.name]
        if isinstance(column, NumericColumn | EmbeddingColumn):
            inputs[fitted.name] = np.array(column.values)
            continue
        assert isinstance(fitted, IdColumn)
        values = _raw_ids(column.vocabulary, fitted.ids.vocabulary)[column.codes]
        if isinstance(column, CategoricalColumn):
            inputs[fitted.name] = values
        else:
            inputs[fitted.name] = padded(column, values, missing_key(fitted.ids.vocabulary))
            inputs[length_name(fitted.name)] = np.diff(column.offsets)
    return inputs


def _raw_ids(vocabulary: Vocabulary, fitted: Vocabulary) -> npt.NDArray[Any]:
    """The ids of a vocabulary as inputs; null, where it is unknown, as an unused text or number."""
    missing = missing_key(fitted)
    known = set(fitted.to_list())
    if None not in known and missing in known:
        missing = next(f"missing {i}" for i in range(len(known) + 1) if f"missing {i}" not in known)
    values = [missing if value is None else value for value in vocabulary.to_list()]
    if takes_text(fitted):
        return np.array([str(value) for value in values], dtype=object)
    return pl.Series([int(value) for value in values], dtype=pl.Int64).to_numpy()


def padded(bags: BagColumn, values: npt.NDArray[Any], filler: Any) -> npt.NDArray[Any]:
    """Bags as a matrix, shorter ones filled up at the end."""
    sizes = np.diff(bags.offsets)
    matrix = np.full((len(bags), int(sizes.max(initial=0))), filler, dtype=values.dtype)
    matrix[np.arange(matrix.shape[1]) < sizes[:, None]] = values
    return matrix
