"""A small network over contexts with an embedding for every id: f(x, a) = h(x)·w_a + b_a.

h(x) holds the design itself, two hidden layers over it and over its numbers cut at quantiles (so that thresholds are
easy to learn), and the embeddings of columns with many ids. An embedding is pulled towards zero, the more the fewer
events its id has (partial pooling); an id never seen is zero, which leaves the features.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData
from offpolicy.models.columns import Bags, FittedColumn, IdColumn, Indexed, NumberColumn, column_from_json
from offpolicy.models.encoders import MAX_CATEGORIES, DesignMatrix
from offpolicy.models.recipes import NetworkRecipe
from offpolicy.models.scorer import Scorer, register_scorer
from offpolicy.seeding import torch_generator

HIDDEN = 64
"""Width of each hidden layer."""
BINS = 12
"""Pieces between quantiles into which each number is cut."""
RANK = 16
"""Numbers of an id's embedding."""
SPREAD = 0.1
"""Standard deviation of a fresh embedding."""


class NetworkScorer(nn.Module, Scorer):
    """A linear scorer with hidden layers and id embeddings beside the design."""

    def __init__(
        self,
        design: DesignMatrix,
        ids: tuple[IdColumn, ...],
        n_actions: int,
        hidden: int = HIDDEN,
        generator: torch.Generator | None = None,
    ) -> None:
        """Fresh weights; actions start equal."""
        super().__init__()
        random = torch_generator(0, "network") if generator is None else generator
        self._design, self.ids, self.n_actions, self.hidden = design, ids, n_actions, hidden
        self._numbers = _number_places(design)
        self.register_buffer("knots", torch.zeros(len(self._numbers), BINS + 1))
        width = design.width + BINS * len(self._numbers)
        self.first = _layer(width, hidden, random)
        self.second = _layer(hidden, hidden, random)
        self.first_bias, self.second_bias = (nn.Parameter(torch.zeros(hidden)) for _ in range(2))
        tables = [torch.randn(column.width, RANK, generator=random) * SPREAD for column in ids]
        for table in tables:
            table[-1] = 0.0  # the unknown id
        self.tables = nn.ParameterList(map(nn.Parameter, tables))
        self.dim = design.width + hidden + RANK * len(ids)
        weights = torch.zeros(n_actions, self.dim)
        weights[:, design.width + hidden :] = torch.randn(n_actions, RANK * len(ids), generator=random) * SPREAD
        self.weights, self.bias = nn.Parameter(weights), nn.Parameter(torch.zeros(n_actions))
        self.events: list[Tensor] = []
        """While it is trained: the events of each id."""
        self._encoded: tuple[FeatureTable, Tensor, list[Indexed]] | None = None

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """The columns of the design and those of ids."""
        return (*self._design.columns, *self.ids)

    def states(self, contexts: FeatureTable) -> Tensor:
        """The design, the last hidden layer and the embeddings side by side."""
        plain, codes = self._inputs(contexts)
        return self._joined(plain, codes)

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        """The states of some entries; the encoded table is kept for the next call."""
        plain, codes = self._inputs(contexts)
        return self._joined(plain[numbers], [_taken(each, numbers) for each in codes])

    def actions(self) -> tuple[Tensor, Tensor]:
        """Weights and bias."""
        return self.weights, self.bias

    def pooling(self, contexts: FeatureTable, numbers: Tensor, events: Tensor) -> Tensor:
        """½ Σ |e_id|² over these contexts' ids, each the share of its id's events that these contexts have."""
        total = self.bias.new_zeros(())
        for column, table, known in zip(self._inputs(contexts)[1], self.tables, self.events, strict=True):
            codes = _taken(column, numbers)
            if isinstance(codes, Bags):
                owner = torch.arange(len(numbers)).repeat_interleave(codes.offsets.diff())
                place, weight = codes.codes, events[owner]
            else:
                place, weight = codes, events
            total = total + (table[place].square().sum(1) * weight / known[place]).sum() / 2
        return total

    def _inputs(self, contexts: FeatureTable) -> tuple[Tensor, list[Indexed]]:
        if self._encoded is None or self._encoded[0] is not contexts:
            self._encoded = contexts, self._design.encode(contexts), [each.indexed(contexts) for each in self.ids]
        return self._encoded[1:]

    def _joined(self, plain: Tensor, codes: list[Indexed]) -> Tensor:
        plain = plain.to(self.weights)
        knots = self.get_buffer("knots")
        width = (knots[:, 1:] - knots[:, :-1]).clamp(min=1e-6)
        cut = ((plain[:, self._numbers, None] - knots[:, :-1]) / width).clamp(0, 1).flatten(1) * 2 - 1
        inputs = torch.cat([plain, cut], 1)
        hidden = torch.relu(torch.addmm(self.first_bias, inputs, self.first))
        hidden = torch.relu(torch.addmm(self.second_bias, hidden, self.second))
        return torch.cat([plain, hidden, *map(_embedded, codes, self.tables)], 1)

    def specification(self) -> dict[str, Any]:
        """The columns and sizes; quantiles and embeddings are tensors."""
        return {
            "kind": "network",
            "n_actions": self.n_actions,
            "hidden": self.hidden,
            "bins": BINS,
            "rank": RANK,
            "design": self._design.to_json(),
            "ids": [column.to_json() for column in self.ids],
        }

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "NetworkScorer":
        """The inverse of `specification`."""
        columns = tuple(column_from_json(each) for each in recipe["ids"])
        ids = tuple(column for column in columns if isinstance(column, IdColumn))
        return NetworkScorer(DesignMatrix.from_json(recipe["design"]), ids, recipe["n_actions"], recipe["hidden"])


def network_scorer(log: LoggedData, seed: int = 0, hidden: int = HIDDEN) -> NetworkScorer:
    """A fresh network for a log, its actions as popular as they are there."""
    table = log.contexts
    many = {name for name, column in table.items() if _is_id(column)}
    few = {name: column for name, column in table.items() if name not in many}
    design = DesignMatrix.fit(FeatureTable(few)) if few else DesignMatrix(())
    ids = tuple(IdColumn.fit(name, column) for name, column in table.items() if name in many)  # type: ignore[arg-type]
    scorer = NetworkScorer(design, ids, log.n_actions, hidden, torch_generator(seed, "network"))
    encoded = scorer._inputs(table)
    with torch.no_grad():
        if len(scorer._numbers):
            places = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
            numbers = encoded[0][:, scorer._numbers].double().numpy()
            scorer.get_buffer("knots").copy_(torch.from_numpy(np.quantile(numbers, places.numpy(), axis=0).T))
        popularity = torch.from_numpy(log.action_weight + 1).log()
        scorer.bias.copy_(popularity - popularity.logsumexp(0))
    events = torch.from_numpy(np.array(log.context_weight)).float()
    scorer.events = [_events(each, events, column.width) for each, column in zip(encoded[1], ids, strict=True)]
    return scorer


def id_columns(table: FeatureTable) -> list[str]:
    """The columns with so many ids that they are embedded."""
    return [name for name, column in table.items() if _is_id(column)]


def _is_id(column: Any) -> bool:
    if not isinstance(column, CategoricalColumn | BagColumn):
        return False
    return len(column.vocabulary) > MAX_CATEGORIES and len(np.unique(column.codes)) > MAX_CATEGORIES


def _number_places(design: DesignMatrix) -> Tensor:
    places: list[int] = []
    start = 0
    for column in design.columns:
        if isinstance(column, NumberColumn):
            places += range(start, start + column.width)
        start += column.width
    return torch.tensor(places, dtype=torch.int64)


def _layer(inputs: int, outputs: int, random: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(inputs, outputs, generator=random) * (2 / max(inputs, 1)) ** 0.5)


def _taken(column: Indexed, numbers: Tensor) -> Indexed:
    if not isinstance(column, Bags):
        return column[numbers]
    size = column.offsets.diff()[numbers]
    ends = size.cumsum(0)
    ahead = column.offsets[numbers] - (ends - size)
    place = ahead.repeat_interleave(size) + torch.arange(int(ends[-1]) if len(ends) else 0)
    return Bags(column.codes[place], torch.cat([ends.new_zeros(1), ends]))


def _embedded(column: Indexed, table: Tensor) -> Tensor:
    if isinstance(column, Bags):
        return F.embedding_bag(column.codes, table, column.offsets, mode="mean", include_last_offset=True)
    return F.embedding(column, table)


def _events(column: Indexed, events: Tensor, width: int) -> Tensor:
    codes = column
    if isinstance(codes, Bags):
        events, codes = events.repeat_interleave(codes.offsets.diff()), codes.codes
    return torch.zeros(width).index_add_(0, codes, events).clamp(min=1.0)


register_scorer("network", NetworkRecipe, NetworkScorer.from_specification)
