"""`OffPolicyClassifier` keeps scikit-learn's contract, and learns from rewards what a plain classifier cannot."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import offpolicy
from offpolicy.integrations import OffPolicyClassifier

QUICK: dict[str, Any] = {"epochs": 15, "logging_policy": "linear"}


@parametrize_with_checks([OffPolicyClassifier()])  # type: ignore[untyped-decorator]
def test_it_keeps_the_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def logged(rows: int = 3_000) -> dict[str, np.ndarray]:
    """A logger that mostly shows what does not pay: which action pays depends on x, and the next one is shown."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 2))
    right = (x @ np.array([[2.0, -1.0, -1.0], [0.0, 1.7, -1.7]])).argmax(1)
    action = np.where(random.random(rows) < 0.6, (right + 1) % 3, random.integers(0, 3, rows))
    reward = (random.random(rows) < 0.1 + 0.7 * (action == right)).astype(float)
    return {"x": x, "right": right, "action": action, "reward": reward}


def test_it_learns_what_pays_rather_than_what_was_done() -> None:
    data = logged()
    names = np.array(["tea", "coffee", "milk"])
    policy = OffPolicyClassifier("uips_dr", options=QUICK)
    policy.fit(data["x"], names[data["action"]], data["reward"])
    assert list(policy.classes_) == sorted(names)
    imitated = LogisticRegression().fit(data["x"], names[data["action"]])
    right = names[data["right"]]
    assert (policy.predict(data["x"]) == right).mean() > 0.8
    assert (imitated.predict(data["x"]) == right).mean() < 0.2


def test_without_rewards_it_is_logistic_regression() -> None:
    data = logged(1_000)
    own = OffPolicyClassifier().fit(data["x"], data["action"]).predict_proba(data["x"])
    theirs = LogisticRegression().fit(data["x"], data["action"]).predict_proba(data["x"])
    shown = np.arange(1_000), data["action"]
    assert np.log(own[shown]).mean() == pytest.approx(np.log(theirs[shown]).mean(), abs=0.02)


def a_frame(rows: int = 600) -> pl.DataFrame:
    data = logged(rows)
    return pl.DataFrame(
        {
            "age": data["x"][:, 0],
            "country": np.array(["at", "fr"])[(data["x"][:, 1] > 0).astype(int)],
            "item": data["action"],
            "click": data["reward"],
        }
    )


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_frames_may_hold_ids_and_equal_what_a_log_gives(kind: str) -> None:
    frame = a_frame()
    contexts: Any = frame.select("age", "country")
    contexts = contexts if kind == "polars" else contexts.to_pandas()
    policy = OffPolicyClassifier("uips", options=QUICK).fit(contexts, frame["item"].to_numpy(), frame["click"])
    log = offpolicy.read_log(frame, context=["age", "country"], action="item", reward="click", actions=[0, 1, 2])
    learned = offpolicy.learn_policy(log, "uips", seed=0, **QUICK)
    expected = learned.policy.log_probs(log.contexts).exp().numpy()[log.context_index]
    np.testing.assert_allclose(policy.predict_proba(contexts), expected, atol=1e-6)
    with pytest.raises(ValueError, match="feature names"):
        policy.predict(contexts[["country", "age"]])


def test_it_is_evaluated_and_composed_like_any_classifier() -> None:
    data = logged(600)
    policy = make_pipeline(StandardScaler(), OffPolicyClassifier(random_state=1))
    assert cross_val_predict(clone(policy), data["x"], data["action"], cv=2).shape == (600,)
    log = offpolicy.LoggedData.from_arrays(data["x"], data["action"], data["reward"])
    fitted = OffPolicyClassifier("uips", options=QUICK).fit(data["x"], data["action"], data["reward"])
    found = offpolicy.evaluate(log, {"policy": fitted})
    assert found["policy"].value > found.logging.value


def test_rewards_may_be_of_another_range_and_columns_of_another_kind() -> None:
    frame = a_frame()
    contexts = pd.DataFrame({"age": frame["age"].to_numpy(), "hour": np.arange(600) % 3})
    policy = OffPolicyClassifier("uips", options=QUICK, reward_range=(-10, 10), kinds={"hour": "categorical"})
    policy.fit(contexts, frame["item"].to_numpy(), 20 * frame["click"].to_numpy() - 10)
    plain = OffPolicyClassifier("uips", options=QUICK, kinds={"hour": "categorical"})
    plain.fit(contexts, frame["item"].to_numpy(), frame["click"].to_numpy())
    np.testing.assert_allclose(policy.predict_proba(contexts), plain.predict_proba(contexts), atol=1e-6)
    assert {column.name: column.kind for column in policy.policy_.context} == {"age": "numeric", "hour": "categorical"}
