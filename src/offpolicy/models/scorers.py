"""Scorers: modules that supply states, weights and bias to the exact softmax head, f(x, a) = h(x)·w_a + b_a."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from offpolicy.checks import check_choice
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.encoders import MAX_CATEGORIES, DesignMatrix


@runtime_checkable
class Scorer(Protocol):
    """What the softmax head, the uncertainty and the trainers ask of a model; any `nn.Module` with it plugs in."""

    n_actions: int

    def states(self, contexts: FeatureTable) -> Tensor:
        """h(x), (contexts, d), differentiable."""
        ...

    def actions(self) -> tuple[Tensor, Tensor]:
        """Weights (actions, d) and bias (actions,), differentiable."""
        ...

    def items(self) -> Tensor | None:
        """e_a, (actions, d), such that the last layer's gradient is g(x, a) = h(x)·e_a element-wise.

        None where the weights themselves are the last layer: then g(x, a) = h(x) in the block of action a.
        """
        ...

    def specification(self) -> dict[str, Any]:
        """A recipe ready for JSON, from which `build_scorer` makes the same module; weights are in `state_dict`."""
        ...

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


class LinearScorer(nn.Module):
    """f(x, a) = x·θ_a + c_a over a design matrix, from zero."""

    def __init__(self, design: DesignMatrix, n_actions: int) -> None:
        """Start from zero weights and biases, the uniform policy."""
        super().__init__()
        self.design = design
        self.n_actions = n_actions
        self.weights = nn.Parameter(torch.zeros(n_actions, design.width))
        self.bias = nn.Parameter(torch.zeros(n_actions))
        self._encoded: tuple[FeatureTable, Tensor] | None = None

    def states(self, contexts: FeatureTable) -> Tensor:
        """The rows of the design matrix; those of the last table are kept, callers do not write to them."""
        if self._encoded is None or self._encoded[0] is not contexts:
            self._encoded = (contexts, self.design.encode(contexts))
        return self._encoded[1].to(self.weights)

    def actions(self) -> tuple[Tensor, Tensor]:
        """θ and c."""
        return self.weights, self.bias

    def items(self) -> None:
        """None: θ is the last layer."""
        return

    def specification(self) -> dict[str, Any]:
        """The design and the number of actions."""
        return {"kind": "linear", "n_actions": self.n_actions, "design": self.design.to_json()}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "LinearScorer":
        """The inverse of `specification`."""
        return LinearScorer(DesignMatrix.from_json(recipe["design"]), recipe["n_actions"])


def linear_scorer(log: LoggedData, max_categories: int = MAX_CATEGORIES) -> LinearScorer:
    """A linear scorer for a log, its design fitted on the log's contexts."""
    return LinearScorer(DesignMatrix.fit(log.contexts, max_categories), log.n_actions)


def build_scorer(specification: dict[str, Any]) -> Scorer:
    """The scorer a specification describes; load its weights with `load_state_dict`."""
    kinds = {"linear": LinearScorer}
    kind = check_choice("The kind of a scorer", specification.get("kind"), kinds)
    return kinds[kind].from_specification(specification)
