"""What the commands compute, beside slow counts over the rows."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from hand_made import HandMade
from offpolicy.artifacts import load_policy
from offpolicy.errors import LogError, OffPolicyError, ParameterError
from offpolicy.evaluation import Asked
from offpolicy.json_writer import jsonable
from offpolicy.results import Results, write_results
from offpolicy.workflows.evaluate import run_evaluate
from offpolicy.workflows.findings import weight_histogram
from offpolicy.workflows.inspect import run_inspect
from offpolicy.workflows.learn import run_learn
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.prepare import resolve
from offpolicy.workflows.run import RunOptions
from small_log import a_frame


def written(folder: Path, frame: pl.DataFrame) -> LogSpec:
    path = folder / "log.parquet"
    frame.write_parquet(path)
    return LogSpec(str(path))


def test_roles_are_inferred_from_names_and_row_numbers_left_out(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "": [0, 1],
            "Arm": ["a", "b"],
            "reward": [0, 1],
            "rating": [1, 2],
            "p": [0.5, 0.5],
            "ts": [1, 2],
            "x": [1.0, 2],
        }
    )
    found = resolve(written(tmp_path, frame))
    assert (found.action, found.reward, found.propensity, found.timestamp) == ("Arm", "reward", "p", "ts")
    assert found.context == ("x",)
    assert "left out: '' (a row number)" in found.notes
    assert any("left out: rating (it looks like an outcome" in said for said in found.notes)


def test_context_is_in_the_order_of_the_file_whatever_is_kept_beside_it(tmp_path: Path) -> None:
    """So that β̂ is the same whichever policies it is asked about."""
    spec = written(tmp_path, pl.DataFrame({"x": [1.0, 2], "y": ["a", "b"], "item": ["a", "b"], "click": [0, 1]}))
    assert resolve(replace(spec, keep=("y",))).context == resolve(spec).context == ("x", "y")


def test_context_that_was_named_and_left_out_is_inferred(tmp_path: Path) -> None:
    spec = written(tmp_path, pl.DataFrame({"x": [1.0, 2], "y": ["a", "b"], "item": ["a", "b"], "click": [0, 1]}))
    with pytest.raises(LogError, match="no column left for the context"):
        resolve(replace(spec, context=("x",), exclude=("x",)))


def test_what_is_named_is_not_inferred(tmp_path: Path) -> None:
    frame = pl.DataFrame({"item": ["a", "b"], "arm": ["c", "d"], "click": [0, 1], "p": [0.5, 0.5]})
    found = resolve(LogSpec(written(tmp_path, frame).source, context=("p", "item")))
    assert (found.context, found.action, found.propensity) == (("p", "item"), "arm", None)


def test_a_log_without_a_column_for_a_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="Name it with --reward"):
        resolve(written(tmp_path, pl.DataFrame({"item": ["a"], "x": [1.0]})))
    with pytest.raises(LogError, match="left for the context"):
        resolve(written(tmp_path, pl.DataFrame({"item": ["a"], "click": [1.0]})))


def test_histograms_count_every_weight_once() -> None:
    ratio = np.append(np.exp(np.random.default_rng(0).normal(size=500)), [0.0, 1e30])
    case = replace(HandMade.draw(0, rows=502), ratio=ratio)
    found = weight_histogram(case.rows, Asked("clipped", {"cap": 2.0}))
    assert sum(found.before) == sum(found.after) == 502  # type: ignore[arg-type]
    edges = np.array(found.edges)
    assert (np.diff(edges) > 0).all()
    middle = (edges[20], edges[21])
    inside = sum(middle[0] <= math.log10(w) < middle[1] for w in ratio.tolist() if w > 0)
    assert found.before[20] == inside
    capped = np.histogram(np.log10(np.clip(ratio, 1e-12, 2.0)).clip(edges[0], edges[-1]), edges)[0]
    assert found.after == capped.tolist()
    even = replace(HandMade.draw(0, rows=12), ratio=np.ones(12))
    assert sum(weight_histogram(even.rows, Asked("ips")).before) == 12  # type: ignore[arg-type]


def test_results_hold_no_number_that_json_cannot(tmp_path: Path) -> None:
    awkward = {"a": math.nan, "b": [math.inf, np.float64(2.5), np.int64(3)], 4: (True, None), "t": torch.ones(2)}
    assert jsonable(awkward) == {"a": None, "b": [None, 2.5, 3], "4": [True, None], "t": [1.0, 1.0]}
    found = Results(kind="learn", log={"reward_mean": math.inf})
    path = write_results(found, tmp_path / "new" / "folder")
    assert json.loads(path.read_text())["log"] == {"reward_mean": None}
    (tmp_path / "file").write_text("")
    with pytest.raises(OffPolicyError):
        write_results(found, tmp_path / "file")


def test_a_policys_column_is_checked_row_by_row(tmp_path: Path) -> None:
    frame = a_frame(50).with_columns(pi=pl.lit(0.5), word=pl.lit("a"))
    frame = frame.with_columns(pi=pl.when(pl.int_range(pl.len()) == 1).then(1.5).otherwise("pi"))
    spec = LogSpec(written(tmp_path, frame).source, ("segment", "age"), "item", "click")
    with pytest.raises(ParameterError, match=r"row 2 \(counted from 1\) holds 1\.5"):
        run_evaluate(spec, {"new": "pi"}, RunOptions())
    with pytest.raises(ParameterError, match="must hold numbers"):
        run_evaluate(spec, {"new": "word"}, RunOptions())


def test_risky_actions_and_shares_agree_with_a_slow_count(tmp_path: Path) -> None:
    frame = a_frame(300)
    spec = LogSpec(written(tmp_path, frame).source, ("segment", "age"), "item", "click", "pscore")
    found = run_evaluate(spec, {"better": "better"}, RunOptions(propensity_models=False)).results.to_json()
    assert found["evaluation"]["logging"]["model"] == "recorded"  # propensities that are named are used
    ratio, item = (frame["better"] / frame["pscore"]).to_numpy(), frame["item"].to_numpy()
    shares = {action: float(ratio[item == action].sum() / ratio.sum()) for action in frame["item"].unique()}
    assert {r["action"]: r["weight_share"] for r in found["risky_actions"]} == pytest.approx(shares)
    counts = dict(frame["item"].value_counts().iter_rows())
    assert {r["action"]: r["count"] for r in found["risky_actions"]} == counts


def test_inspect_names_a_deterministic_logger_and_actions_never_logged(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "segment": [f"s{i % 4}" for i in range(200)],
            "item": [["a", "b"][i % 2] for i in range(200)],
            "click": [i % 3 == 0 for i in range(200)],
        }
    )
    pl.DataFrame({"item": ["a", "b", "c"]}).write_csv(tmp_path / "actions.csv")
    spec = LogSpec(written(tmp_path, frame).source, actions=str(tmp_path / "actions.csv"))
    found = run_inspect(spec)
    assert found["facts"]["contexts_shown_one_action"] == 1.0
    assert found["facts"]["never_logged"] == ["c"]
    said = " ".join(found["advice"])
    assert "deterministic" in said
    assert "never logged" in said


@pytest.mark.parametrize("wrong", [{"level": 7.0}, {"logging_model": "guess"}])
def test_wrong_options_are_refused_before_any_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        RunOptions(**wrong)


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    spec = LogSpec(written(tmp_path, a_frame(20)).source, kinds={"age": "tall"})
    with pytest.raises(ParameterError, match="tall"):
        resolve(spec).read()


def test_integers_are_taken_for_names_and_that_is_said(tmp_path: Path) -> None:
    frame = a_frame(60).with_columns(age=pl.Series([20 + i % 9 for i in range(60)]))
    spec = LogSpec(written(tmp_path, frame).source, ("segment", "age"), "item", "click")
    assert any("--kind age=numeric" in said for said in run_inspect(spec)["inferred"])
    said = run_inspect(replace(spec, kinds={"age": "numeric"}))["inferred"]
    assert not any("age" in one for one in said)


def test_a_run_is_not_labelled_with_fewer_epochs_than_it_ran(tmp_path: Path) -> None:
    spec, options, out = written(tmp_path, a_frame(40)), RunOptions(), tmp_path / "run"
    run_learn(spec, ["ce"], out, options, settings={"epochs": 4})
    with pytest.raises(OffPolicyError, match=r"training/ce holds this training after 4 epochs, but 2 are asked for"):
        run_learn(spec, ["ce"], out, options, settings={"epochs": 2})
    assert load_policy(out / "policy").metadata.config["epochs"] == 4


def test_the_quick_fit_of_inspect_is_bounded_by_contexts_times_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"x": random.normal(size=3000), "action": random.integers(0, 5, 3000), "reward": [0, 1] * 1500}
    )
    assert run_inspect(written(tmp_path, frame))["quick_rows"] == 3000
    monkeypatch.setattr("offpolicy.workflows.inspect.QUICK_NUMBERS", 5 * 600)
    found = run_inspect(written(tmp_path, frame))
    assert found["log"]["rows"] == 3000
    assert 500 < found["quick_rows"] < 700  # a share of contexts, each drawn on its own
