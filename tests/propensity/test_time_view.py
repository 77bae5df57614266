"""Time among the contexts: the same rows, windows of equal count, distributions over time, drift that is followed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from logger_worlds import drifting, softmax_linear
from offpolicy.log import LoggedData, NumericColumn
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FAMILIES, FitConfig, ensemble, fit_logging_policy, time_view
from offpolicy.propensity.time_view import INSTANTS, TIME, WINDOWS, TimedPolicy, TimeView


def a_view(log: LoggedData) -> TimeView:
    view = TimeView.of_log(log)
    assert view is not None
    return view


def repeated(rows: int = 600, contexts: int = 4, actions: int = 3) -> LoggedData:
    random = np.random.default_rng(0)
    x = random.integers(0, contexts, rows)
    return LoggedData.from_arrays(
        {"x": x * 1.0},
        random.integers(0, actions, rows),
        random.random(rows),
        actions=actions,
        timestamp=np.arange(rows),
    )


def test_a_log_as_seen_in_time_has_the_same_rows_and_one_more_column() -> None:
    log = repeated()
    seen = a_view(log).seen(log)
    for name in ("action", "reward", "timestamp"):
        assert np.array_equal(getattr(seen, name), getattr(log, name))
    plain, timed = log.contexts["x"], seen.contexts["x"]
    assert isinstance(plain, NumericColumn)
    assert isinstance(timed, NumericColumn)
    assert np.array_equal(timed.values[seen.context_index], plain.values[log.context_index])
    assert list(seen.contexts) == ["x", TIME]
    time = seen.contexts[TIME]
    assert isinstance(time, NumericColumn)
    place = time.values[seen.context_index]
    assert (np.diff(place) >= 0).all()  # rows are in order of time
    assert ((place > 0) & (place < 1)).all()
    assert seen.n_contexts <= 4 * WINDOWS[0]


def test_windows_have_equal_counts() -> None:
    log = drifting(3200).log
    view = a_view(log)
    assert log.timestamp is not None
    count = np.bincount(np.searchsorted(view.edges, log.timestamp, side="right"))
    assert len(count) == WINDOWS[0] == len(view.places)
    assert np.abs(count - 100).max() <= 2
    np.testing.assert_allclose(view.places, (np.arange(32) + 0.5) / 32)


def test_few_instants_make_few_windows() -> None:
    log = replace(repeated(), timestamp=np.repeat([5, 9, 20], 200))
    view = a_view(log)
    assert view.edges.tolist() == [9, 20]
    assert a_view(replace(log, timestamp=np.repeat([5, 9], 300))).edges.tolist() == [9]


def test_no_time_or_one_instant_is_no_view() -> None:
    log = repeated()
    assert TimeView.of_log(replace(log, timestamp=None)) is None
    assert TimeView.of_log(replace(log, timestamp=np.full(600, 17))) is None
    assert TimeView.of_log(log.take([0])) is None


def test_contexts_grow_no_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = repeated()
    assert len(a_view(log).places) == 32  # small: any growth will do
    monkeypatch.setattr(time_view, "SMALL", 0)
    view = a_view(log)
    assert len(view.places) == 4
    assert view.seen(log).n_contexts <= 4 * log.n_contexts


def test_a_log_without_time_is_seen_in_the_middle() -> None:
    log = repeated()
    seen = a_view(log).seen(replace(log, timestamp=None))
    time = seen.contexts[TIME]
    assert isinstance(time, NumericColumn)
    assert set(time.values.tolist()) == {16.5 / 32}
    assert seen.n_contexts == log.n_contexts


def test_rows_before_and_after_the_log_are_in_its_first_and_last_window() -> None:
    log = repeated(6)
    view = a_view(log)
    seen = view.seen(replace(log, timestamp=np.array([-(10**9), -1, 0, 5, 6, 10**9])))
    time = seen.contexts[TIME]
    assert isinstance(time, NumericColumn)
    place = time.values[seen.context_index]
    assert place[[0, 1, 2]].tolist() == [view.places[0]] * 3
    assert place[[4, 5]].tolist() == [view.places[-1]] * 2


@pytest.mark.parametrize("instants", [2, 3, 500])
def test_a_timed_policy_is_the_mean_over_instants_and_rows_are_at_their_own(instants: int) -> None:
    log = drifting(500).log
    time = np.arange(500) * instants // 500
    log = replace(log, timestamp=time)
    view = a_view(log)
    base, _ = FAMILIES["quadratic"].fit(view.seen(log), None, None, FitConfig(epochs=10, ridge=1.0))
    policy = TimedPolicy(base.policy, view)
    probs = policy.log_probs(log.contexts).exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(log.n_contexts, dtype=torch.float64), rtol=0, atol=1e-5)
    n = len(view.places)
    assert n == min(instants, 32)
    windows = range(n) if n < INSTANTS else [4, 12, 20, 28]
    every = [base.policy.log_probs(view.at(log.contexts, w)).double().exp() for w in windows]
    torch.testing.assert_close(probs, torch.stack(every).mean(0), rtol=1e-9, atol=1e-12)
    rows = logged_log_prob(policy, log)
    window = np.searchsorted(view.edges, time, side="right")
    for n_row in (0, 123, 499):
        own = view.at(log.contexts.take([log.context_index[n_row]]), int(window[n_row]))
        expected = float(base.policy.log_probs(own)[0, log.action[n_row]])
        assert float(rows[n_row]) == pytest.approx(expected, abs=1e-5)


def test_with_time_an_ensemble_follows_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "families_for", lambda log: ["popularity", "linear", "quadratic", "network"])
    world, fresh = drifting(3000), drifting(3000, seed=6)
    timed = fit_logging_policy(world.log, "auto")
    assert timed.whole.view is not None
    assert "time" in timed.description
    plain = fit_logging_policy(replace(world.log, timestamp=None), "auto")
    closed = [fresh.gap_closed(beta, world.log) for beta in (timed, plain)]
    assert closed[0] > 0.7
    assert closed[0] > closed[1] + 0.2


def test_time_does_no_harm_where_nothing_drifts() -> None:
    world, fresh = (
        softmax_linear(1500, timestamp=np.arange(1500)),
        softmax_linear(1500, seed=5, timestamp=np.arange(1500)),
    )
    timed = fit_logging_policy(world.log, "auto")
    assert fresh.gap_closed(timed, world.log) > 0.9
