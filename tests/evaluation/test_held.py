"""What an evaluation holds at a time: the sums per cluster of one look at a value, not those of all looks."""

import gc
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import pytest
import torch

from offpolicy.evaluation import Evaluator, Options
from offpolicy.evaluation.clusters import ClusteredTerms, ClusterSums, clustered
from offpolicy.evaluation.value import Terms
from offpolicy.log import LoggedData
from offpolicy.nuisances import Nuisances
from offpolicy.policies import LinearSoftmaxPolicy, UniformPolicy
from offpolicy.propensity import fit_logging_policy
from offpolicy.propensity.ensemble import fit_ensemble

ROWS, ACTIONS, WIDTH = 900, 4, 3
RANDOM = np.random.default_rng(0)


def a_log() -> LoggedData:
    return LoggedData.from_arrays(
        contexts=RANDOM.standard_normal((ROWS // 3, WIDTH)),
        context_index=np.repeat(np.arange(ROWS // 3), 3),
        action=RANDOM.integers(0, ACTIONS, ROWS),
        reward=RANDOM.random(ROWS).round(),
        actions=ACTIONS,
    )


def policies() -> dict[str, LinearSoftmaxPolicy]:
    bias = torch.zeros(ACTIONS, dtype=torch.float64)
    weights = torch.from_numpy(RANDOM.standard_normal((3, ACTIONS, WIDTH)))
    return {f"policy {number}": LinearSoftmaxPolicy("context", own, bias) for number, own in enumerate(weights)}


def test_sums_per_cluster_of_one_look_and_the_one_it_is_compared_with_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: WeakSet[ClusteredTerms] = WeakSet()
    most = 0
    finish = ClusterSums.finish

    def watched(self: ClusterSums, first: int = 0) -> ClusteredTerms:
        nonlocal most
        found = finish(self, first)
        alive.add(found)
        most = max(most, len(alive))
        return found

    monkeypatch.setattr(ClusterSums, "finish", watched)
    log = a_log()
    options = Options(intervals=("normal", "bootstrap"))
    nuisances = Nuisances(log, logging_policy=UniformPolicy(log.actions))
    named = {name: policy for name, policy in policies().items() if name != "policy 2"}
    with Evaluator(nuisances, named, {"old": policies()["policy 2"]}, options) as evaluator:
        assert len(evaluator.evaluation.comparisons) == 4
    assert 2 <= most <= 3


def test_an_estimated_logging_policy_keeps_nothing_of_what_it_was_chosen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[Any] = []

    def watched(*given: Any) -> Any:
        found = fit_ensemble(*given)
        fits.extend([ref(found), *map(ref, found.parts)])
        return found

    monkeypatch.setattr("offpolicy.propensity.fit.fit_ensemble", watched)
    beta = fit_logging_policy(a_log(), "auto")
    gc.collect()
    assert len(fits) == 3
    assert [one() for one in fits] == [None] * 3
    assert beta.refit(a_log()).policy.actions is not None


def test_leaving_clusters_out_a_piece_at_a_time_gives_what_all_at_once_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.from_numpy(RANDOM.lognormal(0, 2, 50))
    reward, model = torch.from_numpy(RANDOM.random(50)), torch.from_numpy(RANDOM.random(50))
    found = clustered(Terms(weight, weight, reward, model, model), torch.arange(50))
    whole = found.leave_one_out
    for size in (1, 7, 49, 50):
        cuts = [slice(start, min(start + size, 50)) for start in range(0, 50, size)]
        monkeypatch.setattr("offpolicy.evaluation.clusters.row_pieces", lambda n, cuts=cuts: iter(cuts))
        np.testing.assert_array_equal(found.leave_one_out, whole)
    others = [found.values(np.delete(found.columns, one, 0).sum(0)) for one in range(50)]
    np.testing.assert_allclose(whole, others, rtol=1e-12)
