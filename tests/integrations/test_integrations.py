"""MLflow, Weights & Biases and TensorBoard keep what was found; each test skips where its library is missing."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import offpolicy
from offpolicy.errors import MissingExtraError, ParameterError
from offpolicy.integrations import flat_metrics, log_to_mlflow, log_to_wandb, write_files
from offpolicy.log import LoggedData
from offpolicy.results import Evaluation, parse_results, read_results
from report_results import evaluation
from small_log import a_frame

CONTEXT = ["segment", "age"]


@pytest.fixture
def own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other libraries find their `requests`, not the benchmark of that name."""
    monkeypatch.setattr(sys, "path", [one for one in sys.path if Path(one).name != "benchmarks"])
    if not hasattr(sys.modules.get("requests"), "Session"):
        monkeypatch.delitem(sys.modules, "requests", raising=False)


@pytest.fixture(scope="module")
def log() -> LoggedData:
    return offpolicy.read_log(a_frame(300), context=CONTEXT, action="item", reward="click")


@pytest.fixture(scope="module")
def found(log: LoggedData) -> Evaluation:
    return offpolicy.evaluate(log, {"my policy": "uniform"})


@pytest.fixture(scope="module")
def policy(log: LoggedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    learned = offpolicy.learn_policy(log, "uips_dr", epochs=1)
    return offpolicy.save_policy(learned, log, tmp_path_factory.mktemp("saved") / "policy")


def test_metrics_are_the_numbers_of_the_results(found: Evaluation) -> None:
    metrics, one = flat_metrics(found), found["my policy"]
    assert metrics["my policy/value"] == one.value
    assert (metrics["my policy/low"], metrics["my policy/high"]) == (one.interval.low, one.interval.high)
    assert metrics["my policy/difference"] == found.comparisons[0].difference
    assert metrics["logging/value"] == found.logging.value
    assert all(math.isfinite(value) for value in metrics.values())


def test_metrics_of_further_rewards_have_names_of_their_own_and_segments_are_left_out() -> None:
    several = Evaluation.model_validate(evaluation())
    metrics = flat_metrics(several)
    whole = [row for row in several.to_frame(kind="polars").iter_rows(named=True) if row["segment"] is None]
    assert len([name for name in metrics if name.endswith("/value")]) == len(whole)
    further = next(one for one in several.outcomes if one.reward != several.reward)
    assert metrics[f"{further.policy}/{further.reward}/value"] == further.value


def test_names_that_no_tracker_takes_are_made_plain(log: LoggedData) -> None:
    odd = offpolicy.evaluate(log, {"a/b<c>\n": "uniform"})
    assert "a_b_c__/value" in flat_metrics(odd)


def test_files_are_the_results_and_their_report(found: Evaluation, tmp_path: Path) -> None:
    results, report = write_files(found, tmp_path)
    assert parse_results(read_results(results), "results").evaluation == found
    assert "my policy" in report.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")  # MLflow warns of its own deprecations
def test_mlflow_keeps_an_evaluation_and_serves_the_policy(
    found: Evaluation,
    policy: Path,
    log: LoggedData,
    tmp_path: Path,
    own_requests: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlflow = pytest.importorskip("mlflow", exc_type=ImportError, reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    run_id, uri = log_to_mlflow(found, policy)
    assert mlflow.active_run() is None
    run = mlflow.get_run(run_id)
    assert run.data.metrics == pytest.approx(flat_metrics(found))
    assert run.data.tags["offpolicy/my policy/answer"] == found["my policy"].preflight.verdict.answer
    kept = {Path(one.path).name for one in mlflow.MlflowClient().list_artifacts(run_id)}
    assert {"report.html", "results.json"} <= kept
    served = mlflow.pyfunc.load_model(uri)
    contexts = a_frame(20).to_pandas()
    own = offpolicy.load_policy(policy)
    pd.testing.assert_frame_equal(served.predict(contexts), own.recommend(contexts, 1).to_pandas())
    drawn = served.predict(contexts, params={"k": 2, "mode": "sample", "seed": 3})
    pd.testing.assert_frame_equal(drawn, own.recommend(contexts, 2, mode="sample", seed=3).to_pandas())
    again = offpolicy.evaluate(log, {"served": policy})
    with mlflow.start_run() as active:
        assert log_to_mlflow(again) == (active.info.run_id, None)
        assert mlflow.active_run() is not None


@pytest.mark.filterwarnings("ignore")  # wandb warns of its own deprecations
def test_wandb_keeps_an_evaluation_and_the_policy(
    found: Evaluation, policy: Path, tmp_path: Path, own_requests: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", exc_type=ImportError, reason="the extra wandb is not installed: 70 MB")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=r"Call wandb\.init\(\) first"):
        log_to_wandb(found)
    with wandb.init(mode="offline", project="test", dir=str(tmp_path)) as run:
        log_to_wandb(found, policy)
        summary = dict(run.summary)
    metrics = flat_metrics(found)
    assert {name: summary[name] for name in metrics} == pytest.approx(metrics)
    assert summary["best"] == found.best
    assert list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_missing_library_is_named_with_its_extra(
    found: Evaluation, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    log_to: Any = {"mlflow": log_to_mlflow, "wandb": log_to_wandb}[library]
    with pytest.raises(MissingExtraError, match=rf"pip install 'offpolicy\[{library}\]'"):
        log_to(found)


def test_tensorboard_events_hold_the_metrics_of_every_epoch(log: LoggedData, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed: 75 MB")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    offpolicy.learn_policy(log, "ce", epochs=2, directory=tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = pl.read_ndjson(tmp_path / "metrics.jsonl")
    assert "objective" in events.Tags()["scalars"]
    for name in events.Tags()["scalars"]:
        kept = [one.value for one in events.Scalars(name)]
        np.testing.assert_allclose(kept, written[name].to_numpy(), rtol=1e-5)
