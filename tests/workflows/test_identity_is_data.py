"""Identity is data: actions by id, splits by content, nothing overwritten, references that stay references."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import offpolicy
from offpolicy.datasets import LinearSoftmaxWorld
from offpolicy.drawing import decimals
from offpolicy.errors import OffPolicyError
from offpolicy.log import LoggedData, Vocabulary
from offpolicy.propensity import fits_done
from offpolicy.workflows.holdout import Holdout, unseen_part
from offpolicy.workflows.run import check_folder
from small_log import a_frame, refused, run

COLUMNS = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click")
QUICK = ("--epochs", "3", "--no-propensity-models")


def reordered(log: LoggedData) -> LoggedData:
    """The same rows with the action vocabulary in another order."""
    ids = log.actions.vocabulary.to_list()
    return LoggedData.from_arrays(
        log.contexts,
        log.actions.vocabulary.decode(log.action),
        log.reward,
        context_index=log.context_index,
        actions=Vocabulary([*ids[3:], *ids[:3]]),
    )


def test_actions_are_matched_by_id_wherever_a_policy_meets_a_log(tmp_path: Path) -> None:
    world = LinearSoftmaxWorld.draw(0, n_actions=8, dimensions=3, temperature=1.5)
    log = world.log(0, n_contexts=600).without_propensities()
    other = reordered(log)
    learned = offpolicy.learn_policy(log, "bips_cap", epochs=5)
    offpolicy.save_policy(learned, log, tmp_path / "policy")
    policies = {"learned": learned, "saved": offpolicy.load_policy(tmp_path / "policy")}
    plain = offpolicy.evaluate(log, policies, "linear", estimators=("snips", "dr"))
    mixed = offpolicy.evaluate(other, policies, "linear", estimators=("snips", "dr"))
    for name in policies:
        assert mixed[name].value == pytest.approx(plain[name].value, abs=1e-3)
        for ours, theirs in zip(mixed[name].estimates, plain[name].estimates, strict=True):
            assert ours.value == pytest.approx(theirs.value, abs=1e-3)
    beta = offpolicy.fit_logging_policy(log, "linear")  # fitted under one order, used under the other
    given = offpolicy.evaluate(other, policies, beta, estimators=("snips", "dr"))
    own = offpolicy.evaluate(log, policies, beta, estimators=("snips", "dr"))
    assert given["saved"].value == pytest.approx(own["saved"].value, abs=1e-9)
    assert given["saved"].interval.propensity == pytest.approx(own["saved"].interval.propensity, abs=1e-9)


def test_values_and_relative_differences_are_on_the_users_scale_everywhere(tmp_path: Path) -> None:
    world = LinearSoftmaxWorld.draw(0, n_actions=5, dimensions=3, temperature=1.5)
    log = world.log(0, n_contexts=800)
    stars = LoggedData.from_arrays(
        log.contexts,
        log.action,
        1 + 4 * log.reward,
        context_index=log.context_index,
        actions=5,
        reward_range=(1, 5),
    )
    found = offpolicy.evaluate(stars, {"c": world.target_policy()}, "linear", estimators=("snips",))
    unit = offpolicy.evaluate(log, {"c": world.target_policy()}, "linear", estimators=("snips",))
    assert found["c"].value == found.to_json()["policies"]["c"]["value"] == pytest.approx(1 + 4 * unit["c"].value)
    assert found["c"].interval.low == pytest.approx(1 + 4 * unit["c"].interval.low)
    assert found["c"].detectable_effect == pytest.approx(4 * (unit["c"].detectable_effect or 0.0))
    difference = found.comparisons[0]
    assert difference.difference == pytest.approx(found["c"].value - found.logging.value)
    assert difference.relative == pytest.approx(difference.difference / found.logging.value)
    assert difference.relative != pytest.approx(unit.comparisons[0].relative)


def test_the_printed_the_json_and_the_reported_numbers_agree(tmp_path: Path) -> None:
    frame = a_frame().with_columns(stars=1 + 4 * pl.col("click"))
    frame.write_parquet(tmp_path / "log.parquet")
    columns = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "stars")
    asked = ("evaluate", tmp_path / "log.parquet", *columns, "--reward-range", "1,5", "--policy", "better")
    more = ("--compare", "uniform", "--out", tmp_path / "run")
    told = run(*asked, *more).out
    found = run(*asked, *more, "--json").json
    page = run("report", tmp_path / "run")
    assert page.code == 0
    html = (tmp_path / "run" / "report.html").read_text()
    better, comparison = found["evaluation"]["policies"]["better"], found["evaluation"]["comparisons"][0]
    for number in (better["value"], better["interval"]["low"], comparison["difference"]):
        assert f"{number:.4g}" in told
    assert f"{100 * comparison['relative']:+.3g} %" in told
    half = min(one["interval"]["high"] - one["interval"]["low"] for one in found["evaluation"]["policies"].values()) / 2
    logging = found["evaluation"]["logging"]
    places = decimals(min(half, (logging["interval"]["high"] - logging["interval"]["low"]) / 2))
    assert f"of {better['value']:.{places}f} per decision" in html
    assert f"against {logging['value']:.{places}f} for the logging policy" in html
    assert f"{100 * comparison['relative']:.0f} %" in html
    assert json.loads((tmp_path / "run" / "results.json").read_text())["evaluation"] == found["evaluation"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity")
    a_frame(600).write_parquet(folder / "log.parquet")
    found = run("learn", folder / "log.parquet", *COLUMNS, "--out", folder / "run", *QUICK)
    assert found.code == 0, found.err
    return folder


def _rows_used(found: dict[str, Any]) -> int:
    return int(found["log"]["rows"])


@pytest.mark.parametrize("change", ["dropped", "shuffled", "appended", "csv"])
def test_training_rows_are_left_out_of_any_later_version_of_the_log(learned: Path, tmp_path: Path, change: str) -> None:
    frame = pl.read_parquet(learned / "log.parquet")
    held = json.loads((learned / "run" / "results.json").read_text())["log"]["rows"]
    changed = {
        "dropped": frame[1:],
        "shuffled": frame.sample(fraction=1.0, shuffle=True, seed=3),
        "appended": pl.concat([frame, a_frame(200, seed=9).with_columns(age=pl.col("age") + 100)]),
        "csv": frame,
    }[change]
    path = tmp_path / ("log.csv" if change == "csv" else "log.parquet")
    changed.write_csv(path) if change == "csv" else changed.write_parquet(path)
    found = run("evaluate", path, "--policy", learned / "run", "--json", "--no-propensity-models").json
    new = {"appended": 200}.get(change, 0)
    used = _rows_used(found)
    assert held - 1 <= used - round(0.2 * new) <= held + 25  # of the appended contexts about a fifth are held out too
    assert any(f"was learned from {len(changed) - used:,} of these rows" in note for note in found["run"]["notes"])


def test_a_log_that_shares_no_row_is_evaluated_whole(learned: Path, tmp_path: Path) -> None:
    a_frame(300, seed=5).write_parquet(tmp_path / "other.parquet")
    found = run("evaluate", tmp_path / "other.parquet", "--policy", learned / "run", "--json", *QUICK[2:]).json
    assert _rows_used(found) == 300
    assert any(note.startswith("run was learned from another log") for note in found["run"]["notes"])
    refused = run("evaluate", tmp_path / "other.parquet", "--policy", learned / "run", "--exclude", "age")
    assert refused.code == 1
    assert "The policy was learned with age, which --exclude leaves out." in refused.err


def test_every_policys_training_rows_are_left_out() -> None:
    log = LinearSoftmaxWorld.draw(0, n_actions=4).log(0, n_contexts=500)
    rules = {"a": Holdout.of(log, 0.2, 1), "b": Holdout.of(log, 0.3, 2)}
    part, rows, notes = unseen_part(log, rules)
    assert rows is not None
    trained = [set(rule.divide(log)[0].context_hashes.tolist()) for rule in rules.values()]
    assert not any(set(part.context_hashes.tolist()) & seen for seen in trained)
    assert part.n_rows == len(rows) == log.n_rows - len(trained[0] | trained[1])
    assert sum(" of these rows, which are left out" in note for note in notes) == 2
    assert Holdout.from_json(json.loads(json.dumps(rules["a"].to_json()))) == rules["a"]
    for hostile in (None, {"share": 2, "seed": 0, "unit": "row", "sketch": []}, {"share": 0.2, "seed": "x"}, [1]):
        assert Holdout.from_json(hostile) is None


def test_nuisances_are_fitted_once_for_learning_evaluation_and_report(learned: Path, tmp_path: Path) -> None:
    first = json.loads((learned / "run" / "results.json").read_text())
    assert first["run"]["propensity_fits"] == 2  # the training part and the held-out part
    before = fits_done()
    found = run("evaluate", learned / "log.parquet", "--policy", learned / "run", "--json").json
    assert fits_done() == before
    assert found["run"]["propensity_fits"] == 0
    assert any("not fitted again" in note for note in found["run"]["notes"])
    chosen = first["choice"]["method"]
    assert found["evaluation"]["policies"]["run"] == first["evaluation"]["policies"][chosen] | {"name": "run"}


def test_kept_nuisances_are_those_that_were_fitted(tmp_path: Path) -> None:
    log = LinearSoftmaxWorld.draw(0, n_actions=6).log(0, n_contexts=300).take(np.arange(250))
    fitted = offpolicy.Nuisances(log, seed=3)
    values = fitted.log_logging, fitted.uncertainty(), fitted.reward_model.rewards(log.contexts)
    fitted.save(tmp_path)
    taken = offpolicy.Nuisances.load(tmp_path, log, seed=3)
    assert taken is not None
    again = taken.log_logging, taken.uncertainty(), taken.reward_model.rewards(log.contexts)
    for ours, theirs in zip(again, values, strict=True):
        assert torch.equal(ours, theirs)
    beta, other = fitted.logging_policy, taken.logging_policy
    assert torch.equal(other.log_probs(log.contexts), beta.log_probs(log.contexts))
    assert other.quality == beta.quality  # type: ignore[attr-defined]
    assert other.refit(log).ridge == beta.refit(log).ridge  # type: ignore[attr-defined]
    assert offpolicy.Nuisances.load(tmp_path, log, seed=4) is None
    assert offpolicy.Nuisances.load(tmp_path, log.take(np.arange(249)), seed=3) is None
    path = next((tmp_path / "nuisances").iterdir())
    path.write_bytes(path.read_bytes()[:-40])
    assert offpolicy.Nuisances.load(tmp_path, log, seed=3) is None  # damaged: fitted again


def test_u_is_kept_for_a_log_that_beta_was_not_fitted_to() -> None:
    world = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=3, temperature=1.5)
    train, test = world.log(0, n_contexts=900).without_propensities().split((0.5, 0.5))
    beta = offpolicy.fit_logging_policy(train, "linear")
    found = offpolicy.evaluate(test, {"t": world.target_policy()}, beta)["t"]
    assert "uips" in {each.name for each in found.estimates}
    assert "worst_case" in found.propensity_intervals
    assert not any("uncertainty" in why for why in found.left_out.values())


def test_an_exported_policy_is_not_judged_on_rows_it_was_learned_from(learned: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    log, file = learned / "log.parquet", tmp_path / "policy.onnx"
    assert run("export", learned / "run", "--onnx", file).code == 0
    given = ("evaluate", log, *COLUMNS, "--no-propensity-models", "--json", "--policy")
    one, other = (json.loads(run(*given, f"p={what}").out) for what in (learned / "run", file))
    values = [each["evaluation"]["policies"]["p"]["value"] for each in (one, other)]
    assert values[1] == pytest.approx(values[0], abs=1e-6)
    assert any(said.startswith("p was learned from") for said in other["run"]["notes"])


def test_nothing_that_a_command_did_not_write_is_replaced(learned: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    log.write_bytes((learned / "log.parquet").read_bytes())
    said = refused("recommend", learned / "run", log, "--out", log)
    assert "is what this command reads" in said
    assert "is what this command reads" in refused("recommend", learned / "run", log, "--out", log, "--force")
    assert "exists and is not replaced" in refused("export", learned / "run", "--onnx", log)
    results = (learned / "run" / "results.json").read_bytes()
    said = refused("evaluate", log, "--policy", "better", *COLUMNS, "--out", learned / "run")
    assert "holds the results of `offpolicy learn`" in said
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "results.json").write_text("mine")
    assert "was not written by this command" in refused("learn", log, *COLUMNS, "--out", tmp_path / "mine", *QUICK)
    page = learned / "run" / "report.html"
    page.write_text("my own page")
    assert "is not a report of this command" in refused("report", learned / "run")
    page.unlink()
    assert (learned / "run" / "results.json").read_bytes() == results
    assert log.read_bytes() == (learned / "log.parquet").read_bytes()
    assert (tmp_path / "mine" / "results.json").read_text() == "mine"
    assert run("report", learned / "run").code == run("report", learned / "run").code == 0


def test_the_demo_replaces_its_own_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "impressions.parquet").write_text("mine")
    assert "was not written by this command" in refused("demo", "--n-contexts", "100", "--out", tmp_path)
    assert (tmp_path / "impressions.parquet").read_text() == "mine"


def test_references_never_win_nor_enter_the_correction_nor_fail_strict(tmp_path: Path) -> None:
    frame = a_frame(500)
    frame.write_parquet(tmp_path / "log.parquet")
    worse = ("evaluate", tmp_path / "log.parquet", *COLUMNS, "--policy", "far", "--compare", "better")
    found = run(*worse, "--compare", "uniform", "--json", "--no-propensity-models").json["evaluation"]
    assert found["best"] == "far"
    assert found["policies"]["better"]["value"] > found["policies"]["far"]["value"]
    assert {c["candidate"] for c in found["comparisons"]} == {"far"}
    assert all(c["adjusted_p_value"] == c["p_value"] for c in found["comparisons"])
    assert found["policies"]["far"]["preflight"]["verdict"]["answer"] == "run an experiment"
    good = ("evaluate", tmp_path / "log.parquet", *COLUMNS, "--policy", "better", "--compare", "far", "--strict")
    assert run(*good, "--no-propensity-models").code == 0  # the reference alone cannot be answered


def test_clusters_that_are_not_there_are_not_held_out() -> None:
    log = LinearSoftmaxWorld.draw(0, n_actions=4).log(0, n_contexts=50)
    with pytest.raises(offpolicy.ParameterError, match="by='cluster' needs clusters"):
        offpolicy.fit_logging_policy(log, "linear", by="cluster")


def test_a_fit_that_did_not_converge_says_so() -> None:
    from offpolicy.propensity import FitConfig

    log = LinearSoftmaxWorld.draw(0, n_actions=6, dimensions=5, temperature=0.3).log(0, n_contexts=400)
    cut = offpolicy.fit_logging_policy(log, "linear", config=FitConfig(epochs=1))
    assert "before it converged" in cut.note
    found = offpolicy.evaluate(log, "uniform", cut, estimators=("snips",))
    assert found.logging.note == cut.note
    assert offpolicy.fit_logging_policy(log, "linear").note == ""


def test_a_folder_as_out_file_is_refused_before_any_work(learned: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    said = refused("learn", learned / "log.parquet", *COLUMNS, "--out", tmp_path / "file")
    assert "names a folder" in said
    with pytest.raises(OffPolicyError, match="names a folder"):
        check_folder(tmp_path / "file", "learn", (), force=True)
