"""Logs on the edge: a result or a clear refusal, never NaN, never hours in silence."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from logger_worlds import drawn, greedy_tree, knowing_users
from offpolicy.errors import ParameterError
from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FAMILIES, FitConfig, ensemble, fit_logging_policy
from offpolicy.uncertainty import FORMS, row_uncertainty, uncertainty_of

RANDOM = np.random.default_rng(0)
CONFIG = FitConfig(epochs=4)


def check(log: LoggedData, model: Any = "auto", other: LoggedData | None = None) -> None:
    """Finite on its own rows and on another log's, distributions everywhere, U without NaN."""
    beta = fit_logging_policy(log, model, config=CONFIG)
    assert beta.row_log_prob.isfinite().all()
    assert float(beta.row_log_prob.max()) <= 1e-6
    assert np.isfinite(beta.quality.log_likelihood)
    for each in (log, other or log):
        probs = beta.log_probs(each.contexts).double().exp()
        torch.testing.assert_close(probs.sum(1), torch.ones(each.n_contexts, dtype=torch.float64), rtol=0, atol=1e-5)
        assert logged_log_prob(beta.whole.policy, each).isfinite().all()
        for form in FORMS:
            u = uncertainty_of(beta.whole, log, each, form)
            assert u.isfinite().all()
            assert float(u.min()) >= 0
    assert row_uncertainty(beta).isfinite().all()
    again = beta.refit(log.take(np.arange(0, log.n_rows, 2)) if log.n_rows > 3 else log)
    assert logged_log_prob(again.policy, log).isfinite().all()


def ids(rows: int, users: int, **extra: Any) -> LoggedData:
    """Contexts that are an id and nothing else."""
    user = np.concatenate([np.arange(users), RANDOM.integers(0, users, rows - users)])
    action = np.where(RANDOM.random(rows) < 0.5, user % 4, RANDOM.integers(0, 4, rows))
    return LoggedData.from_arrays({"user": [f"u{i}" for i in user]}, action, np.zeros(rows), actions=5, **extra)


def favourite() -> LoggedData:
    probs = np.tile([0.994, 0.002, 0.002, 0.002], (1200, 1))
    return drawn(probs, {"x": RANDOM.normal(size=1200)}, 0).log


def numbers(rows: int, **columns: Any) -> LoggedData:
    x = RANDOM.normal(size=rows)
    return LoggedData.from_arrays(
        {"x": x, **columns}, (x > 0).astype(int) + RANDOM.integers(0, 2, rows), np.zeros(rows), actions=3
    )


ODD: dict[str, Callable[[], LoggedData]] = {
    "three rows": lambda: numbers(3),
    "thirty rows": lambda: numbers(30),
    "only ids": lambda: ids(1200, 80),
    "one row a user": lambda: ids(1100, 1100),
    "units of one row": lambda: ids(300, 100, cluster=np.minimum(np.arange(300), 250)),
    "a favourite": favourite,
    "one action": lambda: LoggedData.from_arrays(
        {"x": RANDOM.normal(size=1100)}, np.ones(1100, int), np.zeros(1100), actions=3
    ),
    "a constant feature": lambda: numbers(1100, c=np.full(1100, 7.0)),
    "huge numbers": lambda: numbers(1100, c=RANDOM.normal(size=1100) * 1e200),
    "all features constant": lambda: LoggedData.from_arrays(
        {"c": np.zeros(1100)}, RANDOM.integers(0, 3, 1100), np.zeros(1100), actions=3, cluster=np.arange(1100) // 4
    ),
    "two instants": lambda: LoggedData.from_arrays(
        {"x": np.arange(200) * 1.0}, np.arange(200) % 3, np.zeros(200), actions=3, timestamp=np.arange(200) % 2
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_logs_give_a_result_without_nan(kind: str) -> None:
    check(ODD[kind]())


@pytest.mark.parametrize(
    "model", ["auto", "linear", "greedy_linear", "towers", "network", "trees", "top_k", "two_tower"]
)
def test_ids_and_categories_that_appear_at_evaluation_only(model: str) -> None:
    log = knowing_users(80, 14, seed=1).log
    colour = np.array(["red", "blue", "green"])
    log = LoggedData.from_arrays(
        FeatureTable({**dict(log.contexts.items()), "colour": category(colour[:2][np.arange(log.n_contexts) % 2])}),
        log.action,
        log.reward,
        context_index=log.context_index,
        actions=log.n_actions,
    )
    new = FeatureTable(
        {
            "x": log.contexts["x"].take(np.arange(4)),
            "user": category(np.array(["u1", "nobody", "u2", "someone else"])),
            "colour": category(colour[[2, 2, 0, 1]]),
        }
    )
    other = LoggedData.from_arrays(new, [0, 1, 2, 3], np.zeros(4), actions=log.n_actions)
    check(log, model, other)


def category(values: Any) -> CategoricalColumn:
    vocabulary = Vocabulary(sorted(set(values.tolist())))
    return CategoricalColumn(vocabulary.encode(values.tolist()), vocabulary)


@pytest.mark.parametrize("model", ["trees", "top_k"])
def test_thirty_thousand_actions_are_refused_at_once_by_families_that_cannot(model: str) -> None:
    rows = 45_000
    x, action = RANDOM.normal(size=rows), np.arange(rows) % 30_000
    log = LoggedData.from_arrays({"x": x}, action, np.zeros(rows), actions=30_000)
    start = time.perf_counter()
    with pytest.raises(ParameterError, match=r"30,000|2[0-9],\d\d\d") as refused:
        fit_logging_policy(log, model)
    assert time.perf_counter() - start < 10
    assert "Take '" in str(refused.value)


@pytest.mark.parametrize("model", ["popularity", "linear", "greedy_linear", "network", "trees", "top_k"])
def test_held_out_rows_whose_actions_were_never_trained(model: str) -> None:
    log = LoggedData.from_arrays({"x": RANDOM.normal(size=200)}, np.arange(200) // 50, np.zeros(200), actions=4)
    train, held_out = log.take(np.arange(150)), log.take(np.arange(150, 200))
    fitted, _ = FAMILIES[model].fit(train, held_out, None, CONFIG)
    assert logged_log_prob(fitted.policy, held_out).tolist() == pytest.approx([np.log(1 / 151)] * 50)


@pytest.mark.parametrize("model", ["auto", "popularity", "linear", "network", "trees"])
def test_parts_that_stand_for_no_event_are_refused(model: str) -> None:
    """All events in one row: whatever is held out, one part has none."""
    log = numbers(1100)
    alone = replace(log, row_weight=(np.arange(1100) == 7) * 5.0)
    with pytest.raises(ParameterError, match="stand for no event"):
        fit_logging_policy(alone, model, config=CONFIG)


def test_without_lightgbm_trees_are_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    log = greedy_tree(1200).log
    assert "trees" in ensemble.families_for(log)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert "trees" not in ensemble.families_for(log)
    beta = fit_logging_policy(log, "auto")
    assert "cannot be loaded" in beta.note
    assert "left out" in beta.note
    with pytest.raises(ParameterError, match="libgomp1"):
        fit_logging_policy(log, "trees")


def test_on_a_short_log_trees_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert "trees" not in fit_logging_policy(greedy_tree(300).log, "auto").note.lower()
