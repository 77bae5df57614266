"""The state h(x) of one context in NumPy, from the values of a request: what the scorers of the library do in torch.

A value that is missing or of the wrong kind never raises: a number counts as the mean of the log (or as 0 where the log
was read so), an id as unknown, a bag as empty. The names of such columns are noted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, npt.NDArray[Any]]
Values: TypeAlias = Mapping[str, Any]

FURTHEST = 1e6
"""Standard deviations from the mean beyond which a number is cut, as in training."""
LARGEST = 1e100
"""Larger numbers stand for none, as in a log."""
EPS = 1e-5
"""What torch's batch-norm adds to a variance."""
PLAIN = {float, int}
NUMBERS = (float, int, np.floating, np.integer)
LISTS = (list, tuple, np.ndarray)


@dataclass(frozen=True)
class Offer:
    """The actions on offer that a policy knows."""

    codes: npt.NDArray[np.int64]
    """Theirs, in the policy's table."""
    places: Sequence[int] = ()
    """Where each stands in the list of the request; none where the request lists nothing."""
    listed: int = 0
    """The length of that list."""


class State(Protocol):
    """What turns the values of a request into h(x)."""

    def __call__(self, values: Values, notes: list[str]) -> Floats:
        """h(x), (d,); names of columns whose value could not be used are appended to `notes`."""
        ...


class Numbers:
    """All numeric and embedding columns of an encoder, standardised and cut in one go."""

    def __init__(self, recipes: Sequence[Mapping[str, Any]]) -> None:
        """Take the recipes of these columns."""
        self.columns = [(str(r["name"]), len(r["mean"]), r["kind"] == "numeric") for r in recipes]
        self.mean = np.array([m for r in recipes for m in r["mean"]], dtype=np.float64)
        self.fill = np.array([f for r in recipes for f in r.get("fill", r["mean"])], dtype=np.float64)
        scale = np.array([s for r in recipes for s in r["scale"]], dtype=np.float64)
        self.factor = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        self.names = [name for name, width, _ in self.columns for _ in range(width)]

    def __call__(self, values: Values, notes: list[str]) -> Floats:
        """The standardised numbers; those of `fill` where there is none."""
        raw: list[Any] = []
        for name, width, single in self.columns:
            value = values.get(name)
            if single:
                raw.append(value if type(value) in PLAIN else number(value))
            else:
                raw += _vector(value, width)
        try:
            given = np.array(raw, dtype=np.float64)
        except OverflowError:
            given = np.array([number(value) for value in raw])
        usable = np.abs(given) <= LARGEST
        if not usable.all():
            notes += dict.fromkeys(self.names[i] for i in np.flatnonzero(~usable))
            given[~usable] = self.fill[~usable]
        standard = np.maximum(np.minimum((given - self.mean) * self.factor, FURTHEST), -FURTHEST)
        return standard.astype(np.float32).astype(np.float64)


class Ids:
    """A fitted categorical or bag column: the place of each id."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        """Take its recipe."""
        self.name, self.is_bag = str(recipe["name"]), recipe["kind"] == "bag"
        self.known = KnownIds(recipe["ids"])
        self.other = bool(recipe["other"])
        self.width = len(self.known) + self.other

    def places(self, values: Values, notes: list[str]) -> list[int]:
        """The places of its ids, `len(self.known)` for an unknown one."""
        value = values.get(self.name)
        if self.is_bag:
            if isinstance(value, np.ndarray):
                value = value.tolist()
            found = self.known.codes(value) if isinstance(value, list | tuple) else [-1]
            if -1 in found:
                notes.append(self.name)
            if not isinstance(value, list | tuple):
                return []
        else:
            found = self.known.codes((value,))
            if found[0] < 0:
                notes.append(self.name)
        return [len(self.known) if place < 0 else place for place in found]

    def shares(self, values: Values, notes: list[str]) -> Floats:
        """A one-hot vector, or the mean of those of a bag."""
        out = np.zeros(self.width)
        places = self.places(values, notes)
        for place in places:
            if place < self.width:
                out[place] += 1 / len(places)
        return out


class KnownIds:
    """Codes of ids of one type: text, integers or booleans, and perhaps null."""

    def __init__(self, ids: Sequence[Any]) -> None:
        """Number the ids."""
        self._codes = {value: code for code, value in enumerate(ids)}
        self._boolean = any(isinstance(value, bool) for value in ids)

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._codes)

    def codes(self, values: Sequence[Any]) -> list[int]:
        """The code of each value, −1 where it is unknown."""
        get = self._codes.get
        try:
            found = [get(value, -1) for value in values]
        except TypeError:  # a list among them
            found = [get(value, -1) if isinstance(value, str | int | float | None) else -1 for value in values]
        for i, value in enumerate(values):
            if (type(value) is bool and not self._boolean) or (
                self._boolean and value is not None and not isinstance(value, bool | np.bool_)
            ):  # for Python, True is 1
                found[i] = -1
        return found


class Design:
    """A design matrix's row: numbers standardised, ids one-hot, bags as means, in the order of the columns."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        """Take the recipe of a design."""
        columns = recipe["columns"]
        self.numbers = Numbers([column for column in columns if "mean" in column])
        self.ids: list[tuple[int, Ids]] = []
        places: list[int] = []
        start = 0
        for column in columns:
            if "mean" in column:
                places += range(start, start + len(column["mean"]))
                start += len(column["mean"])
            else:
                ids = Ids(column)
                self.ids.append((start, ids))
                start += ids.width
        self.number_places = np.array(places, dtype=np.int64)
        self.width = start
        self.pairs = np.tril_indices(start) if recipe.get("quadratic") else None

    def __call__(self, values: Values, notes: list[str]) -> Floats:
        """The row."""
        numbers = self.numbers(values, notes)
        if not self.ids:
            plain = numbers
        else:
            plain = np.zeros(self.width)
            plain[self.number_places] = numbers
            for start, ids in self.ids:
                plain[start : start + ids.width] = ids.shares(values, notes)
        if self.pairs is None:
            return plain
        return np.concatenate([plain, plain[self.pairs[0]] * plain[self.pairs[1]]])


class CandidateScores:
    """What features of candidates, lists beside the list of candidates as in a log, add to their scores: z·v."""

    def __init__(self, recipe: Mapping[str, Any], weights: npt.NDArray[Any]) -> None:
        """Take the recipe of their design and v."""
        self.columns = [str(column["name"]) for column in recipe["columns"]]
        self.design, self.weights = Design(recipe), _double(weights)

    def __call__(self, values: Values, offer: "Offer", notes: list[str]) -> Floats:
        """A number for each action on offer; a list that does not fit the candidates counts as missing."""
        if not offer.places:  # the whole catalogue: nothing is known of its features
            notes += self.columns
            return np.zeros(len(offer.codes))
        lists: dict[str, Any] = {}
        for name in self.columns:
            given = values.get(name)
            if isinstance(given, LISTS) and len(given) == offer.listed:
                lists[name] = given
        return np.array(
            [self.design({name: given[i] for name, given in lists.items()}, notes) @ self.weights for i in offer.places]
        )


class Network:
    """The design, two hidden layers over it and over its cut numbers, and the embeddings of ids."""

    def __init__(self, recipe: Mapping[str, Any], tensors: Tensors) -> None:
        """Take the recipe and the weights."""
        self.design = Design(recipe["design"])
        self.ids = [Ids(column) for column in recipe["ids"]]
        self.tables = [_double(tensors[f"tables.{i}"]) for i in range(len(self.ids))]
        self.layers = [(_double(tensors[n]), _double(tensors[f"{n}_bias"])) for n in ("first", "second")]
        knots = _double(tensors["knots"])
        self.starts, self.widths = knots[:, :-1], np.maximum(knots[:, 1:] - knots[:, :-1], 1e-6)

    def __call__(self, values: Values, notes: list[str]) -> Floats:
        """The state."""
        plain = self.design(values, notes)
        numbers = plain[self.design.number_places]
        cut = np.clip((numbers[:, None] - self.starts) / self.widths, 0, 1).ravel() * 2 - 1
        hidden = np.concatenate([plain, cut])
        for weights, bias in self.layers:
            hidden = np.maximum(hidden @ weights + bias, 0)
        embedded = [mean_row(t, ids.places(values, notes)) for t, ids in zip(self.tables, self.ids, strict=True)]
        return np.concatenate([plain, hidden, *embedded])


class ContextTower:
    """A tower over the columns of a context."""

    def __init__(self, recipe: Mapping[str, Any], tensors: Tensors) -> None:
        """Take the recipe and the weights."""
        self.columns = [Numbers([c]) if "mean" in c else Ids(c) for c in recipe["index"]["columns"]]
        self.tower = Tower(recipe["tower"], under("tower.", tensors))

    def __call__(self, values: Values, notes: list[str]) -> Floats:
        """e(x)."""
        parts: list[Floats | list[int]] = [
            column(values, notes) if isinstance(column, Numbers) else column.places(values, notes)
            for column in self.columns
        ]
        tables = iter(self.tower.embeddings)
        vectors = [part if isinstance(part, np.ndarray) else mean_row(next(tables), part) for part in parts]
        return np.asarray(self.tower([vector[None] for vector in vectors])[0])


class Tower:
    """Columns side by side, each through its linear layer if it has one, then batch-norm and linear layer."""

    def __init__(self, recipe: Mapping[str, Any], tensors: Tensors) -> None:
        """Take the recipe and the weights; batch-norm and last layer become one matrix and a shift."""
        n_tables = sum(block["kind"] != "numbers" for block in recipe["blocks"])
        self.embeddings = [_double(tensors[f"embeddings.{i}"]) for i in range(n_tables)]
        n_linear = iter(range(len(recipe["blocks"])))
        self.linears = [
            None if block["linear"] is None else _double(tensors[f"linears.{next(n_linear)}"]).T
            for block in recipe["blocks"]
        ]
        self.folded: tuple[Floats, Floats] | None = None
        if not recipe["plain"]:
            norm = {name: _double(values) for name, values in under("norm.", tensors).items()}
            scale = norm["weight"] / np.sqrt(norm["running_var"] + EPS)
            last = _double(tensors["last"])
            self.folded = (last * scale).T, last @ (norm["bias"] - norm["running_mean"] * scale)

    def __call__(self, vectors: Sequence[Floats]) -> Floats:
        """(n, dim) of the embedded columns."""
        parts = [v if w is None else v @ w for v, w in zip(vectors, self.linears, strict=True)]
        joined = np.concatenate(parts, axis=1)
        return joined if self.folded is None else joined @ self.folded[0] + self.folded[1]


def item_vectors(recipe: Mapping[str, Any], tensors: Tensors) -> Floats:
    """e_a of all actions, (actions, dim)."""
    tower = Tower(recipe["tower"], under("tower.", tensors))
    tables = iter(tower.embeddings)
    vectors = [next(tables)]
    for i, block in enumerate(recipe["tower"]["blocks"][1:]):
        if block["kind"] == "numbers":
            vectors.append(_double(tensors[f"values_{i}"]))
        elif block["kind"] == "categorical":
            vectors.append(next(tables)[tensors[f"values_{i}"]])
        else:
            table, codes, offsets = next(tables), tensors[f"codes_{i}"], tensors[f"offsets_{i}"]
            bags = (codes[a:b].tolist() for a, b in pairwise(offsets.tolist()))
            vectors.append(np.stack([mean_row(table, bag) for bag in bags]))
    return tower(vectors)


def state_of(recipe: Mapping[str, Any], tensors: Tensors) -> State:
    """The context side of a saved scorer."""
    kind = recipe["kind"]
    if kind == "linear":
        return Design(recipe["design"])
    if kind == "network":
        return Network(recipe, tensors)
    if kind == "two_tower":
        return ContextTower(recipe["user"], under("user_tower.", tensors))
    return state_of(recipe["user"], under("user.", tensors))


def action_side(recipe: Mapping[str, Any], tensors: Tensors) -> tuple[Floats, Floats]:
    """Weights (actions, d) and bias (actions,) of a saved scorer."""
    bias = _double(tensors["bias"])
    if recipe["kind"] in ("linear", "network"):
        return _double(tensors["weights"]), bias
    return _double(tensors["projection"]) * item_vectors(recipe["items"], under("item_tower.", tensors)), bias


def mean_row(table: Floats, places: Sequence[int]) -> Floats:
    """The mean of some rows of a table; zeros of none."""
    if len(places) == 1:
        return np.asarray(table[places[0]])
    return np.asarray(table[places].mean(0)) if len(places) else np.zeros(table.shape[1])


def under(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors of a part."""
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def _double(values: npt.NDArray[Any]) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def number(value: Any) -> float:
    """A number, or NaN where there is none."""
    try:
        return float(value) if isinstance(value, NUMBERS) else np.nan
    except OverflowError:
        return np.nan


def _vector(value: Any, width: int) -> list[Any]:
    if not isinstance(value, LISTS) or len(value) != width:
        return [np.nan] * width
    given = value.tolist() if isinstance(value, np.ndarray) else list(value)
    return given if set(map(type, given)) <= PLAIN else [number(one) for one in given]
