"""Scorers against the naive formulas, their gradients, their recipes, and what the stop-gradient leaves alone."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, BagColumn, CategoricalColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.models.scorer import OnnxGraph, Scorer, build_scorer
from offpolicy.models.scorers import (
    LinearScorer,
    LoggingTwoTower,
    TwoTowerScorer,
    linear_scorer,
    logging_two_tower,
    two_tower_scorer,
)
from offpolicy.models.softmax import softmax_log_prob

CONTEXTS, ACTIONS, ROWS = 12, 7, 40


def codes(values: Any) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def bags(sizes: npt.NDArray[np.int64]) -> BagColumn:
    drawn = np.random.default_rng(1).integers(0, 3, size=int(sizes.sum()))
    return BagColumn(np.concatenate(([0], np.cumsum(sizes))), codes(drawn), Vocabulary([10, 20, 30]))


def a_log(features: bool = True) -> LoggedData:
    random = np.random.default_rng(0)
    users = Vocabulary([f"u{i}" for i in range(CONTEXTS)])
    contexts = FeatureTable(
        {
            "user": CategoricalColumn(codes(np.arange(CONTEXTS)), users),
            "age": NumericColumn(random.normal(size=CONTEXTS)),
            "tags": bags(np.arange(CONTEXTS) % 3),
        }
    )
    described = FeatureTable(
        {
            "colour": CategoricalColumn(codes(np.arange(ACTIONS) % 3), Vocabulary(["red", "green", "blue"])),
            "price": NumericColumn(random.normal(size=ACTIONS)),
            "topics": bags(np.arange(ACTIONS) % 2),
        }
    )
    return LoggedData.from_arrays(
        contexts,
        np.arange(ROWS) * 3 % ACTIONS,
        random.uniform(size=ROWS),
        context_index=np.arange(ROWS) % CONTEXTS,
        actions=ActionTable(Vocabulary(range(ACTIONS)), described if features else None),
    )


def two_tower(seed: int = 0) -> TwoTowerScorer:
    return two_tower_scorer(a_log(), dim=6, id_dim=5, feature_dim=3, seed=seed)


def logging(seed: int = 0) -> LoggingTwoTower:
    return logging_two_tower(two_tower(), a_log(), id_dim=5, feature_dim=3, seed=seed)


def linear(seed: int = 0) -> LinearScorer:
    return linear_scorer(a_log())


MAKERS: list[Callable[[], Scorer]] = [linear, two_tower, logging]


def logits(scorer: Scorer) -> Tensor:
    weights, bias = scorer.actions()
    return scorer.states(a_log().contexts) @ weights.t() + bias


def shaken(scorer: Scorer) -> Scorer:
    """Parameters moved off their initial zeros, and one training pass behind it."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    logits(scorer)
    return scorer


def log_likelihood(scorer: Scorer, log: LoggedData) -> Tensor:
    rows = torch.tensor(log.context_index).long(), torch.tensor(log.action).long()
    return softmax_log_prob(scorer.states(log.contexts), *scorer.actions(), *rows).mean()


@pytest.mark.parametrize("make", MAKERS)
def test_every_scorer_keeps_the_protocol(make: Callable[[], Scorer]) -> None:
    scorer = make()
    assert isinstance(scorer, Scorer)
    assert isinstance(scorer, nn.Module)
    weights, bias = scorer.actions()
    states = scorer.states(a_log().contexts)
    assert states.shape == (CONTEXTS, weights.shape[1])
    assert weights.shape[0] == scorer.n_actions == ACTIONS
    assert bias.shape == (ACTIONS,)
    items = scorer.items()
    assert items is None or items.shape == weights.shape


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_reach_every_parameter(make: Callable[[], Scorer]) -> None:
    scorer = shaken(make())
    log_likelihood(scorer, a_log()).backward()  # type: ignore[no-untyped-call]
    parameters = list(scorer.parameters())
    assert parameters
    for parameter in parameters:
        assert parameter.grad is not None
        assert bool(parameter.grad.any())
        assert bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("make", MAKERS)
def test_a_recipe_and_the_weights_make_the_same_scorer(make: Callable[[], Scorer]) -> None:
    scorer = shaken(make())
    again = build_scorer(json.loads(json.dumps(scorer.specification())))
    assert type(again) is type(scorer)
    again.load_state_dict(scorer.state_dict())
    scorer.eval(), again.eval()
    if isinstance(scorer, LoggingTwoTower):
        assert torch.equal(scorer.user.state_dict()["bias"], scorer.state_dict()["user.bias"])
    assert torch.equal(logits(again), logits(scorer))
    assert again.specification() == scorer.specification()


@pytest.mark.parametrize("make", MAKERS)
def test_evaluation_is_deterministic_and_looks_at_one_context_at_a_time(make: Callable[[], Scorer]) -> None:
    scorer = shaken(make())
    scorer.eval()
    contexts = a_log().contexts
    states = scorer.states(contexts)
    assert torch.equal(states, scorer.states(contexts))
    alone = torch.cat([scorer.states(contexts.take([i])) for i in range(CONTEXTS)])
    torch.testing.assert_close(alone, states)


@pytest.mark.parametrize("make", [two_tower, logging])
def test_logits_are_the_projected_product(make: Callable[[], TwoTowerScorer | LoggingTwoTower]) -> None:
    scorer = make()
    shaken(scorer).eval()
    states, items = scorer.states(a_log().contexts), scorer.items()
    naive = torch.empty(CONTEXTS, ACTIONS)
    for x in range(CONTEXTS):
        for a in range(ACTIONS):
            naive[x, a] = (scorer.projection * (states[x] * items[a])).sum() + scorer.bias[a]
    torch.testing.assert_close(logits(scorer), naive)
    gradient = torch.autograd.grad(logits(scorer)[2, 3], scorer.projection)[0]
    torch.testing.assert_close(gradient, states[2] * items[3])  # g(x, a)


def test_linear_starts_uniform_and_encodes_a_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, contexts = linear(), a_log().contexts
    assert not bool(logits(scorer).any())
    first = scorer.states(contexts)
    assert scorer.states(contexts) is first
    assert not first.requires_grad
    assert scorer.items() is None
    other = contexts.take(np.arange(CONTEXTS)[::-1])
    assert torch.equal(scorer.states(other), first.flip(0))
    assert torch.equal(scorer.states(contexts), first)
    torch.testing.assert_close(scorer.double().states(contexts), first.double())


def batch_norm_statistics(module: nn.Module) -> list[Tensor]:
    return [buffer.clone() for name, buffer in module.named_buffers() if "running" in name]


def test_training_the_logging_policy_leaves_the_policy_alone() -> None:
    log, scorer = a_log(), logging()
    user = scorer.user
    user.train()
    theirs = {id(parameter) for parameter in user.parameters()}
    assert not theirs & {id(parameter) for parameter in scorer.parameters()}
    before = {name: value.clone() for name, value in user.state_dict().items()}
    optimiser = torch.optim.Adam(scorer.parameters(), lr=0.05)
    start = log_likelihood(scorer, log).item()
    for _ in range(20):
        optimiser.zero_grad()
        loss = -log_likelihood(scorer, log)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert log_likelihood(scorer, log).item() > start
    assert all(parameter.grad is None for parameter in user.parameters())
    assert all(torch.equal(value, before[name]) for name, value in user.state_dict().items())
    scorer.eval()
    assert user.training
    assert all(module.training for module in user.modules())
    assert not scorer.item_tower.training


def test_training_moves_both_towers_statistics() -> None:
    scorer = two_tower()
    before = batch_norm_statistics(scorer)
    log_likelihood(scorer, a_log())
    after = batch_norm_statistics(scorer)
    assert len(after) == 4
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_what_is_trained_is_what_is_evaluated() -> None:
    log, scorer = a_log(), two_tower()
    optimiser = torch.optim.Adam(scorer.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss = -log_likelihood(scorer, log)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    trained = log_likelihood(scorer, log).item()
    assert trained > -np.log(ACTIONS) + 0.2
    assert log_likelihood(scorer.eval(), log).item() == pytest.approx(trained, abs=0.05)


@pytest.mark.parametrize("make", [two_tower, logging])
def test_a_seed_gives_one_scorer_and_leaves_the_global_stream_alone(make: Callable[[int], Scorer]) -> None:
    state = torch.get_rng_state()
    one, two, three = make(0), make(0), make(1)
    assert torch.equal(torch.get_rng_state(), state)
    for (name, left), right in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    assert not torch.equal(one.actions()[0], three.actions()[0])


@pytest.mark.parametrize("make", MAKERS)
def test_unknown_users_get_finite_scores(make: Callable[[], Scorer]) -> None:
    scorer = shaken(make())
    scorer.eval()
    columns = dict(a_log().contexts)
    columns["user"] = CategoricalColumn(codes(np.zeros(CONTEXTS)), Vocabulary(["nobody"]))
    states = scorer.states(FeatureTable(columns))
    assert bool(states.isfinite().all())
    assert not torch.equal(states, scorer.states(a_log().contexts))


def test_the_towers_of_the_paper_can_be_built() -> None:
    log, bare = a_log(), a_log(features=False)
    assert two_tower_scorer(log).states(log.contexts).shape == (CONTEXTS, 128)
    yahoo = two_tower_scorer(bare, items={"plain": True})
    assert yahoo.items() is not None
    assert yahoo.item_tower.tower.norm is None
    kuairec = two_tower_scorer(
        log,
        user={"columns": {"tags": 128}, "linear": {"tags": 128}},
        items={"id_dim": 61, "feature_dim": 33, "plain": True},  # 61 + 33 + 33 + the price
    )
    assert kuairec.items().shape == (ACTIONS, 128)


def test_scorers_that_cannot_be_built_say_why() -> None:
    with pytest.raises(ParameterError, match="Did you mean 'two_tower'"):
        build_scorer({"kind": "two_towers"})
    with pytest.raises(ParameterError, match="states of one size"):
        two_tower_scorer(a_log(), items={"dim": 64})


class Plugged(nn.Module):
    """A module of a user's own, which has the protocol without inheriting from it."""

    n_actions, dim = ACTIONS, 1
    columns = ()
    is_linear, default_ridge, design = False, 0.0, None

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(ACTIONS, 1))

    def states(self, contexts: FeatureTable) -> Tensor:
        return torch.ones(contexts.n_rows, 1)

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        return torch.ones(len(numbers), 1)

    def actions(self) -> tuple[Tensor, Tensor]:
        return self.table, torch.zeros(ACTIONS)

    def items(self) -> None:
        return None

    def specification(self) -> dict[str, str]:
        return {"kind": "plugged"}

    def onnx_states(self, graph: OnnxGraph) -> str:
        raise NotImplementedError


def test_any_module_with_the_protocol_plugs_in() -> None:
    scorer: Scorer = Plugged()
    assert isinstance(scorer, Scorer)
    log_likelihood(scorer, a_log()).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in scorer.parameters())
    assert logging_two_tower_on(scorer).shape == (CONTEXTS, 1)


def logging_two_tower_on(scorer: Scorer) -> Tensor:
    items = two_tower_scorer(a_log(), dim=1, id_dim=2, feature_dim=2).item_tower
    return LoggingTwoTower(scorer, items).states(a_log().contexts)
