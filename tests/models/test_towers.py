"""Towers against loops over entries; batch-norm that trains, and what unknown ids and empty bags become."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from offpolicy.errors import ParameterError
from offpolicy.log import (
    ActionTable,
    BagColumn,
    CategoricalColumn,
    EmbeddingColumn,
    FeatureTable,
    NumericColumn,
    Vocabulary,
)
from offpolicy.models.towers import ActionTower, BatchNorm, Block, ContextTower, Tower, TowerShape, blocks_of

SHAPE = TowerShape(dim=5, id_dim=4, feature_dim=3)
BAGS = [[0, 1], [], [2], [2, 2, 1], [0], []]


def codes(values: Any) -> npt.NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def contexts(users: int = 60, rows: int = 6) -> FeatureTable:
    random = np.random.default_rng(1)
    sizes = [len(bag) for bag in BAGS[:rows]]
    return FeatureTable(
        {
            "user": CategoricalColumn(codes(np.arange(rows) % users), Vocabulary(range(users))),
            "city": CategoricalColumn(codes(np.arange(rows) % 2), Vocabulary(["oslo", "rome"])),
            "tags": BagColumn(
                np.concatenate(([0], np.cumsum(sizes))),
                codes([code for bag in BAGS[:rows] for code in bag]),
                Vocabulary(["x", "y", "z"]),
            ),
            "age": NumericColumn(random.normal(size=rows)),
            "vector": EmbeddingColumn(random.normal(size=(rows, 2)).astype(np.float32)),
        }
    )


def many(rows: int = 60) -> FeatureTable:
    return FeatureTable({"user": CategoricalColumn(codes(np.arange(rows)), Vocabulary(range(rows)))})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def joined_by_hand(tower: ContextTower, table: FeatureTable) -> Tensor:
    """The columns side by side, entry by entry, bags averaged in a loop."""
    user, city, tags = tower.tower.embeddings
    age, vector = tower.index.encode(table)[3:]
    assert isinstance(age, Tensor)
    assert isinstance(vector, Tensor)
    rows = []
    for i in range(table.n_rows):
        pooled = torch.stack([tags[code] for code in BAGS[i]]).mean(0) if BAGS[i] else torch.zeros(tags.shape[1])
        rows.append(torch.cat([user[i], city[i % 2], pooled, age[i], vector[i]]))
    return torch.stack(rows)


def test_a_tower_is_embeddings_then_batch_norm_then_linear() -> None:
    tower = ContextTower.fit(contexts(), SHAPE, generator())
    norm, last = tower.tower.norm, tower.tower.last
    assert norm is not None
    assert last is not None
    nn.init.normal_(norm.weight, generator=generator(1))
    nn.init.normal_(norm.bias, generator=generator(2))
    joined = joined_by_hand(tower, contexts())
    scaled = (joined - joined.mean(0)) / (joined.var(0, correction=0) + norm.eps).sqrt()
    torch.testing.assert_close(tower(contexts()), (scaled * norm.weight + norm.bias) @ last.t())
    tower.eval()  # the first batch became the statistics
    torch.testing.assert_close(tower(contexts()), (scaled * norm.weight + norm.bias) @ last.t())


def test_columns_with_many_ids_get_the_larger_embedding_unless_told_otherwise() -> None:
    fitted = ContextTower.fit(many(51), SHAPE)
    assert fitted.tower.blocks == (Block("categorical", 52, 4, unknown=True),)
    assert ContextTower.fit(many(50), SHAPE).tower.blocks[0].dim == 3
    chosen = TowerShape(5, columns={"user": 7}, linear={"user": 9, "age": 2})
    blocks = ContextTower.fit(contexts(), chosen).tower.blocks
    assert [block.width for block in blocks] == [9, 32, 32, 2, 2]
    assert blocks[0].dim == 7
    assert ContextTower.fit(contexts(), chosen)(contexts()).shape == (6, 5)


def test_unknown_ids_and_empty_bags_share_a_row_of_zeros_at_the_start() -> None:
    plain = TowerShape(dim=4 + 3 + 3 + 3, id_dim=4, feature_dim=3, columns={"user": 4}, plain=True)
    tower = ContextTower.fit(contexts(), plain)
    columns = dict(contexts())
    columns["user"] = CategoricalColumn(codes(np.zeros(6)), Vocabulary([999]))
    columns["city"] = CategoricalColumn(codes(np.zeros(6)), Vocabulary(["atlantis"]))
    found = tower(FeatureTable(columns))
    assert not bool(found[:, :7].any())
    assert not bool(found[1, 7:10].any())
    assert bool(found[0, 7:10].all())


def test_the_embedding_of_the_unknown_trains_when_it_is_met() -> None:
    tower = ContextTower.fit(many(5), SHAPE)
    new = FeatureTable({"user": CategoricalColumn(codes([0, 1, 1]), Vocabulary([3, 77]))})
    (tower(new) ** 2).sum().backward()
    gradient = tower.tower.embeddings[0].grad
    assert gradient is not None
    assert gradient.abs().sum(1).nonzero().squeeze(1).tolist() == [3, 5]


def test_statistics_move_in_training_and_rest_in_evaluation() -> None:
    tower = ContextTower.fit(contexts(), SHAPE)
    norm = tower.tower.norm
    assert norm is not None
    assert norm.running_mean is not None
    assert not bool(norm.running_mean.any())
    tower(contexts())
    assert bool(norm.running_mean.any())
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    tower.eval()
    first, second = tower(contexts()), tower(contexts())
    assert torch.equal(first, second)
    part = tower(contexts().take([3]))  # alone or among others: evaluation does not look at the batch
    torch.testing.assert_close(part, first[3:4])
    assert all(torch.equal(value, before[name]) for name, value in tower.state_dict().items())


def test_batch_norm_weighs_batches_by_one_over_t_until_the_momentum() -> None:
    norm = BatchNorm(2, momentum=0.3)
    batches = torch.randn(6, 9, 2, generator=generator())
    mean, variance = torch.zeros(2), torch.ones(2)
    for t, batch in enumerate(batches, 1):
        norm(batch)
        share = max(0.3, 1 / t)
        mean = (1 - share) * mean + share * batch.mean(0)
        variance = (1 - share) * variance + share * batch.var(0, correction=0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)


def test_a_batch_of_one_neither_fails_nor_moves_the_statistics() -> None:
    tower = ContextTower.fit(contexts(), SHAPE)
    tower(contexts())
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    one = tower(contexts().take([2]))
    tower(contexts()).sum()  # a later batch moves the statistics before the way back
    one.sum().backward()
    assert bool(one.isfinite().all())
    fresh = ContextTower.fit(contexts().take([2]), SHAPE)
    assert bool(fresh(contexts().take([2])).isfinite().all())
    assert tower(contexts().take([])).shape == (0, 5)
    assert torch.equal(before["tower.embeddings.0"], tower.state_dict()["tower.embeddings.0"])
    assert int(tower.state_dict()["tower.norm.num_batches_tracked"]) == 2


def test_identical_contexts_and_constant_columns_stay_finite() -> None:
    same = contexts().take([3] * 8)
    tower = ContextTower.fit(same, SHAPE)
    states = tower(same)
    states.sum().backward()
    assert bool(states.isfinite().all())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in tower.parameters())
    assert bool(tower.eval()(contexts()).isfinite().all())


def test_actions_have_their_own_embedding_beside_their_features() -> None:
    features = contexts()
    actions = ActionTable(Vocabulary(list("abcdef")), features)
    tower = ActionTower.fit(actions, SHAPE, generator())
    assert tower().shape == (6, 5)
    assert tower.tower.blocks[0] == Block("categorical", 6, 4)
    (tower() ** 2).sum().backward()
    own = tower.tower.embeddings[0].grad
    assert own is not None
    assert bool((own.abs().sum(1) > 0).all())
    trained = tower()
    torch.testing.assert_close(tower.eval()(), trained)  # all actions are the batch: evaluation gives the same
    again = ActionTower.from_specification(tower.specification()).eval()
    again.load_state_dict(tower.state_dict())
    assert torch.equal(again(), tower())


def test_actions_without_features_may_be_a_bare_embedding() -> None:
    shape = TowerShape(dim=4, id_dim=4, plain=True)
    tower = ActionTower.fit(ActionTable(Vocabulary(range(3))), shape)
    assert torch.equal(tower(), tower.tower.embeddings[0])
    assert len(list(tower.parameters())) == 1


def test_a_seed_gives_one_tower_and_leaves_the_global_stream_alone() -> None:
    state = torch.get_rng_state()
    one, two, three = (ContextTower.fit(contexts(), SHAPE, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one(contexts()), two(contexts()))
    assert not torch.equal(one(contexts()), three(contexts()))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ParameterError, match="given for colour"):
        blocks_of([], TowerShape(columns={"colour": 3}), own_ids=2)
    with pytest.raises(ParameterError, match="add up to its dim of 6"):
        Tower([Block("categorical", 3, 4)], 6, plain=True)
    with pytest.raises(ParameterError, match="id_dim"):
        TowerShape(id_dim=0)
    with pytest.raises(ParameterError, match="Did you mean 'id_dim'"):
        TowerShape().changed({"id_dims": 3})
