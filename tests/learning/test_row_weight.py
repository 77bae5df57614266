"""A row that stands for n events is learned from as n equal rows are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from offpolicy.datasets.synthetic import LinearSoftmaxWorld
from offpolicy.errors import ParameterError
from offpolicy.learning import LearnedPolicy, learn_policy
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models.normalisers import InBatch
from offpolicy.models.scorers import linear_scorer

WORLD = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=3, alignment=0.2)
LOG = WORLD.log(1, 60, 4)
FIRST = np.unique(LOG.context_index, return_index=True)[1]


def drawn_counts() -> Any:
    """0 to 3 events a row, and at least one in some row of every context, so that both logs have the same contexts."""
    count = np.random.default_rng(0).integers(0, 4, size=LOG.n_rows)
    count[FIRST] = 2
    return count


COUNT = drawn_counts()
REPEATED = np.repeat(np.arange(LOG.n_rows), COUNT)
U = torch.linspace(0, 0.5, LOG.n_rows, dtype=torch.float64)


@dataclass(frozen=True)
class TableRewards:
    """A fixed q̂."""

    def rewards(self, contexts: FeatureTable) -> Tensor:
        return (WORLD.rewards(contexts) * 0.7 + 0.1).double()


def pair(method: str, **given: Any) -> tuple[LearnedPolicy, LearnedPolicy]:
    """Learned from the weighted log and from the repeated rows."""
    given = {
        "epochs": 3,
        "learning_rate": 0.1,
        "batch_contexts": 16,
        "logging_policy": WORLD.logging_policy,
        "reward_model": TableRewards(),
        "scorer": lambda log: linear_scorer(log).double(),
        **given,
    }
    alternates = given.get("schedule") == "alternate"
    weighted, repeated = LOG.weighted(COUNT.astype(float)), LOG.take(REPEATED)
    rows = torch.from_numpy(REPEATED)
    if alternates:
        del given["logging_policy"]
        return learn_policy(weighted, method, **given), learn_policy(repeated, method, **given)
    return (
        learn_policy(weighted, method, uncertainty=U, **given),
        learn_policy(repeated, method, uncertainty=U[rows], **given),
    )


def check(both: tuple[LearnedPolicy, LearnedPolicy], tolerance: float = 1e-9) -> None:
    first, second = (torch.cat([p.detach().double().flatten() for p in each.scorer.parameters()]) for each in both)
    assert float(first.abs().max()) > 0.01
    torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(both[0].history, both[1].history, strict=True):
        for name, value in theirs.items():
            if name != "seconds":
                assert ours[name] == pytest.approx(value, rel=max(tolerance, 1e-6), abs=1e-9), name


METHODS = ["ce", "bips_cap", "uips", "snips", "snips_frozen", "poem", "banditnet", "minvar", "adaptive", "dr", "sndr"]


@pytest.mark.parametrize("method", [*METHODS, "dm", "dice_s", "ips_gt"])
def test_every_method_counts_events(method: str) -> None:
    check(pair(method))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metric", ["value", "lower_bound"])
def test_held_out_values_count_events(method: str, metric: str) -> None:
    both = pair(method, metric=metric, held_out=0.3, reward_baseline="mean")
    assert both[0].best_epoch == both[1].best_epoch
    check(both)


def test_a_validation_log_counts_events() -> None:
    given: dict[str, Any] = {"epochs": 2, "logging_policy": WORLD.logging_policy, "batch_contexts": 16}
    weighted, repeated = LOG.weighted(COUNT.astype(float)), LOG.take(REPEATED)
    other = WORLD.log(3, 30, 3)
    first, second = (learn_policy(other, "bips_cap", validation=each, **given) for each in (weighted, repeated))
    assert first.history[-1]["value"] == pytest.approx(second.history[-1]["value"], rel=1e-6)
    plain = learn_policy(other, "bips_cap", validation=LOG, **given)
    assert abs(plain.history[-1]["value"] - first.history[-1]["value"]) > 1e-4


@pytest.mark.parametrize("changes", [{}, {"in_batch": True}, {"first_epoch_cap": 1.0}, {"unit_gradients": True}])
def test_alternation_counts_events(changes: dict[str, Any]) -> None:
    towers: dict[str, Any] = {"scorer": "two_tower", "scorer_options": {"dim": 4, "id_dim": 4}, "learning_rate": 0.02}
    first, second = pair("uips", schedule="alternate", epochs=2, **towers, **changes)
    # Weights that batch-norm makes irrelevant follow the rounding of their gradient, so the policies are compared.
    torch.testing.assert_close(first.log_probs(LOG.contexts), second.log_probs(LOG.contexts), rtol=1e-3, atol=1e-3)
    logged = [each.logging.log_probs(LOG.contexts) for each in (first, second) if each.logging is not None]
    torch.testing.assert_close(*logged, rtol=1e-3, atol=1e-3)
    likelihood = [each.history[-1]["logging_log_likelihood"] for each in (first, second)]
    assert likelihood[0] == pytest.approx(likelihood[1], rel=1e-4)


def test_a_softmax_over_the_batch_counts_events() -> None:
    random = torch.Generator().manual_seed(0)
    states, weights = torch.randn(3, 2, generator=random).double(), torch.randn(4, 2, generator=random).double()
    context, action, count = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 3, 1, 0]), torch.tensor([2, 1, 3, 1])
    rows = torch.arange(4).repeat_interleave(count)
    given = (states, weights, None)
    counted = InBatch(count=count.double()).log_prob(*given, context, action)
    repeated = InBatch().log_prob(*given, context[rows], action[rows])
    torch.testing.assert_close(counted[rows], repeated)


@pytest.mark.parametrize("method", ["prune", "ips_un", "ips_un_simplex"])
def test_methods_that_compare_rows_say_that_they_cannot(method: str) -> None:
    with pytest.raises(ParameterError, match="row_weight"):
        learn_policy(LOG.weighted(COUNT.astype(float)), method, logging_policy=WORLD.logging_policy)


def test_weights_of_one_change_nothing() -> None:
    given: dict[str, Any] = {"epochs": 2, "logging_policy": WORLD.logging_policy, "uncertainty": U}
    plain, ones = (learn_policy(log, "uips", **given) for log in (LOG, LOG.weighted(np.ones(LOG.n_rows))))
    assert isinstance(LOG, LoggedData)
    for ours, theirs in zip(plain.scorer.parameters(), ones.scorer.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
