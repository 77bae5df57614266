import numpy as np
import pytest
import torch

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, CategoricalColumn, FeatureTable, NumericColumn, Vocabulary
from offpolicy.policies import LinearSoftmaxPolicy, Policy, TabularPolicy, UniformPolicy, aligned, logged_log_prob


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpolicy.log.batches.BATCH_BYTES", 7 * 20 * 8)  # seven contexts of twenty actions


@pytest.mark.usefixtures("small_tiles")
def test_tiles_cover_every_row_once_and_give_the_dense_answer() -> None:
    world = LinearSoftmaxWorld.draw(0)
    log = world.log(1, n_contexts=30, rows_per_context=3)
    log = log.take(np.random.default_rng(0).permutation(log.n_rows)[:70])
    rows = np.concatenate([batch.rows for batch in log.batches()])
    assert sorted(rows.tolist()) == list(range(70))
    dense = torch.from_numpy(world.logging_policy.log_probs(log.contexts).numpy()[log.context_index, log.action])
    torch.testing.assert_close(logged_log_prob(world.logging_policy, log), dense)


def test_recorded_propensities_are_those_of_the_logging_policy() -> None:
    world = LinearSoftmaxWorld.draw(3)
    log = world.log(3, n_contexts=50)
    assert log.logging_prob is not None
    np.testing.assert_allclose(logged_log_prob(world.logging_policy, log).exp().numpy(), log.logging_prob, rtol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_probabilities_sum_to_one(temperature: float) -> None:
    world = LinearSoftmaxWorld.draw(0, temperature=temperature)
    contexts = world.contexts(0, 10)
    for policy in (world.logging_policy, world.target_policy(), UniformPolicy(20)):
        assert isinstance(policy, Policy)
        total = policy.log_probs(contexts).exp().sum(1)
        torch.testing.assert_close(total, torch.ones(10, dtype=torch.float64))


def test_a_table_that_is_no_distribution_is_refused() -> None:
    with pytest.raises(ParameterError, match="sum to 1"):
        TabularPolicy("context", torch.tensor([[0.5, 0.6]]))


def test_a_policy_refuses_a_column_of_the_wrong_kind() -> None:
    contexts = LinearSoftmaxWorld.draw(0).contexts(0, 5)
    with pytest.raises(ParameterError, match="'x' must be categorical"):
        TabularPolicy("x", torch.tensor([[0.5, 0.5]])).log_probs(contexts)
    tiny = FeatureTable({"c": CategoricalColumn(np.zeros(1, np.int32), Vocabulary(["only"]))})
    with pytest.raises(ParameterError, match="'c' must be an embedding"):
        LinearSoftmaxPolicy("c", torch.ones(2, 1), torch.zeros(2)).log_probs(tiny)


class _Known:
    actions = ActionTable(Vocabulary(["a", "b", "c"]))

    def log_probs(self, contexts: FeatureTable) -> torch.Tensor:
        return torch.tensor([[0.5, 0.3, 0.2]]).expand(contexts.n_rows, -1).log()


def test_a_policy_is_matched_by_id_and_never_chooses_what_it_does_not_know() -> None:
    contexts = FeatureTable({"x": NumericColumn(np.zeros(2))})
    found = aligned(_Known(), ActionTable(Vocabulary(["c", "new", "a", "b"]))).log_probs(contexts).exp()
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.0, 0.5, 0.3]] * 2))
    with pytest.raises(ParameterError, match="not in the log's table: 'c'"):
        aligned(_Known(), ActionTable(Vocabulary(["a", "b", "d"])))
