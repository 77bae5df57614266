"""Towers: columns of a table, each embedded, side by side, then batch-norm and a linear layer without bias."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, FeatureTable
from offpolicy.models.columns import Bags, FittedColumn, IdColumn, Indexed
from offpolicy.models.encoders import ColumnIndex
from offpolicy.models.scorer import OnnxGraph

MANY_CATEGORIES = 50
"""A categorical or bag with more ids than this counts as an id and gets `id_dim`, others get `feature_dim`."""

EMBEDDING_SPREAD = 0.1
"""Standard deviation of a fresh embedding; small, so that a step of training moves it noticeably."""

ACTION_ID = "action id"
"""The name of an action's own id among the columns of its tower."""

BlockKind: TypeAlias = Literal["categorical", "bag", "numbers"]


@dataclass(frozen=True)
class TowerShape:
    """The sizes of a tower: the state's `dim`, and how wide each column enters.

    `columns` overrides the embedding size of a column, `linear` puts a linear layer of that size behind it, both by
    column name (an action's own id is called "action id"). A `plain` tower ends with the columns side by side, without
    batch-norm and linear layer; their widths then add up to `dim`.
    """

    dim: int = 128
    id_dim: int = 128
    feature_dim: int = 32
    columns: Mapping[str, int] = field(default_factory=dict)
    linear: Mapping[str, int] = field(default_factory=dict)
    plain: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that are not positive integers."""
        sizes = {"dim": self.dim, "id_dim": self.id_dim, "feature_dim": self.feature_dim}
        for name, size in (*sizes.items(), *self.columns.items(), *self.linear.items()):
            check_number(name, size, Range(1, 2**20, integer=True))

    def changed(self, changes: Mapping[str, Any] | None) -> "TowerShape":
        """The same shape but for these fields."""
        for name in changes or {}:
            check_choice("A field of a tower's shape", name, (known.name for known in fields(self)))
        return replace(self, **(changes or {}))


@dataclass(frozen=True)
class Block:
    """One column of a tower: an embedding table of `size` rows, or `size` numbers passed through."""

    kind: BlockKind
    size: int
    dim: int
    linear: int | None = None
    unknown: bool = False
    """Whether the last row of the table stands for unknown ids."""

    @property
    def width(self) -> int:
        """The numbers it adds to the tower's input."""
        return self.dim if self.linear is None else self.linear


def blocks_of(columns: Iterable[FittedColumn], shape: TowerShape, own_ids: int | None = None) -> list[Block]:
    """The block of each fitted column; with `own_ids`, first that of an id for each of so many actions."""
    names: list[str] = []
    blocks: list[Block] = []
    if own_ids is not None:
        names.append(ACTION_ID)
        size = shape.columns.get(ACTION_ID, shape.id_dim)
        blocks.append(Block("categorical", own_ids, size, shape.linear.get(ACTION_ID)))
    for column in columns:
        names.append(column.name)
        linear = shape.linear.get(column.name)
        if isinstance(column, IdColumn):
            usual = shape.id_dim if len(column.ids) > MANY_CATEGORIES else shape.feature_dim
            kind: BlockKind = "bag" if column.kind == "bag" else "categorical"
            blocks.append(Block(kind, column.width, shape.columns.get(column.name, usual), linear, unknown=True))
        else:
            blocks.append(Block("numbers", column.width, column.width, linear))
    unknown = (set(shape.columns) | set(shape.linear)) - set(names)
    if unknown:
        raise ParameterError(
            f"A tower's sizes are given for {', '.join(sorted(unknown))}, but its columns are {', '.join(names)}."
        )
    return blocks


class BatchNorm(nn.BatchNorm1d):
    """Batch-norm whose statistics follow training and serve evaluation, from the first batch on.

    The first batch replaces the initial statistics, later ones count with 1/t until that falls to `momentum`; the
    variance kept is the one normalised with. A batch of one entry has no variance: it is normalised with the
    statistics kept and does not change them.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (n, width)."""
        mean, variance = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        if not self.training or len(input) < 2:
            # Copies: the backward pass may run after later batches have updated the statistics.
            return F.batch_norm(input, mean.clone(), variance.clone(), self.weight, self.bias, eps=self.eps)
        batches = cast(Tensor, self.num_batches_tracked).add_(1)
        share = max(cast(float, self.momentum), 1.0 / int(batches))
        batch_mean, spread = torch.zeros_like(mean), torch.zeros_like(variance)  # of this batch, for a momentum of 1
        out = F.batch_norm(input, batch_mean, spread, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
        mean.lerp_(batch_mean, share)
        variance.lerp_(spread * (1 - 1 / len(input)), share)  # torch returns the unbiased one
        return out


class Tower(nn.Module):
    """Columns → embeddings side by side → batch-norm → linear without bias; `plain` stops after the first arrow.

    The mean over an empty bag is zero, and nothing pads a bag. An id column of a fitted index has one more embedding
    than ids, for the unknown; it starts at zero, in the middle of the others.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        dim: int,
        *,
        plain: bool = False,
        momentum: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        """Draw the initial weights from `generator` (without one, from a fixed seed)."""
        super().__init__()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.blocks = tuple(blocks)
        self.dim, self.plain, self.momentum = dim, plain, momentum
        width = sum(block.width for block in self.blocks)
        if plain and width != dim:
            raise ParameterError(
                f"The columns of a plain tower must add up to its dim of {dim}, but they have {width} numbers: "
                f"{', '.join(f'{block.kind} {block.width}' for block in self.blocks)}. Change their sizes."
            )
        self.embeddings = nn.ParameterList(
            [_embedding(block, generator) for block in self.blocks if block.kind != "numbers"]
        )
        self.linears = nn.ParameterList(
            [_normal((b.linear, b.dim), b.dim**-0.5, generator) for b in self.blocks if b.linear is not None]
        )
        self.norm = None if plain else BatchNorm(width, momentum=momentum)
        self.last = None if plain else _normal((dim, width), width**-0.5, generator)

    def forward(self, columns: Sequence[Indexed]) -> Tensor:
        """(n, dim) of the columns in the order of the blocks."""
        embeddings, linears = iter(self.embeddings), iter(self.linears)
        like = next(self.parameters(), torch.empty(0))
        parts: list[Tensor] = []
        for block, column in zip(self.blocks, columns, strict=True):
            if isinstance(column, Bags):
                table = next(embeddings)
                codes, offsets = column.codes.to(table.device), column.offsets.to(table.device)
                part = F.embedding_bag(codes, table, offsets, mode="mean", include_last_offset=True)
            elif block.kind == "categorical":
                table = next(embeddings)
                part = F.embedding(column.to(table.device), table)
            else:
                part = column.to(like)
            parts.append(part if block.linear is None else F.linear(part, next(linears)))
        joined = torch.cat(parts, 1)
        return joined if self.norm is None or self.last is None else F.linear(self.norm(joined), self.last)

    def folded(self) -> tuple[Tensor, Tensor] | None:
        """Batch-norm at use time and linear layer as one matrix (width, dim) and shift (dim,); None if plain."""
        norm, last = self.norm, self.last
        if norm is None or last is None:
            return None
        mean, variance = cast(Tensor, norm.running_mean).double(), cast(Tensor, norm.running_var).double()
        scale = norm.weight.double() / (variance + norm.eps).sqrt()
        shift = norm.bias.double() - mean * scale
        return (last.double() * scale).T, last.double() @ shift

    def specification(self) -> dict[str, Any]:
        """Plain values that `from_specification` reads."""
        blocks = [asdict(block) for block in self.blocks]
        return {"blocks": blocks, "dim": self.dim, "plain": self.plain, "momentum": self.momentum}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "Tower":
        """A tower of the same shape, freshly drawn."""
        blocks = [Block(**block) for block in recipe["blocks"]]
        return Tower(blocks, recipe["dim"], plain=recipe["plain"], momentum=recipe["momentum"])


class ContextTower(nn.Module):
    """A tower over tables of contexts."""

    def __init__(self, index: ColumnIndex, tower: Tower) -> None:
        """Pair the tower with the index that encodes its columns."""
        super().__init__()
        self.index, self.tower = index, tower

    @staticmethod
    def fit(contexts: FeatureTable, shape: TowerShape, generator: torch.Generator | None = None) -> "ContextTower":
        """A fresh tower for the columns of a table."""
        index = ColumnIndex.fit(contexts)
        tower = Tower(blocks_of(index.columns, shape), shape.dim, plain=shape.plain, generator=generator)
        return ContextTower(index, tower)

    def forward(self, contexts: FeatureTable) -> Tensor:
        """e(x), (contexts, dim)."""
        states: Tensor = self.tower(self.index.encode(contexts))
        return states

    def onnx_states(self, graph: OnnxGraph) -> str:
        """e(x) at use time as ONNX nodes: each column embedded, then batch-norm and linear layer folded into one."""
        tower = self.tower
        embeddings, linears = iter(tower.embeddings), iter(tower.linears)
        parts: list[str] = []
        for column, block in zip(self.index.columns, tower.blocks, strict=True):
            is_id = isinstance(column, IdColumn)
            part = graph.embedded(column, next(embeddings)) if is_id else graph.encoded(column)
            if block.linear is not None:
                part = graph.node("MatMul", part, graph.floats(next(linears).T))
            parts.append(part)
        joined = str(graph.node("Concat", *parts, axis=1))
        folded = tower.folded()
        if folded is None:
            return joined
        matrix, shift = folded
        return str(graph.node("Add", graph.node("MatMul", joined, graph.floats(matrix)), graph.floats(shift[None])))

    def specification(self) -> dict[str, Any]:
        """Plain values that `from_specification` reads."""
        return {"index": self.index.to_json(), "tower": self.tower.specification()}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "ContextTower":
        """A tower of the same shape, freshly drawn."""
        return ContextTower(ColumnIndex.from_json(recipe["index"]), Tower.from_specification(recipe["tower"]))


class ActionTower(nn.Module):
    """A tower over all actions at once: an embedding for each action's own id, beside its features.

    All actions are always the batch, so the batch-norm keeps the statistics of the last training pass as they are.
    The encoded features are buffers, part of `state_dict`.
    """

    def __init__(self, tower: Tower, features: Sequence[Indexed]) -> None:
        """Pair the tower, whose first block is the action's own id, with the encoded features of all actions."""
        super().__init__()
        self.tower = tower
        self.n_actions = tower.blocks[0].size
        self.register_buffer("ids", torch.arange(self.n_actions), persistent=False)
        for i, column in enumerate(features):
            named = column._asdict() if isinstance(column, Bags) else {"values": column}
            for name, values in named.items():
                self.register_buffer(f"{name}_{i}", values)

    @staticmethod
    def fit(actions: ActionTable, shape: TowerShape, generator: torch.Generator | None = None) -> "ActionTower":
        """A fresh tower for the actions of a log."""
        index = None if actions.features is None else ColumnIndex.fit(actions.features)
        features = [] if index is None or actions.features is None else index.encode(actions.features)
        blocks = blocks_of([] if index is None else index.columns, shape, own_ids=len(actions))
        return ActionTower(Tower(blocks, shape.dim, plain=shape.plain, momentum=1.0, generator=generator), features)

    def forward(self) -> Tensor:
        """e_a, (actions, dim)."""
        columns: list[Indexed] = [self.get_buffer("ids")]
        for i, block in enumerate(self.tower.blocks[1:]):
            if block.kind == "bag":
                columns.append(Bags(self.get_buffer(f"codes_{i}"), self.get_buffer(f"offsets_{i}")))
            else:
                columns.append(self.get_buffer(f"values_{i}"))
        items: Tensor = self.tower(columns)
        return items

    def specification(self) -> dict[str, Any]:
        """Plain values that `from_specification` reads."""
        bags = {i: block.kind == "bag" for i, block in enumerate(self.tower.blocks[1:])}
        totals = [len(self.get_buffer(f"codes_{i}")) if is_bag else 0 for i, is_bag in bags.items()]
        return {"tower": self.tower.specification(), "bag_totals": totals}

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "ActionTower":
        """A tower of the same shape, freshly drawn; its features come with the weights."""
        tower = Tower.from_specification(recipe["tower"])
        n_actions = tower.blocks[0].size
        features: list[Indexed] = []
        for block, total in zip(tower.blocks[1:], recipe["bag_totals"], strict=True):
            if block.kind == "bag":
                offsets = torch.full((n_actions + 1,), total).index_fill_(0, torch.tensor(0), 0)
                features.append(Bags(torch.zeros(total, dtype=torch.int64), offsets))
            elif block.kind == "categorical":
                features.append(torch.zeros(n_actions, dtype=torch.int64))
            else:
                features.append(torch.zeros(n_actions, block.size))
        return ActionTower(tower, features)


def _normal(shape: tuple[int, int], spread: float, generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=generator) * spread)


def _embedding(block: Block, generator: torch.Generator) -> nn.Parameter:
    table = _normal((block.size, block.dim), EMBEDDING_SPREAD, generator)
    if block.unknown:
        with torch.no_grad():
            table[-1] = 0.0
    return table
