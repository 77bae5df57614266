"""What a scorer is: the protocol that the library relies on, and the kinds that saved ones are built from."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt
from torch import Tensor, nn

from offpolicy.checks import check_choice
from offpolicy.errors import ParameterError
from offpolicy.log import FeatureTable
from offpolicy.models.columns import FittedColumn
from offpolicy.models.encoders import DesignMatrix
from offpolicy.models.recipes import SCORER_KINDS, ScorerKind, ScorerRecipe


class OnnxGraph(Protocol):
    """The building blocks a scorer gets to describe its states as ONNX nodes; tensors are known by name."""

    def node(self, op: str, *inputs: str, **attributes: Any) -> Any:
        """Apply an ONNX operator; the name of its result."""
        ...

    def constant(self, values: npt.NDArray[Any]) -> str:
        """A fixed array."""
        ...

    def floats(self, values: Tensor) -> str:
        """A fixed tensor, in single precision."""
        ...

    def encoded(self, column: FittedColumn) -> str:
        """A column as a design matrix holds it, (rows, column.width): standardised, one-hot, or the mean of one-hot."""
        ...

    def embedded(self, column: FittedColumn, table: Tensor) -> str:
        """The row of the table of each id, (rows, dim); of a bag their mean. The last row is for unknown ids."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A model of scores f(x, a) = h(x)·w_a + b_a; any `nn.Module` that has this plugs in everywhere.

    Inherit from it (`class Mine(nn.Module, Scorer)`) to write only what is abstract and keep the defaults. To save and
    load, `register_scorer` its kind; to export, write `onnx_states`.
    """

    n_actions: int
    dim: int
    """The width of a state."""

    @property
    @abstractmethod
    def columns(self) -> tuple[FittedColumn, ...]:
        """The fitted context columns it reads."""
        ...

    @property
    def is_linear(self) -> bool:
        """Whether `actions()` are its parameters and nothing else is learned, so that its likelihood is concave."""
        return False

    @property
    def default_ridge(self) -> float:
        """The penalty κ/2·|θ|² of a fit where none is given."""
        return 0.0

    @property
    def design(self) -> DesignMatrix | None:
        """The design matrix that its states are, where they are one."""
        return None

    @abstractmethod
    def states(self, contexts: FeatureTable) -> Tensor:
        """h(x), (contexts, d), differentiable."""
        ...

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        """h(x) of some entries of a table; a scorer may keep what it needs of the whole table for the next call."""
        return self.states(contexts.take(numbers.numpy()))

    @abstractmethod
    def actions(self) -> tuple[Tensor, Tensor]:
        """Weights (actions, d) and bias (actions,), differentiable."""
        ...

    def items(self) -> Tensor | None:
        """e_a, (actions, d), such that the last layer's gradient is g(x, a) = h(x)·e_a element-wise.

        None where the weights themselves are the last layer: then g(x, a) = h(x) in the block of action a.
        """
        return None

    @abstractmethod
    def specification(self) -> dict[str, Any]:
        """A recipe ready for JSON, from which `build_scorer` makes the same module; weights are in `state_dict`."""
        ...

    def onnx_states(self, graph: OnnxGraph) -> str:
        """h(x) as ONNX nodes over the raw columns, (rows, d); returns the name of the result."""
        raise ParameterError(
            f"A scorer of type {type(self).__name__} does not say how its states are computed in ONNX. Write its "
            "onnx_states, or serve the saved policy with load_policy."
        )

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As in `nn.Module`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """As in `nn.Module`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As in `nn.Module`."""
        ...

    def train(self, mode: bool = True) -> Any:
        """As in `nn.Module`."""
        ...

    def eval(self) -> Any:
        """As in `nn.Module`."""
        ...


def set_actions(scorer: Scorer, weights: Tensor, bias: Tensor) -> bool:
    """Make these a scorer's `actions()`; False, and nothing changes, for one that has no `set_actions` or none free."""
    own: Any = getattr(scorer, "set_actions", None)
    return own is not None and bool(own(weights, bias))


def sharpen(scorer: Scorer, factor: float) -> bool:
    """Multiply all scores by a factor; False, and nothing changes, for a scorer that has no `sharpen`."""
    own: Any = getattr(scorer, "sharpen", None)
    if own is not None:
        own(factor)
    return own is not None


def register_scorer(kind: str, recipe: type[ScorerRecipe], build: Callable[[dict[str, Any]], Scorer]) -> None:
    """Let scorers whose specification says `"kind": kind` be saved and loaded."""
    known = SCORER_KINDS.get(kind)
    if known is not None and known != ScorerKind(recipe, build):
        raise ParameterError(f"There is another scorer of the kind {kind!r}. Register yours under another name.")
    SCORER_KINDS[kind] = ScorerKind(recipe, build)


def build_scorer(specification: dict[str, Any]) -> Scorer:
    """The scorer a specification describes; load its weights with `load_state_dict`."""
    kind = check_choice("The kind of a scorer", specification.get("kind"), SCORER_KINDS)
    scorer: Scorer = SCORER_KINDS[kind].build(specification)
    return scorer
