"""What the specification of a scorer may hold, so that a damaged or forged one is refused before anything is built."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from offpolicy.log import Id


class Strict(BaseModel):
    """Exact types, no unknown keys, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


class NumberRecipe(Strict):
    """A fitted numeric or embedding column."""

    name: str
    kind: Literal["numeric", "embedding"]
    mean: Annotated[list[float], Field(min_length=1)]
    scale: list[NonNegativeFloat]

    @model_validator(mode="after")
    def _sizes_fit(self) -> "NumberRecipe":
        _require(len(self.mean) == len(self.scale), "mean and scale must have one length")
        _require(self.kind == "embedding" or len(self.mean) == 1, "a numeric column has one mean")
        return self

    @property
    def width(self) -> int:
        """The numbers per entry."""
        return len(self.mean)


class IdRecipe(Strict):
    """A fitted categorical or bag column."""

    name: str
    kind: Literal["categorical", "bag"]
    ids: list[Id]
    other: bool

    @property
    def width(self) -> int:
        """The places."""
        return len(self.ids) + self.other


ColumnRecipe: TypeAlias = Annotated[NumberRecipe | IdRecipe, Field(discriminator="kind")]


class ColumnsRecipe(Strict):
    """The columns of an encoder."""

    columns: Annotated[list[ColumnRecipe], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> "ColumnsRecipe":
        _require(len({column.name for column in self.columns}) == len(self.columns), "columns must have distinct names")
        return self


class DesignRecipe(ColumnsRecipe):
    """A design matrix."""

    quadratic: bool = False

    @property
    def width(self) -> int:
        """The places of all columns and, in a quadratic design, of the products of every two."""
        plain = sum(column.width for column in self.columns)
        return plain + plain * (plain + 1) // 2 if self.quadratic else plain


class BlockRecipe(Strict):
    """One column of a tower."""

    kind: Literal["categorical", "bag", "numbers"]
    size: PositiveInt
    dim: PositiveInt
    linear: PositiveInt | None
    unknown: bool

    @model_validator(mode="after")
    def _numbers_pass_through(self) -> "BlockRecipe":
        _require(self.kind != "numbers" or self.dim == self.size, "a block of numbers passes them through")
        return self

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors."""
        return (0 if self.kind == "numbers" else self.size * self.dim) + (self.linear or 0) * self.dim


class TowerRecipe(Strict):
    """A tower."""

    blocks: Annotated[list[BlockRecipe], Field(min_length=1)]
    dim: PositiveInt
    plain: bool
    momentum: Annotated[float, Field(ge=0, le=1)]

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors, statistics of the batch-norm and all."""
        width = sum(block.linear or block.dim for block in self.blocks)
        ending = 0 if self.plain else self.dim * width + 4 * width + 1
        return sum(block.n_numbers for block in self.blocks) + ending


class ContextTowerRecipe(Strict):
    """A tower over contexts and the encoder of its columns."""

    index: ColumnsRecipe
    tower: TowerRecipe

    @model_validator(mode="after")
    def _blocks_fit_columns(self) -> "ContextTowerRecipe":
        columns, blocks = self.index.columns, self.tower.blocks
        _require(len(columns) == len(blocks), "a tower has one block a column")
        for column, block in zip(columns, blocks, strict=True):
            kind = "numbers" if isinstance(column, NumberRecipe) else column.kind
            fits = (block.kind, block.size) == (kind, column.width)
            _require(fits, f"the block of column {column.name!r} does not fit it")
            _require(isinstance(column, NumberRecipe) or column.other, f"{column.name!r} has no place for the unknown")
        return self


class ItemsRecipe(Strict):
    """A tower over all actions; the codes or numbers of their features are tensors."""

    tower: TowerRecipe
    bag_totals: list[NonNegativeInt]

    @model_validator(mode="after")
    def _features_fit(self) -> "ItemsRecipe":
        first, *others = self.tower.blocks
        _require(first.kind == "categorical", "the first block of an item tower is the action's id")
        _require(len(self.bag_totals) == len(others), "bag_totals has one entry a feature")
        return self

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        return self.tower.blocks[0].size

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors, and of the projection and the bias that every item side has."""
        count = self.tower.n_numbers + self.tower.dim + self.n_actions
        for block, total in zip(self.tower.blocks[1:], self.bag_totals, strict=True):
            if block.kind == "bag":
                count += total + self.n_actions + 1
            else:
                count += self.n_actions * (block.size if block.kind == "numbers" else 1)
        return count


class LinearRecipe(Strict):
    """A linear scorer."""

    kind: Literal["linear"]
    n_actions: PositiveInt
    design: DesignRecipe

    @property
    def state_width(self) -> int:
        """The numbers of a state."""
        return self.design.width

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors."""
        return self.n_actions * (self.state_width + 1)

    @property
    def context(self) -> list[NumberRecipe | IdRecipe]:
        """The context columns it reads."""
        return list(self.design.columns)

    @property
    def item_sides(self) -> dict[str, ItemsRecipe]:
        """Item towers by the prefix of their tensors."""
        return {}


class TwoTowerRecipe(Strict):
    """A two-tower scorer."""

    kind: Literal["two_tower"]
    user: ContextTowerRecipe
    items: ItemsRecipe

    @model_validator(mode="after")
    def _states_fit(self) -> "TwoTowerRecipe":
        _require(self.state_width == self.items.tower.dim, "both towers must end in states of one size")
        return self

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        return self.items.n_actions

    @property
    def state_width(self) -> int:
        """The numbers of a state."""
        return self.user.tower.dim

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors."""
        return self.user.tower.n_numbers + self.items.n_numbers

    @property
    def context(self) -> list[NumberRecipe | IdRecipe]:
        """The context columns it reads."""
        return list(self.user.index.columns)

    @property
    def item_sides(self) -> dict[str, ItemsRecipe]:
        """Item towers by the prefix of their tensors."""
        return {"item_tower.": self.items}


class LoggingTwoTowerRecipe(Strict):
    """A scorer with own items on the states of another."""

    kind: Literal["logging_two_tower"]
    user: "ScorerRecipe"
    items: ItemsRecipe

    @model_validator(mode="after")
    def _states_fit(self) -> "LoggingTwoTowerRecipe":
        _require(self.user.state_width == self.items.tower.dim, "the items must be as wide as the states")
        return self

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        return self.items.n_actions

    @property
    def state_width(self) -> int:
        """The numbers of a state."""
        return self.user.state_width

    @property
    def n_numbers(self) -> int:
        """The numbers of its tensors."""
        return self.user.n_numbers + self.items.n_numbers

    @property
    def context(self) -> list[NumberRecipe | IdRecipe]:
        """The context columns it reads."""
        return self.user.context

    @property
    def item_sides(self) -> dict[str, ItemsRecipe]:
        """Item towers by the prefix of their tensors."""
        theirs = {f"user.{prefix}": items for prefix, items in self.user.item_sides.items()}
        return {"item_tower.": self.items, **theirs}


ScorerRecipe: TypeAlias = Annotated[LinearRecipe | TwoTowerRecipe | LoggingTwoTowerRecipe, Field(discriminator="kind")]
LoggingTwoTowerRecipe.model_rebuild()
