"""What other libraries say of a log: run by `peers.py` in an environment of each library's own, never imported by ours.

    python peer_lines.py {nuisances|obp|vw|skdr|by_hand} FOLDER ...

`log.npz` in each folder holds `context` (rows × numbers), `action`, `reward`, `target` (rows × actions, the
probabilities of the policy to evaluate), `cluster` and `time`; "nuisances", which goes first, puts β̂ and q̂ beside it.
One line of JSON a folder is printed: intervals and values by line, seconds of the processor, memory.

Every peer is run as somebody would who knows it well. Nobody recorded propensities, so all of them get the same β̂,
fitted out of fold: logistic regression (two penalties) or a calibrated random forest, whichever gives the held-out
halves the highest likelihood. Reward models are boosted trees, cross-fitted. What a library tunes by itself, it tunes.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Lines = dict[str, list[float]]
"""[low, high, value] by line."""
Log = dict[str, Any]

LEVEL = 0.95
NUISANCES = "nuisances.npz"
NORMAL = 1.959963984540054
CALIBRATION_FOLDS = 3
FLOOR = 1e-5
"""Least estimated propensity."""


def main() -> None:
    """Run one peer on every log."""
    peer, folders = sys.argv[1], [Path(one) for one in sys.argv[2:]]
    warnings.simplefilter("ignore")
    for place, folder in enumerate(folders):
        log = _arrays(folder / "log.npz")
        if peer == "nuisances":
            print(json.dumps(measured(partial(write_nuisances, log, folder / NUISANCES))), flush=True)
            continue
        log |= _arrays(folder / NUISANCES)
        if not place:
            measured(partial(_said, peer, small(log)))  # imports, before the clock starts
        found = measured(partial(_said, peer, log))
        found["seconds"] += round(sum(float(log[f"{name}_seconds"]) for name in USES[peer]), 3)
        print(json.dumps(found), flush=True)


def _said(peer: str, log: Log) -> dict[str, Any]:
    return {"lines": PEERS[peer](log)}


def _arrays(path: Path) -> Log:
    with np.load(path) as file:
        return dict(file)


def write_nuisances(log: Log, path: Path) -> dict[str, Any]:
    """Fit β̂ and q̂ for all peers, and write them with the seconds that they took."""
    made: dict[str, Any] = {}
    for name, fitted in (("beta", propensities), ("q", rewards)):
        start = time.process_time()
        made[name] = fitted(log)
        made[f"{name}_seconds"] = time.process_time() - start
    np.savez(path, **made)
    return {"seconds": made["beta_seconds"] + made["q_seconds"]}


def small(log: Log) -> Log:
    """A few rows of a log, to warm up on; all actions are there."""
    rows = np.unique(np.concatenate([np.arange(300), np.unique(log["action"], return_index=True)[1]]))
    return {name: values[rows] if np.ndim(values) else values for name, values in log.items()}


def measured(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a job returns, or its error, with its seconds and the memory it needed beyond what was there before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak of this process is that from here on
    before, start = _memory("VmRSS"), time.process_time()
    try:
        found = job()
    except Exception as error:  # what a library breaks on is part of the comparison
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    seconds, peak = time.process_time() - start, _memory("VmHWM")
    return found | {"seconds": round(seconds, 3), "memory_mb": round(peak - before, 1), "peak_mb": round(peak, 1)}


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def propensities(log: Log) -> np.ndarray:
    """β̂(·|x) of every row, out of fold: the model with the higher held-out likelihood."""
    context, action, actions = log["context"], log["action"], log["target"].shape[1]
    models: list[Any] = [make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)) for c in (1.0, 0.1)]
    models.append(RandomForestClassifier(80, min_samples_leaf=10, random_state=0))
    if np.bincount(action).min() >= 2 * CALIBRATION_FOLDS:
        models[-1] = CalibratedClassifierCV(models[-1], cv=CALIBRATION_FOLDS)
    fitted = []
    for model in models:
        found = np.full((len(action), actions), FLOOR)
        folds = StratifiedKFold(2, shuffle=True, random_state=0)
        for train, test in folds.split(context, action):
            model.fit(context[train], action[train])
            found[test[:, None], model.classes_[None, :]] = np.maximum(model.predict_proba(context[test]), FLOOR)
        fitted.append(found / found.sum(1, keepdims=True))
    return max(fitted, key=lambda one: float(np.log(one[np.arange(len(action)), action]).mean()))


def rewards(log: Log, folds: int = 3) -> np.ndarray:
    """q̂(x, ·) of every row, cross-fitted boosted trees on the context and the action's indicator."""
    context, action, target = log["context"], log["action"], log["target"]
    indicators = np.eye(target.shape[1])
    found = np.zeros(target.shape)
    part = np.random.default_rng(0).permutation(len(action)) % folds
    for fold in range(folds):
        train, test = part != fold, part == fold
        model = _regression(log["reward"])
        model.fit(np.hstack([context[train], indicators[action[train]]]), log["reward"][train])
        for a in range(target.shape[1]):
            asked = np.hstack([context[test], np.repeat(indicators[a : a + 1], test.sum(), 0)])
            found[test, a] = (
                model.predict_proba(asked)[:, 1] if hasattr(model, "predict_proba") else model.predict(asked)
            )
    return found


def _regression(reward: np.ndarray) -> Any:
    binary = set(np.unique(reward)) == {0.0, 1.0}
    return HistGradientBoostingClassifier(max_iter=50) if binary else HistGradientBoostingRegressor(max_iter=50)


def by_hand(log: Log) -> Lines:
    """SNIPS and doubly robust estimates with errors over clusters, in NumPy."""
    rows, q = np.arange(len(log["action"])), log["q"]
    target, reward = log["target"], log["reward"]
    weight = target[rows, log["action"]] / log["beta"][rows, log["action"]]
    direct, residual = (target * q).sum(1), reward - q[rows, log["action"]]
    snips = (weight * reward).sum() / weight.sum()
    correction = (weight * residual).sum() / weight.sum()
    parts = {
        "SNIPS": (snips, weight * (reward - snips) / weight.mean()),
        "DR": ((direct + weight * residual).mean(), direct + weight * residual - (direct + weight * residual).mean()),
        "SNDR": (
            direct.mean() + correction,
            direct - direct.mean() + weight * (residual - correction) / weight.mean(),
        ),
    }
    return {name: _clustered(value, influence, log["cluster"]) for name, (value, influence) in parts.items()}


def _clustered(value: float, influence: np.ndarray, cluster: np.ndarray) -> list[float]:
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], influence)
    half = NORMAL * float(np.sqrt((sums**2).sum())) / len(influence)
    return [value - half, value + half, float(value)]


def obp(log: Log) -> Lines:
    """Open Bandit Pipeline: its regression model, its estimators tuned by SLOPE, its bootstrap."""
    from obp.ope import (
        DoublyRobustTuning,
        DoublyRobustWithShrinkageTuning,
        OffPolicyEvaluation,
        RegressionModel,
        SelfNormalizedDoublyRobust,
        SelfNormalizedInverseProbabilityWeighting,
        SubGaussianDoublyRobustTuning,
        SwitchDoublyRobustTuning,
    )

    n, actions = log["target"].shape
    action, reward, dist = log["action"].astype(int), log["reward"].astype(float), log["target"][:, :, None]
    # The tuned estimators read `pscore` while they tune, so the estimates are handed over as if they had been recorded.
    pscore = log["beta"][np.arange(n), action]
    model = RegressionModel(n_actions=actions, base_model=_regression(reward))
    q = model.fit_predict(context=log["context"], action=action, reward=reward, n_folds=3, random_state=0)
    lambdas = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, np.inf]
    estimators = [
        SelfNormalizedInverseProbabilityWeighting(estimator_name="SNIPW"),
        SelfNormalizedDoublyRobust(estimator_name="SNDR"),
        DoublyRobustTuning(lambdas=list(lambdas), estimator_name="DR, tuned"),
        SwitchDoublyRobustTuning(lambdas=list(lambdas), estimator_name="Switch-DR, tuned"),
        DoublyRobustWithShrinkageTuning(lambdas=list(lambdas), estimator_name="DRos, tuned"),
        SubGaussianDoublyRobustTuning(lambdas=[0.001, 0.01, 0.05, 0.1, 0.5, 1.0], estimator_name="SGDR, tuned"),
    ]
    feedback = {
        "n_rounds": n,
        "n_actions": actions,
        "context": log["context"],
        "action": action,
        "reward": reward,
        "pscore": pscore,
        "position": np.zeros(n, dtype=int),
        "action_context": np.eye(actions),
    }
    ope = OffPolicyEvaluation(bandit_feedback=feedback, ope_estimators=estimators)
    values = ope.estimate_policy_values(action_dist=dist, estimated_rewards_by_reg_model=q)
    ends = ope.estimate_intervals(
        action_dist=dist, estimated_rewards_by_reg_model=q, n_bootstrap_samples=1000, random_state=0
    )
    return {name: [one["95.0% CI (lower)"], one["95.0% CI (upper)"], float(values[name])] for name, one in ends.items()}


def vw(log: Log) -> Lines:
    """The estimators of Vowpal Wabbit, fed row by row."""
    from estimators.bandits import clopper_pearson, cressieread, cs, gaussian, ips, snips

    rows = np.arange(len(log["action"]))
    logged, target = log["beta"][rows, log["action"]], log["target"][rows, log["action"]]
    points = {"ips": ips.Estimator(), "snips": snips.Estimator(), "cressieread": cressieread.Estimator()}
    intervals = {
        "IPS, gaussian": (gaussian.Interval(), "ips"),
        "Cressie-Read": (cressieread.Interval(), "cressieread"),
        "SNIPS in the Cressie-Read interval": (cressieread.Interval(), "snips"),
        "confidence sequence": (cs.Interval(), "ips"),
        "Clopper-Pearson": (clopper_pearson.Interval(), "ips"),
    }
    for p_log, r, p_pred in zip(logged.tolist(), log["reward"].tolist(), target.tolist(), strict=True):
        for one in (*points.values(), *(each for each, _ in intervals.values())):
            one.add_example(p_log, r, p_pred)
    return {name: [*interval.get(1 - LEVEL), points[point].get()] for name, (interval, point) in intervals.items()}


class _Given:
    """A policy as skdr-eval takes one: it makes π(a|x) ∝ 1/prediction of a fitted model, so 1/π is predicted."""

    def __init__(self, target: np.ndarray) -> None:
        self.target = target

    def fit(self, x: np.ndarray, y: np.ndarray) -> "_Given":
        """Nothing to fit."""
        return self

    def predict(self, x: np.ndarray) -> Any:
        """1/π of every row and action, in the order of rows."""
        return 1 / np.maximum(self.target.ravel(), 1e-12)


def skdr(log: Log) -> Lines:
    """skdr-eval: its one call with its block bootstrap, and its estimators on nuisances from outside."""
    import pandas as pd
    from skdr_eval import evaluate_sklearn_models
    from skdr_eval.estimators import build_strategy
    from skdr_eval.estimators.core import dr_value_with_strategy

    n, actions = log["target"].shape
    columns = {f"cli_{place}": values for place, values in enumerate(log["context"].T)}
    columns |= {f"op{a:04d}_elig": np.ones(n, dtype=int) for a in range(actions)}
    columns |= {"arrival_ts": log["time"], "action": [f"op{a:04d}" for a in log["action"]], "reward": log["reward"]}
    artifact = evaluate_sklearn_models(
        logs=pd.DataFrame(columns),
        models={"target": _Given(log["target"])},
        fit_models=False,
        n_splits=6,  # the rows before the first split get uniform propensities: the more splits, the fewer they are
        policy_train="all",
        ci_bootstrap=True,
        y_col="reward",
        estimators=("DR", "SNDR", "SWITCH-DR"),
    )
    found = {
        f"{row.estimator}, one call": [float(row.ci_lower), float(row.ci_upper), float(row.V_hat)]
        for row in artifact.report.itertuples()
    }
    for name in ("DR", "SNDR"):
        one = dr_value_with_strategy(
            propensities=log["beta"],
            policy_probs=log["target"],
            Y=log["reward"],
            q_hat=log["q"],
            A=log["action"].astype(int),
            elig=np.ones((n, actions), dtype=int),
            strategy=build_strategy(name, clip=float("inf")),
        )
        half = NORMAL * one.SE_if
        found[f"{name}, own nuisances"] = [one.V_hat - half, one.V_hat + half, float(one.V_hat)]
    return found


USES = {"obp": ("beta",), "vw": ("beta",), "skdr": ("beta", "q"), "by_hand": ("beta", "q")}
"""What each takes from `write_nuisances`; OBP has a regression model of its own."""
PEERS: dict[str, Callable[[Log], Lines]] = {"obp": obp, "vw": vw, "skdr": skdr, "by_hand": by_hand}

if __name__ == "__main__":
    main()
