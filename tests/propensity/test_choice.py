"""What is chosen on held-out rows: ridge and model, in worlds where each must win, and rows that stay held out."""

from typing import Any

import numpy as np
import pytest

from offpolicy.errors import ParameterError
from offpolicy.log import LoggedData
from offpolicy.policies import logged_log_prob
from offpolicy.propensity import FitConfig, fit_logging_policy
from offpolicy.propensity.config import RIDGES
from offpolicy.propensity.ensemble import families_for
from offpolicy.propensity.families.softmax import Softmax
from offpolicy.propensity.quality import measure


def drawn(logits: np.ndarray, x: np.ndarray, seed: int = 0, **extra: Any) -> LoggedData:
    """Contexts with one logged action each, drawn from the softmax of these logits."""
    random = np.random.default_rng(seed)
    prob = np.exp(logits - logits.max(1, keepdims=True))
    prob /= prob.sum(1, keepdims=True)
    action = (prob.cumsum(1) < random.random(len(x))[:, None]).sum(1)
    return LoggedData.from_arrays({"x": x}, action, random.random(len(x)), actions=logits.shape[1], **extra)


def world(kind: str) -> LoggedData:
    random = np.random.default_rng(5)
    if kind == "noise":  # many features that say nothing, few rows, one favourite action
        x = random.normal(size=(250, 12))
        return drawn(np.tile([3.0, 0.0, -1.0, -2.0], (250, 1)), x)
    x = random.normal(size=(1500, 3))
    theta = random.normal(size=(4, 3)) * 2
    if kind == "linear":
        return drawn(x @ theta.T, x)
    return drawn(np.stack([3 * x[:, 0] * x[:, 1], -3 * x[:, 0] * x[:, 1], 2 * x[:, 2] ** 2, 0 * x[:, 0]], 1), x)


def scores(log: LoggedData, **settings: dict[str, Any]) -> dict[str, float]:
    return {name: fit_logging_policy(log, **given).quality.log_likelihood for name, given in settings.items()}


@pytest.mark.parametrize(("kind", "strong"), [("noise", True), ("linear", False)])
def test_the_ridge_kept_is_the_one_that_predicts_held_out_rows_best(kind: str, strong: bool) -> None:
    log = world(kind)
    by_ridge = {
        ridge: scores(log, one={"model": "linear", "config": FitConfig(ridge=ridge)})["one"] for ridge in RIDGES
    }
    best = max(by_ridge, key=lambda ridge: by_ridge[ridge])
    fitted = fit_logging_policy(log, "linear")
    assert fitted.whole.ridge == best
    assert fitted.quality.log_likelihood == pytest.approx(by_ridge[best], abs=1e-4)
    assert (best >= 10) == strong
    assert abs(by_ridge[best] - by_ridge[RIDGES[0] if strong else RIDGES[-1]]) > 0.05
    other = fitted.refit(log.take(np.arange(0, log.n_rows, 2)))
    assert other.ridge == best


@pytest.mark.parametrize(("kind", "winner"), [("noise", "popularity"), ("linear", "linear"), ("product", "quadratic")])
def test_auto_gives_most_weight_to_the_family_that_predicts_held_out_rows_best(kind: str, winner: str) -> None:
    log = world(kind)
    each = scores(log, **{name: {"model": name} for name in ("popularity", "linear", "quadratic")})
    assert max(each, key=lambda name: each[name]) == winner
    found = fit_logging_policy(log, "auto")
    weights = {one.name: one.weight for one in found.members}
    assert weights[winner] > 0.5
    assert sum(weights.values()) == pytest.approx(1.0)
    assert winner in found.description
    alone = fit_logging_policy(log, winner)
    assert float(found.row_log_prob.mean()) == pytest.approx(float(alone.row_log_prob.mean()), abs=0.03)


def test_auto_leaves_products_of_many_features_out() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 25))
    wide = drawn(np.stack([4 * x[:, 0] * x[:, 1], -4 * x[:, 0] * x[:, 1]], 1), x)
    assert "quadratic" not in families_for(wide)
    assert "quadratic" in families_for(drawn(x[:, :2], x[:, :3]))


@pytest.mark.parametrize("by", [None, "context", "cluster"])
def test_held_out_rows_share_no_unit_with_the_rows_fitted(by: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    user = random.integers(0, 40, 300)
    log = LoggedData.from_arrays({"u": user * 1.0}, user % 3, np.zeros(300), actions=3, cluster=user // 2)
    met: list[tuple[LoggedData, LoggedData | None]] = []

    def watched(self: Any, train: LoggedData, valid: LoggedData | None, *rest: Any) -> Any:
        met.append((train, valid))
        return plain(self, train, valid, *rest)

    plain = Softmax.fit
    monkeypatch.setattr(Softmax, "fit", watched)
    fit_logging_policy(log, "linear", by=by, held_out=0.25, seed=3)
    (train, valid), (everything, nothing) = met
    assert (everything, nothing) == (log, None)
    assert valid is not None
    assert (train, valid) == log.split((0.75, 0.25), by=by, seed=3)
    users = [set(part.contexts["u"].values.tolist()) for part in (train, valid)]  # type: ignore[union-attr]
    assert users[0].isdisjoint(users[1])


def test_a_log_with_one_unit_is_measured_on_itself_and_odd_shares_are_refused() -> None:
    log = LoggedData.from_arrays(np.ones((6, 1)), [0, 1, 0, 1, 1, 1], np.zeros(6), actions=2)
    assert fit_logging_policy(log, "popularity").quality.rows == 6
    for share in (0.0, 1.0):
        with pytest.raises(ParameterError, match="held_out"):
            fit_logging_policy(log, "popularity", held_out=share)
    with pytest.raises(ParameterError, match="needs clusters"):
        fit_logging_policy(log, "popularity", by="cluster")


def test_quality_is_that_of_a_model_of_the_other_rows_by_hand() -> None:
    """Popularity: counts of the training part, scored on the held-out part, bins and all."""
    log = world("noise")
    found = fit_logging_policy(log, "popularity", held_out=0.3, seed=2).quality
    train, valid = log.split((0.7, 0.3), seed=2)
    share = np.bincount(train.action, minlength=4) / train.n_rows
    smooth = (np.bincount(train.action, minlength=4) + 1) / (train.n_rows + 4)
    own = share[valid.action]
    assert found.rows == valid.n_rows
    assert found.log_likelihood == pytest.approx(np.log(own).mean(), rel=1e-9)
    assert found.uniform_log_likelihood == pytest.approx(-np.log(4))
    assert found.popularity_log_likelihood == pytest.approx(np.log(smooth[valid.action]).mean(), rel=1e-9)
    weight = smooth[valid.action] / own
    assert found.mean_weight == pytest.approx(weight.mean(), rel=1e-9)
    assert found.mean_weight_error == pytest.approx(weight.std() / np.sqrt(len(weight)), rel=1e-9)
    observed = np.bincount(valid.action, minlength=4) / valid.n_rows
    edge = np.floor(2 * np.log(share)) / 2  # bins are half a unit of log β̂ wide
    expected = [(low, share[edge == low].sum(), observed[edge == low].sum()) for low in np.unique(edge)]
    assert [(b.low, b.predicted, b.observed) for b in found.bins] == [pytest.approx(one) for one in expected]
    assert [b.pairs for b in found.bins] == [valid.n_rows * (edge == low).sum() for low in np.unique(edge)]
    wrong = sum(abs(predicted - seen) for _, predicted, seen in expected) / 2
    assert found.calibration_error == pytest.approx(wrong, rel=1e-9)


def test_calibration_is_counted_over_all_actions_of_every_row() -> None:
    log = world("linear")
    policy = fit_logging_policy(log, "linear", config=FitConfig(ridge=1.0)).whole.policy
    found = measure(policy, log, log)
    logged = logged_log_prob(policy, log)
    assert found.log_likelihood == pytest.approx(float(logged.mean()), rel=1e-9)
    everything = policy.log_probs(log.contexts).double()
    cell = np.clip(np.floor(2 * everything.numpy() + 24), 0, 23).astype(int)
    predicted = np.bincount(cell.ravel(), everything.exp().numpy().ravel(), 24)
    own = np.clip(np.floor(2 * logged.numpy() + 24), 0, 23).astype(int)
    error = np.abs(predicted - np.bincount(own, minlength=24)).sum() / log.n_rows / 2
    assert found.calibration_error == pytest.approx(error, rel=1e-4)


def rare(once: int, rows: int = 60, unseen: int = 2) -> LoggedData:
    """Two common actions, `once` actions logged exactly once, and some never."""
    action = np.arange(rows) % 2
    action[:once] = np.arange(2, 2 + once)
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return LoggedData.from_arrays({"x": x}, action, np.zeros(rows), actions=2 + once + unseen)


@pytest.mark.parametrize("model", ["popularity", "counts", "linear"])
@pytest.mark.parametrize(("once", "rows", "mass"), [(0, 60, 1 / 61), (1, 60, 1 / 61), (7, 60, 7 / 61), (9, 12, 0.5)])
def test_actions_never_logged_share_the_good_turing_mass(model: str, once: int, rows: int, mass: float) -> None:
    log = rare(once, rows)
    fitted = fit_logging_policy(log, model, config=FitConfig(ridge=1.0))
    probs = fitted.log_probs(log.contexts).double().exp().numpy()
    unseen = log.action_count == 0
    np.testing.assert_allclose(probs[:, unseen], mass / 2, rtol=1e-6)
    np.testing.assert_allclose(probs.sum(1), 1.0, rtol=1e-5)
    if model == "popularity":
        np.testing.assert_allclose(probs[0, ~unseen], log.action_count[~unseen] / rows * (1 - mass), rtol=1e-9)
    fresh = LoggedData.from_arrays({"x": np.zeros((1, 2))}, [log.n_actions - 1], [0.0], actions=log.n_actions)
    assert float(logged_log_prob(fitted.whole.policy, fresh)[0]) == pytest.approx(np.log(mass / 2))


def test_without_unseen_actions_no_mass_is_set_aside() -> None:
    log = rare(3, unseen=0)
    probs = fit_logging_policy(log, "popularity").log_probs(log.contexts).exp().numpy()
    np.testing.assert_allclose(probs[0], log.action_count / 60, rtol=1e-12)
