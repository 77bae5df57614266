"""The scorers of this library, f(x, a) = h(x)·w_a + b_a: linear, two towers, and own items on another's states."""

from collections.abc import Iterator, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from offpolicy.errors import ParameterError
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.columns import FittedColumn
from offpolicy.models.encoders import MAX_CATEGORIES, DesignMatrix
from offpolicy.models.recipes import LinearRecipe, LoggingTwoTowerRecipe, TwoTowerRecipe
from offpolicy.models.scorer import OnnxGraph, Scorer, build_scorer, register_scorer
from offpolicy.models.towers import ActionTower, ContextTower, TowerShape
from offpolicy.seeding import torch_generator

KEPT_NUMBERS = 1 << 24
"""A linear scorer keeps the design of a whole table that has no more numbers than this (64 MB)."""


class LinearScorer(nn.Module, Scorer):
    """f(x, a) = x·θ_a + c_a over a design matrix, from zero."""

    is_linear = True
    default_ridge = 1.0

    def __init__(self, design: DesignMatrix, n_actions: int) -> None:
        """Start from zero weights and biases, the uniform policy."""
        super().__init__()
        self._design, self.dim = design, design.width
        self.n_actions = n_actions
        self.weights = nn.Parameter(torch.zeros(n_actions, design.width))
        self.bias = nn.Parameter(torch.zeros(n_actions))
        self._encoded: tuple[FeatureTable, Tensor] | None = None

    @property
    def design(self) -> DesignMatrix:
        """The design matrix x."""
        return self._design

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """The columns of the design."""
        return self.design.columns

    def states(self, contexts: FeatureTable) -> Tensor:
        """The rows of the design matrix; those of the last table are kept, callers do not write to them."""
        if self._encoded is None or self._encoded[0] is not contexts:
            self._encoded = (contexts, self.design.encode(contexts))
        return self._encoded[1].to(self.weights)

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        """The states of some entries of a table; those of all are kept if they are few, for the next call."""
        if contexts.n_rows * self.design.width > KEPT_NUMBERS:
            return self.states(contexts.take(numbers.numpy()))
        return self.states(contexts)[numbers]

    def actions(self) -> tuple[Tensor, Tensor]:
        """θ and c."""
        return self.weights, self.bias

    @torch.no_grad()
    def set_actions(self, weights: Tensor, bias: Tensor) -> bool:
        """Set θ and c."""
        self.weights.copy_(weights)
        self.bias.copy_(bias)
        return True

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply all scores by a factor."""
        self.weights.mul_(factor)
        self.bias.mul_(factor)

    def onnx_states(self, graph: OnnxGraph) -> str:
        """The encoded columns side by side and, in a quadratic design, the products of every two."""
        joined = str(graph.node("Concat", *map(graph.encoded, self.columns), axis=1))
        if not self.design.quadratic:
            return joined
        width = sum(column.width for column in self.columns)
        sides = [graph.constant(side.numpy()) for side in torch.tril_indices(width, width)]
        left, right = (graph.node("Gather", joined, side, axis=1) for side in sides)
        return str(graph.node("Concat", joined, graph.node("Mul", left, right), axis=1))

    def specification(self) -> dict[str, Any]:
        """The design and the number of actions."""
        return {"kind": "linear", "n_actions": self.n_actions, "design": self.design.to_json()}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "LinearScorer":
        """The inverse of `specification`."""
        return LinearScorer(DesignMatrix.from_json(recipe["design"]), recipe["n_actions"])


class _TwoTower(nn.Module, Scorer):
    """The item side of f(x, a) = v·(e_x * e_a) + c_a."""

    def __init__(self, item_tower: ActionTower, generator: torch.Generator) -> None:
        super().__init__()
        self.n_actions = item_tower.n_actions
        self.dim = item_tower.tower.dim
        self.item_tower = item_tower
        self.projection = nn.Parameter(torch.randn(self.dim, generator=generator) / self.dim)
        self.bias = nn.Parameter(torch.zeros(self.n_actions))

    def actions(self) -> tuple[Tensor, Tensor]:
        """v * e_a and c."""
        return self.projection * self.item_tower(), self.bias

    @torch.no_grad()
    def set_actions(self, weights: Tensor, bias: Tensor) -> bool:
        """Set the items' own embeddings and c, where a plain tower of ids leaves them free."""
        tower = self.item_tower.tower
        free = tower.plain and len(tower.blocks) == 1 and tower.blocks[0].linear is None
        if free:
            tower.embeddings[0].copy_(weights / self.projection)
            self.bias.copy_(bias)
        return free

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply all scores by a factor."""
        self.projection.mul_(factor)
        self.bias.mul_(factor)

    def items(self) -> Tensor:
        """e_a."""
        items: Tensor = self.item_tower()
        return items


class TwoTowerScorer(_TwoTower):
    """f(x, a) = v·(e_x * e_a) + c_a: a user tower over contexts, an item tower over all actions.

    In training mode both towers normalise with the batch they are given: contexts, and all actions.
    """

    def __init__(
        self, user_tower: ContextTower, item_tower: ActionTower, generator: torch.Generator | None = None
    ) -> None:
        """Join two towers of equal size; the projection v is drawn from `generator`."""
        super().__init__(item_tower, torch_generator(0, "projection") if generator is None else generator)
        if user_tower.tower.dim != self.dim:
            raise ParameterError(
                f"Both towers must end in states of one size, but they end in {user_tower.tower.dim} and {self.dim}."
            )
        self.user_tower = user_tower

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """The columns of the user tower."""
        return self.user_tower.index.columns

    def states(self, contexts: FeatureTable) -> Tensor:
        """e_x."""
        states: Tensor = self.user_tower(contexts)
        return states

    def onnx_states(self, graph: OnnxGraph) -> str:
        """The user tower at use time."""
        return self.user_tower.onnx_states(graph)

    def specification(self) -> dict[str, Any]:
        """The shapes of both towers and the ids of the contexts."""
        towers = {"user": self.user_tower.specification(), "items": self.item_tower.specification()}
        return {"kind": "two_tower", **towers}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "TwoTowerScorer":
        """The inverse of `specification`."""
        user_tower = ContextTower.from_specification(recipe["user"])
        return TwoTowerScorer(user_tower, ActionTower.from_specification(recipe["items"]))


class LoggingTwoTower(_TwoTower):
    """f(x, a) = v'·(sg(e_x) * e'_a) + c'_a: the states of another scorer, under stop-gradient, with own items.

    Training it leaves the other scorer alone: no gradient reaches it, `parameters` does not list it, and its states
    are taken as at use time, so that neither its mode nor its batch-norm statistics change. `state_dict` does hold
    it, so that a saved logging policy is complete.
    """

    def __init__(self, user: Scorer, item_tower: ActionTower, generator: torch.Generator | None = None) -> None:
        """Put own items on the states of `user`; the projection v' is drawn from `generator`."""
        super().__init__(item_tower, torch_generator(0, "projection") if generator is None else generator)
        if not isinstance(user, nn.Module):
            raise ParameterError(f"user must be a scorer and a torch module, but it is a {type(user).__name__}.")
        self.user = user

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """Those the other scorer reads."""
        return cast(Scorer, self.user).columns

    def states(self, contexts: FeatureTable) -> Tensor:
        """sg(e_x)."""
        modes = [(module, module.training) for module in self.user.modules()]
        self.user.eval()
        try:
            with torch.no_grad():
                return cast(Scorer, self.user).states(contexts).detach()
        finally:
            for module, mode in modes:
                module.training = mode

    def onnx_states(self, graph: OnnxGraph) -> str:
        """Those of the other scorer."""
        return cast(Scorer, self.user).onnx_states(graph)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of its own modules."""
        self.training = mode
        self.item_tower.train(mode)
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Its own parameters."""
        theirs = f"{prefix}.user." if prefix else "user."
        parameters = super().named_parameters(prefix, recurse, remove_duplicate)
        return (named for named in parameters if not named[0].startswith(theirs))

    def specification(self) -> dict[str, Any]:
        """The other scorer and the shape of its own items."""
        user = cast(Scorer, self.user).specification()
        return {"kind": "logging_two_tower", "user": user, "items": self.item_tower.specification()}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "LoggingTwoTower":
        """The inverse of `specification`."""
        return LoggingTwoTower(build_scorer(recipe["user"]), ActionTower.from_specification(recipe["items"]))


def linear_scorer(log: LoggedData, max_categories: int = MAX_CATEGORIES, *, quadratic: bool = False) -> LinearScorer:
    """A linear scorer for a log, its design (with products of features if quadratic) fitted on the log's contexts."""
    return LinearScorer(DesignMatrix.fit(log.contexts, max_categories, quadratic=quadratic), log.n_actions)


def two_tower_scorer(
    log: LoggedData,
    dim: int = 128,
    id_dim: int = 128,
    feature_dim: int = 32,
    seed: int = 0,
    *,
    user: Mapping[str, Any] | None = None,
    items: Mapping[str, Any] | None = None,
) -> TwoTowerScorer:
    """A two-tower scorer for a log, drawn from `seed`.

    A categorical or bag with more than 50 ids gets `id_dim`, any other `feature_dim`; `user` and `items` change the
    shape of one side (see `TowerShape`). The towers of the UIPS paper are

        Coat     two_tower_scorer(log)
        Yahoo    two_tower_scorer(log, items={"plain": True})
        KuaiRec  two_tower_scorer(log, user={"columns": {"history": 128}, "linear": {"history": 128}},
                                  items={"id_dim": 64, "feature_dim": 64, "plain": True})

    where Coat's and Yahoo's contexts are the user's id and features, Yahoo's actions have no features, and KuaiRec's
    `history` and `categories` are bags: the last twenty videos watched with pleasure, the categories of a video.
    """
    shape = TowerShape(dim, id_dim, feature_dim)
    user_tower = ContextTower.fit(log.contexts, shape.changed(user), torch_generator(seed, "two_tower", "user"))
    item_tower = ActionTower.fit(log.actions, shape.changed(items), torch_generator(seed, "two_tower", "items"))
    return TwoTowerScorer(user_tower, item_tower, torch_generator(seed, "two_tower", "projection"))


def logging_two_tower(
    user: Scorer,
    log: LoggedData,
    id_dim: int = 128,
    feature_dim: int = 32,
    seed: int = 0,
    *,
    items: Mapping[str, Any] | None = None,
) -> LoggingTwoTower:
    """The logging policy's scorer on the states of a policy; `items` as in `two_tower_scorer`."""
    shape = TowerShape(user.dim, id_dim, feature_dim).changed(items)
    item_tower = ActionTower.fit(log.actions, shape, torch_generator(seed, "logging_two_tower", "items"))
    return LoggingTwoTower(user, item_tower, torch_generator(seed, "logging_two_tower", "projection"))


register_scorer("linear", LinearRecipe, LinearScorer.from_specification)
register_scorer("two_tower", TwoTowerRecipe, TwoTowerScorer.from_specification)
register_scorer("logging_two_tower", LoggingTwoTowerRecipe, LoggingTwoTower.from_specification)
