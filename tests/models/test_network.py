"""The network with id embeddings against slow NumPy, its pooling against the sum by hand, and what is saved of it."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.models import NetworkScorer, build_scorer, id_columns, network_scorer
from offpolicy.models.epochs import ContextBatches
from offpolicy.models.network import BINS, RANK
from offpolicy.models.recipes import NetworkRecipe
from offpolicy.policies import ScorerPolicy
from policy_worlds import jolted

USERS, TAGS = 80, 90


def columns(kind: str, seed: int = 0, rows: int = 400) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    user = CategoricalColumn(
        np.concatenate([np.arange(USERS), random.integers(0, USERS, rows - USERS)]),
        Vocabulary([f"u{i}" for i in range(USERS)]),
    )
    size = random.integers(0, 4, rows)
    offsets = np.concatenate([[0], size.cumsum()])
    codes = np.concatenate([np.arange(TAGS), random.integers(0, TAGS, offsets[-1] - TAGS)])
    tags = BagColumn(offsets, codes, Vocabulary(list(range(TAGS))))
    few = CategoricalColumn(random.integers(0, 3, rows, dtype=np.int32), Vocabulary(["a", "b", "c"]))
    number = NumericColumn(random.normal(size=rows))
    kinds: dict[str, dict[str, Any]] = {
        "numbers": {"x": number, "y": NumericColumn(random.exponential(size=rows))},
        "ids": {"user": user},
        "bags": {"tags": tags},
        "all": {"x": number, "user": user, "few": few, "tags": tags},
    }
    return kinds[kind]


KINDS = ("numbers", "ids", "bags", "all")


def a_log(kind: str, weighted: bool = False) -> LoggedData:
    random = np.random.default_rng(1)
    rows = 400
    return LoggedData.from_arrays(
        FeatureTable(columns(kind)),
        random.integers(0, 5, rows),
        np.zeros(rows),
        actions=6,
        row_weight=random.integers(1, 4, rows).astype(float) if weighted else None,
    )


def a_network(kind: str, hidden: int = 8) -> tuple[LoggedData, NetworkScorer]:
    log = a_log(kind)
    scorer: NetworkScorer = jolted(network_scorer(log, seed=3, hidden=hidden))
    return log, scorer


def slow_states(scorer: NetworkScorer, table: FeatureTable) -> np.ndarray:
    """Entry by entry, from the definition."""
    state = {name: values.numpy() for name, values in scorer.state_dict().items()}
    plain = scorer._design.encode(table).numpy()
    numbers = scorer._numbers.numpy()
    result = []
    for i in range(table.n_rows):
        pieces = []
        for j, place in enumerate(numbers):
            knots = state["knots"][j]
            for low, high in pairwise(knots):
                share = (plain[i, place] - low) / max(high - low, 1e-6)
                pieces.append(2 * min(max(share, 0.0), 1.0) - 1)
        first = np.maximum(np.concatenate([plain[i], pieces]) @ state["first"] + state["first_bias"], 0)
        hidden = np.maximum(first @ state["second"] + state["second_bias"], 0)
        parts = [plain[i], hidden]
        for number, column in enumerate(scorer.ids):
            own: Any = table[column.name]
            embedding = state[f"tables.{number}"]
            known = {each: place for place, each in enumerate(column.ids.vocabulary.to_list())}
            codes = [own.codes[i]] if isinstance(own, CategoricalColumn) else _bag(own, i)
            ids = [own.vocabulary.to_list()[code] for code in codes]
            vectors = [embedding[known.get(each, len(known))] for each in ids]
            parts.append(np.mean(vectors, 0) if vectors else np.zeros(RANK))
        result.append(np.concatenate(parts))
    return np.array(result)


def _bag(column: Any, i: int) -> Any:
    return column.codes[column.offsets[i] : column.offsets[i + 1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [0, 8])
def test_states_are_those_of_slow_numpy(kind: str, hidden: int) -> None:
    log, scorer = a_network(kind, hidden)
    some = log.contexts.take(np.arange(40))
    with torch.no_grad():
        found = scorer.states(some).numpy()
        at = scorer.states_at(log.contexts, torch.tensor([7, 0, 31, 7])).numpy()
    expected = slow_states(scorer, some)
    assert found.shape == (40, scorer.dim)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(at, expected[[7, 0, 31, 7]], rtol=1e-4, atol=1e-5)


def test_numbers_are_cut_at_their_quantiles() -> None:
    log = a_log("numbers")
    scorer = network_scorer(log)
    encoded = scorer._design.encode(log.contexts).numpy().astype(np.float64)
    knots = np.quantile(encoded, np.arange(BINS + 1) / BINS, axis=0).T
    np.testing.assert_allclose(scorer.get_buffer("knots").numpy(), knots, rtol=1e-5, atol=1e-6)


def test_a_fresh_network_is_popularity() -> None:
    log = a_log("all", weighted=True)
    found = ScorerPolicy(network_scorer(log), log.actions).log_probs(log.contexts)
    share = (log.action_weight + 1) / (log.action_weight + 1).sum()
    np.testing.assert_allclose(found.exp().mean(0).numpy(), share, rtol=0.1)


@pytest.mark.parametrize(("kind", "expected"), [("numbers", []), ("ids", ["user"]), ("all", ["user", "tags"])])
def test_columns_with_many_ids_are_embedded(kind: str, expected: list[str]) -> None:
    log, scorer = a_network(kind)
    assert id_columns(log.contexts) == expected
    assert [column.name for column in scorer.ids] == expected
    assert {column.name for column in scorer.columns} == set(log.contexts)


def test_an_id_never_seen_has_no_embedding_even_after_training() -> None:
    log = a_log("ids")
    scorer = network_scorer(log, hidden=4)
    optimiser = torch.optim.Adam(scorer.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        weights, bias = scorer.actions()
        logits = torch.addmm(bias, scorer.states(log.contexts), weights.T).log_softmax(1)
        (-logits[log.context_index.astype(int), log.action.astype(int)].mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    new = FeatureTable({"user": CategoricalColumn(np.zeros(1, dtype=np.int32), Vocabulary(["who?"]))})
    with torch.no_grad():
        assert not scorer.states(new)[0, -RANK:].any()
        assert scorer.states(log.contexts)[:, -RANK:].any(1).all()


@pytest.mark.parametrize("kind", ["ids", "bags", "all"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooling_is_the_sum_by_hand_and_an_epoch_adds_up_to_half_the_squares(kind: str, weighted: bool) -> None:
    log = a_log(kind, weighted)
    scorer = jolted(network_scorer(log, hidden=2))
    events = torch.from_numpy(np.array(log.context_weight)).float()
    numbers = torch.tensor([4, 1, 9])
    total = 0.0
    for column, table in zip(scorer.ids, scorer.tables, strict=True):
        own = log.contexts[column.name]
        count = np.zeros(column.width)
        ids = [[own.codes[i]] if isinstance(own, CategoricalColumn) else _bag(own, i) for i in range(log.n_contexts)]
        for i, codes in enumerate(ids):
            np.add.at(count, codes, log.context_weight[i])
        square = table.detach().square().sum(1).numpy() / 2
        total += sum(square[code] * log.context_weight[i] / count[code] for i in numbers.tolist() for code in ids[i])
    found = scorer.pooling(log.contexts, numbers, events[numbers]).detach()
    assert float(found) == pytest.approx(total, rel=1e-4)
    batches = ContextBatches(log, 37)
    whole = sum(
        float(scorer.pooling(batch.table, batch.numbers, events[batch.numbers]).detach())
        for batch in batches.epoch(torch.Generator().manual_seed(0))
    )
    every = sum(float(table.detach()[:-1].square().sum()) / 2 for table in scorer.tables)
    assert whole == pytest.approx(every, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [0, 8])
def test_what_is_saved_gives_the_same_probabilities(kind: str, hidden: int) -> None:
    log, scorer = a_network(kind, hidden)
    again = build_scorer(scorer.specification())
    again.load_state_dict(scorer.state_dict())
    other = a_log(kind).contexts.take(np.arange(50))
    ours, theirs = (ScorerPolicy(one, log.actions).log_probs(other) for one in (scorer, again))
    assert torch.equal(ours, theirs)
    assert bool(ours.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [0, 8])
def test_the_recipe_knows_how_many_numbers_there_are(kind: str, hidden: int) -> None:
    _, scorer = a_network(kind, hidden)
    shape = NetworkRecipe.model_validate(scorer.specification()).shape()
    assert shape.n_numbers == sum(values.numel() for values in scorer.state_dict().values())
    assert (shape.n_actions, shape.dim) == (scorer.n_actions, scorer.dim)
    assert len(shape.columns) == len(scorer.columns)
