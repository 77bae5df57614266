"""The ensemble: weights that are optimal, rows judged by models that did not see them, ids, and what is saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from logger_worlds import Logged, drifting, greedy_tree, knowing_users, random_top, softmax_linear
from offpolicy.log import BagColumn, CategoricalColumn, FeatureTable, LoggedData, NumericColumn, Vocabulary
from offpolicy.nuisances import Nuisances
from offpolicy.policies import MixturePolicy, NewIds, logged_log_prob
from offpolicy.propensity import FAMILIES, FitConfig, LoggingPolicy, ensemble, fit_logging_policy
from offpolicy.propensity.config import FitOutcome
from offpolicy.propensity.ensemble import CROSS_FITTED, FOLDS, _judged, convex_weights, fit_ensemble, without_ids
from offpolicy.propensity.time_view import TimeView

CONFIG = FitConfig(epochs=3)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Fit these families and keep them all."""
    monkeypatch.setattr(ensemble, "families_for", lambda log: list(names))
    monkeypatch.setattr(ensemble, "WORTH", -1.0)


def some_log_probs(seed: int, members: int = 4, rows: int = 200) -> Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(np.log(random.uniform(0.01, 1, size=(rows, members)) * random.uniform(0.7, 1, members)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weighted", [False, True])
def test_convex_weights_are_the_optimum_that_scipy_finds(seed: int, weighted: bool) -> None:
    log_prob = some_log_probs(seed)
    events = np.random.default_rng(seed).integers(0, 5, 200).astype(float) if weighted else np.ones(200)
    found = convex_weights(log_prob, torch.from_numpy(events) if weighted else None).numpy()
    prob = log_prob.exp().numpy()

    def loss(w: Any) -> float:
        return -float(events @ np.log(prob @ w) / events.sum())

    best = minimize(
        loss,
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-12},
    )
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert loss(found) == pytest.approx(best.fun, abs=2e-5)
    np.testing.assert_allclose(found, best.x, atol=0.02)
    slope = (prob / (prob @ found)[:, None] * events[:, None]).sum(0) / events.sum()  # 1 where w > 0, else at most 1
    np.testing.assert_allclose(slope[found > 0.02], 1, atol=5e-3)
    assert slope.max() < 1.005


def test_convex_weights_take_the_one_family_that_is_best_everywhere() -> None:
    log_prob = torch.log(torch.rand(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 2)
    log_prob[:, 1] = np.log(0.8)
    found = convex_weights(log_prob, None)
    assert float(found[1]) > 0.999


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[LoggedData, LoggedData | None, Any]]:
    """Every fit of a family: training rows, held-out rows, the model."""
    met: list[tuple[LoggedData, LoggedData | None, Any]] = []
    plain = FAMILIES[name]

    class Watched:
        name = plain.name

        def fit(self, log: LoggedData, held_out: LoggedData | None, *rest: Any) -> Any:
            result = plain.fit(log, held_out, *rest)
            met.append((log, held_out, result[0]))
            return result

    monkeypatch.setitem(FAMILIES, name, Watched())
    return met


@pytest.mark.parametrize("name", ["network", "trees"])
def test_rows_of_a_cross_fitted_family_come_from_a_model_that_did_not_see_their_unit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = knowing_users(60, 8, shown=False).log
    only(monkeypatch, name)
    met = watched(monkeypatch, name)
    found = fit_ensemble(log, None, None, CONFIG)
    assert name in CROSS_FITTED
    assert len(met) == FOLDS
    expected = torch.full((log.n_rows,), torch.nan, dtype=torch.float64)
    fold = log.folds(FOLDS, seed=CONFIG.seed)
    for k, (train, valid, model) in enumerate(met):
        assert valid is not None
        rows = np.flatnonzero(fold == k)
        users = [set(part.cluster_vocabulary.to_list()) for part in (train, valid) if part.cluster_vocabulary]
        assert users[0].isdisjoint(users[1])
        assert len(users[0] | users[1]) == 60
        assert valid == log.take(rows)
        expected[torch.from_numpy(rows)] = logged_log_prob(model.policy, valid)
    torch.testing.assert_close(found.row_log_prob, expected, rtol=0, atol=1e-9)
    mean = torch.stack([model.policy.log_probs(log.contexts).double().exp() for _, _, model in met]).mean(0)
    torch.testing.assert_close(found.whole.policy.log_probs(log.contexts).exp(), mean, rtol=1e-6, atol=1e-9)


def test_with_ids_rows_are_held_out_within_units(monkeypatch: pytest.MonkeyPatch) -> None:
    log = knowing_users(70, 10).log
    only(monkeypatch, "popularity", "towers")
    met = watched(monkeypatch, "towers")
    fit_ensemble(log, None, None, CONFIG)
    fold = log.row_folds(FOLDS, CONFIG.seed)
    for train, valid, _ in met:
        assert valid is not None
        assert train.n_rows + valid.n_rows == log.n_rows
        assert train.cluster is not None
        assert len(np.unique(train.cluster)) == 70  # every user is seen in training
    count = np.bincount(log.cluster_index * FOLDS + fold, minlength=70 * FOLDS).reshape(70, FOLDS)
    assert (count > 0).sum(1).mean() > 2.8
    first = FAMILIES["towers"].fit(log.take(fold != 0), log.take(fold == 0), None, CONFIG)
    towers = _judged("towers", first, log, fold, ["user"], CONFIG)
    assert towers.new_log_prob is not None
    for k, model in enumerate(towers.models):  # the same rows, with users that nobody has seen
        part = log.take(fold == k)
        columns = dict(part.contexts.items())
        codes = np.arange(part.n_contexts, dtype=np.int32)
        columns["user"] = CategoricalColumn(codes, Vocabulary(range(part.n_contexts)))
        stranger = LoggedData.from_arrays(
            FeatureTable(columns), part.action, part.reward, context_index=part.context_index, actions=part.n_actions
        )
        rows = torch.from_numpy(np.flatnonzero(fold == k))
        torch.testing.assert_close(towers.new_log_prob[rows], logged_log_prob(model.policy, stranger))


def test_an_ensemble_has_other_weights_for_new_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "popularity", "linear", "towers")
    world = knowing_users(100, 30)
    beta = fit_logging_policy(world.log, "auto")
    policy = beta.whole.policy
    assert isinstance(policy, MixturePolicy)
    assert policy.new_ids is not None
    fresh = knowing_users(40, 30, seed=4)
    strangers = without_ids(fresh.log, ["user"])
    by_new = torch.stack([one.log_probs(strangers.contexts).double().exp() for one in policy.members], 2)
    expected = by_new @ policy.new_ids.weights.double()
    torch.testing.assert_close(beta.log_probs(strangers.contexts).exp(), expected, rtol=1e-9, atol=1e-12)
    known = float(beta.row_log_prob.mean())
    assert known > float(logged_log_prob(policy, without_ids(world.log, ["user"])).mean()) + 0.05


def bag_log(rows: int = 300) -> LoggedData:
    random = np.random.default_rng(0)
    offsets = np.arange(rows + 1) * 2
    codes = np.concatenate([np.arange(100), random.integers(0, 100, 2 * rows - 100)])
    tags = BagColumn(offsets, codes.astype(np.int32), Vocabulary(range(100)))
    table = FeatureTable({"tags": tags, "x": NumericColumn(random.normal(size=rows))})
    return LoggedData.from_arrays(table, random.integers(0, 3, rows), np.zeros(rows), actions=3)


@pytest.mark.parametrize("make", [lambda: knowing_users(70, 5).log, bag_log])
def test_without_ids_keeps_rows_and_other_columns_and_makes_every_id_new(make: Callable[[], LoggedData]) -> None:
    log = make()
    name = "user" if "user" in log.contexts else "tags"
    bare = without_ids(log, [name])
    assert bare.contexts[name].kind == log.contexts[name].kind
    assert np.array_equal(bare.action, log.action)
    assert np.array_equal(bare.context_index, log.context_index)
    assert bare.contexts["x"] == log.contexts["x"]
    model, _ = FAMILIES["towers"].fit(log, log, None, CONFIG)
    ids = ensemble._fitted_ids(log.contexts)
    assert NewIds(tuple(ids), torch.ones(1)).are_new(bare.contexts).all()
    assert not NewIds(tuple(ids), torch.ones(1)).are_new(log.contexts).any()
    assert logged_log_prob(model.policy, bare).isfinite().all()


def test_bags_of_many_ids_make_an_ensemble(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "linear", "towers")
    beta = fit_logging_policy(bag_log(), "auto", config=CONFIG)
    assert [one.name for one in beta.members] == ["linear", "towers"]
    assert beta.row_log_prob.isfinite().all()


def test_an_ensemble_is_the_same_with_the_same_seed() -> None:
    log = greedy_tree(1100).log
    one, other = (fit_logging_policy(log, "auto", config=CONFIG) for _ in range(2))
    assert one.members == other.members
    assert torch.equal(one.row_log_prob, other.row_log_prob)
    assert torch.equal(one.log_probs(log.contexts), other.log_probs(log.contexts))


SAVED: dict[str, tuple[Callable[[], Logged], tuple[str, ...]]] = {
    "trees": (lambda: greedy_tree(400), ("popularity", "linear", "trees")),
    "top_k": (lambda: random_top(400), ("greedy_linear", "top_k")),
    "timed": (lambda: drifting(400), ("quadratic", "network", "trees")),
    "ids": (lambda: knowing_users(70, 6), ("popularity", "towers")),
    "timed top_k": (lambda: drifting(300), ("top_k", "popularity")),
}


@pytest.mark.parametrize("kind", SAVED)
def test_what_is_saved_is_what_is_loaded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, names = SAVED[kind]
    only(monkeypatch, *names)
    world = make()
    log = world.log
    nuisances = Nuisances(log, model="auto", seed=3)
    beta = nuisances.logging_policy
    assert isinstance(beta, LoggingPolicy)
    assert [one.name for one in beta.members] == list(names)
    assert (beta.whole.view is not None) == kind.startswith("timed")
    path = nuisances.save(tmp_path)
    assert path is not None
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")  # safetensors: a length, JSON, plain numbers
    assert set(json.loads(content[8 : 8 + header])) >= {"__metadata__", "row_log_prob"}
    loaded = Nuisances.load(tmp_path, log, "auto", 3)
    assert loaded is not None
    again = loaded.logging_policy
    assert isinstance(again, LoggingPolicy)
    assert again.members == beta.members
    assert again.description == beta.description
    assert torch.equal(again.row_log_prob, beta.row_log_prob)
    assert torch.equal(loaded.log_logging, nuisances.log_logging)
    new = log.take(np.arange(0, log.n_rows, 3))
    for contexts in (log.contexts, new.contexts, without_ids(new, ["user"] if kind == "ids" else []).contexts):
        assert torch.equal(again.log_probs(contexts), beta.log_probs(contexts))
    assert torch.equal(logged_log_prob(again.whole.policy, new), logged_log_prob(beta.whole.policy, new))
    assert torch.equal(loaded.uncertainty(), nuisances.uncertainty())
    ours, theirs = beta.refit(new), again.refit(new)
    assert torch.equal(ours.policy.log_probs(new.contexts), theirs.policy.log_probs(new.contexts))
    for one, other in zip(beta.candidates, again.candidates, strict=True):
        assert (one.name, one.chosen, one.weight, one.quality) == (
            other.name,
            other.chosen,
            other.weight,
            other.quality,
        )
        assert torch.equal(one.model.policy.log_probs(log.contexts), other.model.policy.log_probs(log.contexts))


def test_families_are_chosen_on_a_sample_of_a_long_log_and_fitted_to_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "popularity", "linear", "trees")
    monkeypatch.setattr(ensemble.shortened, "__defaults__", (400, 10**9))
    monkeypatch.setattr(ensemble, "FOLD_ROWS", 1000)
    world, fresh = softmax_linear(1500), softmax_linear(1500, seed=8)
    met = watched(monkeypatch, "linear")
    beta = fit_logging_policy(world.log, "auto")
    assert max(train.n_rows for train, valid, _ in met if valid is not None) < 450
    assert 1300 < met[-1][0].n_rows < 1400  # the others weigh the families
    assert met[-1][1] is None
    assert fresh.gap_closed(beta, world.log) > 0.85
    torch.testing.assert_close(beta.row_log_prob, logged_log_prob(beta.whole.policy, world.log))


def test_a_time_view_is_part_of_the_ensemble_only_where_there_is_time() -> None:
    assert TimeView.of_log(softmax_linear(100).log) is None
    assert fit_logging_policy(softmax_linear(300).log, "auto").whole.view is None


@pytest.mark.parametrize(("ridges", "at_end"), [((0.01, 0.01, 0.01), True), ((0.01, 10.0, 0.01), False)])
def test_a_ridge_between_those_of_the_folds_is_at_no_end(ridges: tuple[float, ...], at_end: bool) -> None:
    outcomes = tuple(FitOutcome(ridge, at_grid_end=ridge == 0.01) for ridge in ridges)
    outcome = ensemble.Candidate("linear", (), outcomes, torch.zeros(1), None).outcome
    assert outcome.at_grid_end == at_end
    assert bool(outcome.grid_note) == at_end
    assert outcome.ridge == pytest.approx(np.prod(ridges) ** (1 / 3))
