"""Building blocks of an exported policy: raw columns as inputs, the encoding of each kind of column as nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from torch import Tensor

from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.log import Id, Vocabulary
from offpolicy.models import FURTHEST, FittedColumn, IdColumn, NumberColumn

ML = "ai.onnx.ml"
OPSETS = {"": 17, ML: 2}
IR_VERSION = 8  # what runtimes of the last years read
NO_INTEGER = -(2**63)
"""Stands for a missing integer id; a missing text is the empty one."""
ROWS = "rows"


def onnx_module() -> Any:
    """The onnx package, or the error that says how to get it."""
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("Exporting to ONNX needs the onnx extra. Run: pip install offpolicy[onnx]") from None
    return onnx


def length_name(bag: str) -> str:
    """The input that holds the number of ids in each row of a bag."""
    return f"{bag}.length"


class Graph:
    """Nodes, constants and inputs of a model under construction; tensors are known by name."""

    def __init__(self) -> None:
        """Start empty."""
        self.onnx = onnx_module()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def _fresh(self, hint: str) -> str:
        return f"/{hint}/{len(self.nodes) + len(self.constants)}"

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """A column that the caller gives."""
        if any(known.name == name for known in self.inputs):
            raise ParameterError(f"Two inputs of the exported model would be called {name!r}. Rename the column.")
        element = getattr(self.onnx.TensorProto, kind)
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, name: str, tensor: str, kind: str, shape: Sequence[int | str]) -> None:
        """Give a tensor to the caller under this name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [tensor], [name]))
        element = getattr(self.onnx.TensorProto, kind)
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, element, list(shape)))

    def constant(self, values: npt.NDArray[Any]) -> str:
        """A fixed array."""
        name = self._fresh("constant")
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def floats(self, values: Tensor) -> str:
        """A fixed tensor, in single precision."""
        return self.constant(values.detach().float().numpy())

    def texts(self, values: Sequence[str]) -> str:
        """A fixed list of texts."""
        name = self._fresh("texts")
        data = [value.encode() for value in values]
        self.constants.append(self.onnx.helper.make_tensor(name, self.onnx.TensorProto.STRING, [len(data)], data))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", n_outputs: int = 1, **attributes: Any) -> Any:
        """Apply an operator; the name of its result, or the names where there are several."""
        names = [f"{self._fresh(op)}.{i}" for i in range(n_outputs)]
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names[0] if n_outputs == 1 else names

    def encoded(self, column: FittedColumn) -> str:
        """A column as a design matrix holds it, (rows, column.width)."""
        values = column_input(self, column)
        if isinstance(column, NumberColumn):
            return standardised(self, values, column)
        marked = one_hot(self, places(self, values, column), column.width)
        return marked if column.kind == "categorical" else bag_mean(self, marked, column)

    def embedded(self, column: FittedColumn, table: Tensor) -> str:
        """The row of the table of each id, (rows, dim); of a bag their mean."""
        if not isinstance(column, IdColumn):
            raise ParameterError(f"Column {column.name!r} holds numbers, which have no embedding. Use encoded.")
        vectors = self.node("Gather", self.floats(table), places(self, column_input(self, column), column))
        return bag_mean(self, vectors, column) if column.kind == "bag" else str(vectors)

    def model(self, metadata: dict[str, str]) -> Any:
        """The finished model."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "policy", self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="offpolicy")
        helper.set_model_props(model, metadata)
        self.onnx.checker.check_model(model)
        return model


def takes_text(vocabulary: Vocabulary) -> bool:
    """Whether the ids are text; integers and booleans (as 0 and 1) are given as int64."""
    return vocabulary.ids.dtype == pl.String


def missing_key(vocabulary: Vocabulary) -> int | str:
    """What stands for null among the inputs."""
    return "" if takes_text(vocabulary) else NO_INTEGER


def places(graph: Graph, values: str, column: IdColumn) -> str:
    """The place of each id, `len(ids)` for an unknown one."""
    vocabulary = column.ids.vocabulary
    known: list[Id] = vocabulary.to_list()
    missing = missing_key(vocabulary)
    if vocabulary.ids.dtype == pl.UInt64 or (None in known and missing in known):
        raise ParameterError(
            f"The ids of column {column.name!r} cannot be exported: ONNX has neither integers beyond 2⁶³ for them nor "
            f"a null beside the id {missing!r}. Use text for these ids."
        )
    keys = [missing if key is None else key for key in known]
    codes = list(range(len(known)))
    if not keys:  # the operator needs a key; this one is as unknown as any other
        keys, codes = [missing], [0]
    if takes_text(vocabulary):
        return str(
            graph.node(
                "LabelEncoder", values, domain=ML, keys_strings=keys, values_int64s=codes, default_int64=len(known)
            )
        )
    numbers = [int(key) for key in keys if key is not None]
    return str(
        graph.node(
            "LabelEncoder", values, domain=ML, keys_int64s=numbers, values_int64s=codes, default_int64=len(known)
        )
    )


def column_input(graph: Graph, column: FittedColumn) -> str:
    """The input of a column, and for a bag a second one with the number of ids in each row."""
    if isinstance(column, NumberColumn):
        if column.kind == "numeric":
            return graph.input(column.name, "DOUBLE", [ROWS])
        return graph.input(column.name, "FLOAT", [ROWS, column.width])
    kind = "STRING" if takes_text(column.ids.vocabulary) else "INT64"
    if column.kind == "categorical":
        return graph.input(column.name, kind, [ROWS])
    graph.input(length_name(column.name), "INT64", [ROWS])
    return graph.input(column.name, kind, [ROWS, f"most ids of {column.name}"])


def standardised(graph: Graph, values: str, column: NumberColumn) -> str:
    """(x − mean)/scale in double precision, cut and then rounded to single: (rows, width)."""
    if column.kind == "numeric":
        values = graph.node("Unsqueeze", values, graph.constant(np.array([1])))
    else:
        values = graph.node("Cast", values, to=graph.onnx.TensorProto.DOUBLE)
    varies = column.scale > 0
    centred = graph.node("Sub", values, graph.constant(column.mean[None]))
    scaled = graph.node("Div", centred, graph.constant(np.where(varies, column.scale, 1.0)[None]))
    ends = [graph.constant(np.array(end, dtype=np.float64)) for end in (-FURTHEST, FURTHEST)]
    cut = graph.node("Clip", scaled, *ends)
    if not varies.all():
        cut = graph.node("Where", graph.constant(varies[None]), cut, graph.constant(np.zeros((1, 1))))
    return str(graph.node("Cast", cut, to=graph.onnx.TensorProto.FLOAT))


def one_hot(graph: Graph, place: str, width: int) -> str:
    """One-hot vectors; a place outside becomes zeros."""
    depth = graph.constant(np.array(width))
    return str(graph.node("OneHot", place, depth, graph.constant(np.array([0, 1], dtype=np.float32)), axis=-1))


def within_length(graph: Graph, bag: str) -> str:
    """Which of the ids of a bag are not padding, (rows, most ids)."""
    length = graph.node("Unsqueeze", length_name(bag), graph.constant(np.array([1])))
    most = graph.node("Gather", graph.node("Shape", bag), graph.constant(np.array(1)))
    zero, one = graph.constant(np.array(0)), graph.constant(np.array(1))
    return str(graph.node("Less", graph.node("Range", zero, most, one), length))


def bag_mean(graph: Graph, vectors: str, column: IdColumn) -> str:
    """The mean over the ids of each bag, (rows, most ids, width) to (rows, width); zeros for an empty bag."""
    inside, one = within_length(graph, column.name), graph.constant(np.array(1))
    length = graph.node("Unsqueeze", length_name(column.name), graph.constant(np.array([1])))
    mask = graph.node("Unsqueeze", inside, graph.constant(np.array([2])))
    nothing = graph.constant(np.zeros(1, dtype=np.float32))
    kept = graph.node("Where", mask, vectors, nothing)
    total = graph.node("ReduceSum", kept, graph.constant(np.array([1])), keepdims=0)
    size = graph.node("Cast", graph.node("Max", length, one), to=graph.onnx.TensorProto.FLOAT)
    return str(graph.node("Div", total, size))
