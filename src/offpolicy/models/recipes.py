"""What the specification of a scorer may hold, so that a damaged one is refused before anything is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainValidator,
    PositiveInt,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from torch import Tensor

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


class FeaturesRecipe(DesignRecipe):
    """A design matrix beside id embeddings, which may have no columns of its own."""

    columns: list[ColumnRecipe]


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
        _require(len(columns) == len(blocks), "a tower has one block per column")
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
        _require(len(self.bag_totals) == len(others), "bag_totals has one entry per feature")
        return self

    @property
    def n_actions(self) -> int:
        """The number of actions."""
        return self.tower.blocks[0].size

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        """Refuse codes that point outside their embedding table and offsets that do not rise."""
        for i, block in enumerate(self.tower.blocks[1:]):
            if block.kind == "numbers":
                continue
            codes = tensors[f"{prefix}{'codes' if block.kind == 'bag' else 'values'}_{i}"]
            inside = not codes.numel() or 0 <= int(codes.min()) <= int(codes.max()) < block.size
            _require(inside, f"the feature {i} of the actions has codes outside its table")
            if block.kind == "bag":
                offsets = tensors[f"{prefix}offsets_{i}"]
                rising = int(offsets[0]) == 0 and int(offsets[-1]) == len(codes) and bool((offsets.diff() >= 0).all())
                _require(rising, f"the bags of feature {i} of the actions overlap")

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


@dataclass(frozen=True)
class ScorerShape:
    """What a specification says about the scorer it describes."""

    n_actions: int
    dim: int
    """The width of a state."""
    n_numbers: int
    """The numbers of all tensors of its `state_dict`; a file with more or fewer is refused before it is built."""
    columns: list[NumberRecipe | IdRecipe]
    """The context columns it reads."""


class ScorerRecipe(Strict):
    """What the specification of one kind of scorer may hold; each kind declares its fields."""

    kind: str

    def shape(self) -> ScorerShape:
        """What follows from the fields."""
        raise NotImplementedError

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Refuse (ValueError) tensors of the right shape with values that cannot be; their names follow the prefix."""


@dataclass(frozen=True)
class ScorerKind:
    """How scorers of one kind are checked and built from their specification."""

    recipe: type[ScorerRecipe]
    build: Callable[[dict[str, Any]], Any]
    """A fresh `Scorer` from a checked specification."""


SCORER_KINDS: dict[str, ScorerKind] = {}
"""By the `kind` of their specification; `register_scorer` adds one."""


def scorer_recipe(specification: Any) -> ScorerRecipe:
    """A specification checked by the recipe of its kind; a ValueError names the first thing wrong with it."""
    kind = specification.get("kind") if isinstance(specification, dict) else None
    if not isinstance(kind, str) or kind not in SCORER_KINDS:
        raise ValueError(f"the kind of a scorer must be one of {', '.join(SCORER_KINDS)}, but it is {kind!r}")
    try:
        return SCORER_KINDS[kind].recipe.model_validate(specification)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None


AnyScorerRecipe: TypeAlias = SerializeAsAny[Annotated[ScorerRecipe, PlainValidator(scorer_recipe)]]


class LinearRecipe(ScorerRecipe):
    """A linear scorer."""

    kind: Literal["linear"]
    n_actions: PositiveInt
    design: DesignRecipe

    def shape(self) -> ScorerShape:
        """A weight for every place of the design and a bias, each action."""
        width = self.design.width
        return ScorerShape(self.n_actions, width, self.n_actions * (width + 1), list(self.design.columns))


class TwoTowerRecipe(ScorerRecipe):
    """A two-tower scorer."""

    kind: Literal["two_tower"]
    user: ContextTowerRecipe
    items: ItemsRecipe

    @model_validator(mode="after")
    def _states_fit(self) -> "TwoTowerRecipe":
        _require(self.user.tower.dim == self.items.tower.dim, "both towers must end in states of one size")
        return self

    def shape(self) -> ScorerShape:
        """Both towers."""
        numbers = self.user.tower.n_numbers + self.items.n_numbers
        return ScorerShape(self.items.n_actions, self.user.tower.dim, numbers, list(self.user.index.columns))

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Check the features of the actions."""
        self.items.check_tensors(tensors, f"{prefix}item_tower.")


class LoggingTwoTowerRecipe(ScorerRecipe):
    """A scorer with own items on the states of another."""

    kind: Literal["logging_two_tower"]
    user: AnyScorerRecipe
    items: ItemsRecipe

    @model_validator(mode="after")
    def _states_fit(self) -> "LoggingTwoTowerRecipe":
        _require(self.user.shape().dim == self.items.tower.dim, "the items must be as wide as the states")
        return self

    def shape(self) -> ScorerShape:
        """The other scorer and its own items."""
        user = self.user.shape()
        return ScorerShape(self.items.n_actions, user.dim, user.n_numbers + self.items.n_numbers, user.columns)

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Check the features of the actions, the other scorer's too."""
        self.items.check_tensors(tensors, f"{prefix}item_tower.")
        self.user.check_tensors(tensors, f"{prefix}user.")


class NetworkRecipe(ScorerRecipe):
    """A network scorer."""

    kind: Literal["network"]
    n_actions: PositiveInt
    hidden: NonNegativeInt
    bins: PositiveInt
    rank: PositiveInt
    design: FeaturesRecipe
    ids: list[IdRecipe]

    def shape(self) -> ScorerShape:
        """Knots, two layers, embeddings, and a weight for every number of a state."""
        numbers = sum(column.width for column in self.design.columns if isinstance(column, NumberRecipe))
        width, rank, bins = self.design.width, self.rank, self.bins
        dim = width + self.hidden + rank * len(self.ids)
        layers = (width + bins * numbers + self.hidden + 2) * self.hidden + (bins + 1) * numbers
        embeddings = rank * sum(column.width for column in self.ids)
        columns = [*self.design.columns, *self.ids]
        return ScorerShape(self.n_actions, dim, layers + embeddings + self.n_actions * (dim + 1), columns)


class CandidateRecipe(ScorerRecipe):
    """A scorer that also looks at features of candidates."""

    kind: Literal["candidates"]
    base: AnyScorerRecipe
    candidate_design: DesignRecipe

    def shape(self) -> ScorerShape:
        """The other scorer and a weight for every place of the design."""
        base = self.base.shape()
        return ScorerShape(base.n_actions, base.dim, base.n_numbers + self.candidate_design.width, base.columns)

    def check_tensors(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        """Check those of the other scorer."""
        self.base.check_tensors(tensors, f"{prefix}base.")
