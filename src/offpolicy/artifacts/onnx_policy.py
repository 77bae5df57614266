"""A policy that is an ONNX file: one that this library exported, or anybody's classifier."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from offpolicy.artifacts.onnx_graph import length_name
from offpolicy.artifacts.onnx_parity import padded, session_of
from offpolicy.errors import ArtifactError
from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable

PROBABILITIES = ("probabilities", "output_probability", "probs", "probability")
KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(string)": object}


@dataclass(frozen=True)
class OnnxPolicy:
    """The probabilities that an ONNX model gives to the actions of each context.

    Its inputs are the context columns by name, or one matrix of the numeric ones. An output called log_probabilities or
    probabilities holds a number for each action, in the order of the log's actions unless the file lists its own
    (`actions`, JSON in its metadata); a classifier may also answer with a mapping from id to probability.
    """

    session: Any
    path: Path
    missing: Mapping[str, Any]
    """What stands for a missing id, by column."""
    ids: list[Any] | None
    """The actions in the order of its outputs; None for the log's."""
    held_out: Any = None
    """What a saved policy says of the rows it was learned from, where the file was exported from one."""

    @classmethod
    def load(cls, path: Path) -> "OnnxPolicy":
        """Open a file; nothing is run yet."""
        if not path.is_file():
            raise ArtifactError(f"{path} does not exist. Check the path.")
        session = session_of(path)
        about = session.get_modelmeta().custom_metadata_map
        try:
            missing, ids, held_out = (
                json.loads(about.get(name, other))
                for name, other in (("missing", "{}"), ("actions", "null"), ("held_out", "null"))
            )
        except ValueError:
            raise ArtifactError(f"{path} has metadata that cannot be read. Export it again.") from None
        known = isinstance(missing, dict) and (ids is None or isinstance(ids, list))
        if not known:
            raise ArtifactError(f"{path} has metadata that cannot be read. Export it again.")
        return cls(session, path, missing, ids, held_out)

    def __call__(self, contexts: FeatureTable, actions: list[Any]) -> npt.NDArray[np.float64]:
        """Probabilities, (contexts, actions)."""
        names = [one.name for one in self.session.get_outputs()]
        wanted = next((one for one in ("log_probabilities", *PROBABILITIES) if one in names), names[-1])
        try:
            (answer,) = self.session.run([wanted], self._inputs(contexts))
        except Exception as error:  # the runtime raises kinds of its own
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArtifactError(f"{self.path} does not run on the contexts of this log: {reason}.") from None
        if isinstance(answer, list):  # of mappings
            return np.array([[float(one.get(action, 0.0)) for action in actions] for one in answer])
        found = np.exp(answer.astype(np.float64)) if wanted == "log_probabilities" else answer.astype(np.float64)
        ids = actions if self.ids is None else self.ids
        if found.ndim != 2 or found.shape[1] != len(ids):
            raise ArtifactError(
                f"{self.path}: its output {wanted!r} has the shape {found.shape}, but {len(ids)} actions were "
                "expected, in the order of the log's ids."
            )
        place = {action: number for number, action in enumerate(ids)}
        found = found / found.sum(1, keepdims=True)  # single precision
        empty = np.zeros((len(found), 1))
        return np.hstack([found, empty])[:, [place.get(action, len(ids)) for action in actions]]

    def _inputs(self, contexts: FeatureTable) -> dict[str, npt.NDArray[Any]]:
        asked = self.session.get_inputs()
        if len(asked) == 1 and asked[0].name not in contexts:
            return {asked[0].name: _matrix(contexts, KINDS.get(asked[0].type, np.float32))}
        return {one.name: self._column(one.name, one.type, one.shape, contexts) for one in asked}

    def _column(self, name: str, kind: str, shape: Any, contexts: FeatureTable) -> npt.NDArray[Any]:
        bag = next((one for one in contexts if length_name(one) == name), None)
        if bag is not None and name not in contexts:
            return np.diff(getattr(contexts[bag], "offsets"))  # noqa: B009 - a bag's own
        if name not in contexts:
            raise ArtifactError(f"{self.path} asks for a column {name!r} that is no context of the log.")
        column = contexts[name]
        if isinstance(column, CategoricalColumn | BagColumn):
            fill = self.missing.get(name, "" if kind == "tensor(string)" else 0)
            ids = [fill if one is None else one for one in column.vocabulary.to_list()]
            plain = np.array([str(one) for one in ids] if kind == "tensor(string)" else ids, dtype=KINDS.get(kind))
            values = plain[column.codes]
            if isinstance(column, BagColumn):
                return padded(column, values, fill)
        else:
            values = column.values.astype(KINDS.get(kind, np.float32))
        return values[:, None] if values.ndim == 1 and len(shape) == 2 else values


def _matrix(contexts: FeatureTable, kind: Any) -> npt.NDArray[Any]:
    columns = [getattr(one, "values", None) for one in contexts.values() if not isinstance(one, CategoricalColumn)]
    if len(columns) < len(contexts) or any(one is None for one in columns):
        raise ArtifactError("The ONNX file takes one matrix, but some context columns are no numbers. Name its inputs.")
    return np.column_stack(columns).astype(kind)  # type: ignore[arg-type]
