"""The commands on real files: from a log to a decision, configuration, errors, exit codes and kills."""

import json
import time
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from killer import Killer
from offpolicy.artifacts import load_policy
from offpolicy.atomic import current_version, leftovers
from offpolicy.cli import app
from offpolicy.cli.pages import command_pages
from small_log import ACTIONS, a_frame, cb_lines, dsjson_lines, refused, run

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click")
QUICK = ("--epochs", "3", "--no-propensity-models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log in every format, and a policy learned from it by the command itself."""
    made = tmp_path_factory.mktemp("commands")
    frame = a_frame()
    frame.write_parquet(made / "log.parquet")
    frame.write_csv(made / "log.csv")
    frame.write_ndjson(made / "log.ndjson")
    (made / "log.dsjson").write_text(dsjson_lines(frame))
    (made / "log.vw").write_text(cb_lines(frame))
    found = run(
        "learn", made / "log.parquet", *COLUMNS, "--method", "uips", "--epochs", "8", "--out", made / "run", "--json"
    )
    assert found.code == 0, found.err
    assert found.json == json.loads((made / "run" / "results.json").read_text())
    return made


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.ndjson"])
def test_inspect_infers_the_roles_of_columns_and_says_so(folder: Path, name: str) -> None:
    found = run("inspect", folder / name, "--json").json
    roles = {"item": "action", "click": "reward", "pscore": "propensity", "segment": "categorical", "age": "numeric"}
    assert roles.items() <= found["log"]["columns"].items()
    assert found["log"]["rows"] == 500
    assert any("item (by its name)" in said for said in found["inferred"])
    assert not found["audit"]["consistent"]  # "better" gives the action away, which no propensity can match
    named = run("inspect", folder / name, "--context", "segment", "--context", "age", "--json").json
    assert named["audit"]["consistent"]
    assert found["logging_model"]["log_likelihood"] > found["logging_model"]["uniform_log_likelihood"]


@pytest.mark.parametrize(("name", "limits"), [("log.dsjson", [0.0, 1.0]), ("log.vw", [-1.0, 0.0])])
def test_inspect_reads_vowpal_wabbits_logs_and_says_how_costs_became_rewards(
    folder: Path, name: str, limits: list[float]
) -> None:
    found = run("inspect", folder / name, "--json").json
    assert found["log"]["columns"]["User.segment"] == "categorical"
    assert found["log"]["reward_range"] == limits
    expected = a_frame()["click"].mean()
    assert isinstance(expected, float)
    assert found["log"]["reward_mean"] == pytest.approx(expected + limits[0])
    assert any("−cost" in said for said in found["inferred"])


def test_inspect_for_people_names_columns_and_advice(folder: Path) -> None:
    found = run("inspect", folder / "log.csv", *COLUMNS)
    assert found.code == 0
    for said in ("segment", "rows: 500", "What to make of it", "propensities"):
        assert said in found.out
    assert found.err == ""


def test_learn_leaves_a_policy_and_results_in_the_agreed_shape(folder: Path) -> None:
    found = json.loads((folder / "run" / "results.json").read_text())
    keys = "format version kind run log evaluation weights frequency propensity_models learning choice risky_actions"
    assert list(found) == keys.split()
    assert (found["format"], found["version"], found["kind"]) == ("offpolicy-results", 2, "learn")
    assert set(found["run"]) == {
        "command",
        "config",
        "notes",
        "seed",
        "versions",
        "started",
        "seconds",
        "propensity_fits",
    }
    assert len(found["learning"]["uips"]) == 8
    policy = found["evaluation"]["policies"]["uips"]
    assert policy["interval"]["low"] <= policy["value"] <= policy["interval"]["high"]
    assert {one["model"] for one in found["propensity_models"]} >= {"uniform", "popularity", "linear"}
    assert sum(found["weights"]["uips"]["before"]) == found["log"]["rows"] == sum(found["weights"]["uips"]["after"])
    assert {risky["action"] for risky in found["risky_actions"]} == set(ACTIONS)
    assert sum(risky["weight_share"] for risky in found["risky_actions"]) == pytest.approx(1)
    assert set(found["frequency"][0]) == {"log_frequency", "logging_prob", "uncertainty", "rows", "actions"}
    assert load_policy(folder / "run" / "policy").metadata.method == "uips"


def test_the_learned_policy_is_evaluated_on_contexts_it_was_not_learned_from(folder: Path) -> None:
    found = run("evaluate", folder / "log.parquet", "--policy", folder / "run", "--json", "--no-propensity-models").json
    learned = json.loads((folder / "run" / "results.json").read_text())
    assert found["log"]["rows"] == learned["log"]["rows"] < 500
    ours, theirs = found["evaluation"]["policies"]["run"], learned["evaluation"]["policies"]["uips"]
    assert ours["value"] == pytest.approx(theirs["value"], abs=1e-6)
    assert ours["interval"]["low"] == pytest.approx(theirs["interval"]["low"], abs=1e-6)


def test_evaluate_takes_folders_columns_and_uniform_and_compares_them(folder: Path) -> None:
    policies = ("--policy", f"mine={folder / 'run' / 'policy'}", "--policy", "better", "--compare", "uniform")
    found = run(
        "evaluate", folder / "log.csv", *policies, "--out", folder / "evaluated", "--json", "--no-propensity-models"
    )
    assert found.code == 0, found.err
    compared = {(c["candidate"], c["reference"]) for c in found.json["evaluation"]["comparisons"]}
    assert compared >= {("mine", "logging"), ("better", "logging"), ("mine", "uniform"), ("better", "uniform")}
    assert found.json == json.loads((folder / "evaluated" / "results.json").read_text())
    people = run("evaluate", folder / "log.csv", *policies, "--no-propensity-models")
    assert "P(better)" in people.out
    assert "mine" in people.out


def test_recommend_writes_the_users_ids_with_probabilities(folder: Path) -> None:
    target = folder / "recommended.ndjson"
    found = run(
        "recommend", folder / "run", folder / "log.csv", "--k", "2", "--out", target, "--keep", "user", "--json"
    )
    assert found.json["contexts"] == 500
    frame = pl.read_ndjson(target)
    assert len(frame) == 1000
    assert set(frame["action"]) <= set(ACTIONS)
    assert frame["probability"].is_between(0, 1).all()
    drawn = folder / "drawn.parquet"
    again = folder / "again.parquet"
    for path in (drawn, again):
        run("recommend", folder / "run", folder / "log.csv", "--mode", "sample", "--seed", "3", "--out", path)
    assert pl.read_parquet(drawn).equals(pl.read_parquet(again))


def test_export_checks_the_onnx_file_on_real_rows(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    target = folder / "policy.onnx"
    found = run("export", folder / "run", "--onnx", target, "--check", folder / "log.parquet", "--k", "3", "--json")
    assert found.code == 0, found.err
    assert found.json["checked_contexts"] == 500
    assert target.stat().st_size > 0


def test_report_writes_one_page_from_the_results(folder: Path) -> None:
    found = run("report", folder / "run", "--json")
    assert found.code == 0, found.err
    assert found.json == {"report": str(folder / "run" / "report.html")}
    page = (folder / "run" / "report.html").read_text()
    assert "uips" in page
    assert ACTIONS[-1] not in page  # an action's name stays text


def test_vowpal_wabbits_log_goes_all_the_way(folder: Path) -> None:
    out = folder / "vw-run"
    found = run("learn", folder / "log.dsjson", *QUICK, "--out", out, "--json")
    assert found.code == 0, found.err
    target = folder / "vw.csv"
    assert run("recommend", out, folder / "log.dsjson", "--out", target, "--k", "1").code == 0
    assert set(pl.read_csv(target)["action"]) <= set(ACTIONS)


def test_several_methods_are_kept_and_the_best_is_the_policy(folder: Path) -> None:
    out = folder / "several"
    methods = ("--method", "ce", "--method", "bips-cap", "--set", "learning_rate=0.05")
    found = run("learn", folder / "log.csv", *COLUMNS, *methods, *QUICK, "--out", out, "--json").json
    assert set(found["learning"]) == {"ce", "bips_cap"} == set(found["evaluation"]["policies"])
    best = found["evaluation"]["best"]
    assert load_policy(out / "policy").metadata.method == best
    assert load_policy(out / "policies" / "ce").metadata.config["learning_rate"] == 0.05


def test_tune_prints_settings_ready_to_learn_with(folder: Path) -> None:
    pytest.importorskip("optuna")
    arguments = ("--method", "bips_cap", "--trials", "2", "--epochs", "2", "--out", folder / "tuned")
    found = run("tune", folder / "log.csv", *COLUMNS, *arguments, "--json")
    assert found.code == 0, found.err
    assert [trial["point"] for trial in found.json["trials"]] == [-1, 0, 1]  # the defaults are always tried
    best = max(found.json["trials"], key=lambda trial: trial["value"])
    assert set(found.json["settings"]) == (set() if best["point"] == -1 else {"learning_rate", "cap"})


def test_a_configuration_file_says_what_flags_say_and_flags_win(folder: Path) -> None:
    config = folder / "evaluate.toml"
    config.write_text(
        'policy = ["better"]\ncompare = {even = "uniform"}\ncontext = ["segment", "age"]\naction = "item"\n'
        'reward = "click"\nreward-range = [0, 1]\nlevel = 0.5\npropensity-models = false\n'
        'kind = {age = "numeric"}\njson = true\n'
    )
    flags = (
        "--policy",
        "better",
        "--compare",
        "even=uniform",
        *COLUMNS,
        "--reward-range",
        "0,1",
        "--no-propensity-models",
    )
    written = run("evaluate", folder / "log.csv", "--config", config, "--level", "0.9").json
    typed = run("evaluate", folder / "log.csv", *flags, "--kind", "age=numeric", "--level", "0.9", "--json").json
    assert written["evaluation"]["level"] == 0.9
    for found in (written, typed):
        for changing in ("command", "started", "seconds"):
            del found["run"][changing]
    assert written == typed


def test_pairs_of_the_command_line_join_those_of_the_file(folder: Path) -> None:
    """What a refusal asks for can be added to a configuration without losing what the file says."""
    config = folder / "pairs.toml"
    config.write_text('kind = {age = "numeric", segment = "categorical"}\nmissing = {age = "zero"}\n')
    asked = ("inspect", folder / "log.csv", *COLUMNS, "--config", config, "--json")
    columns = run(*asked, "--kind", "age=categorical", "--missing", "segment=drop").json["log"]["columns"]
    assert columns["age"] == "categorical"
    refused = run(*asked, "--kind", "nothing=numeric")
    assert "kinds declares the column 'nothing'" in refused.err
    assert "missing declares the column 'nothing'" in run(*asked, "--missing", "nothing=drop").err
    both = run(*asked[:-2], config, "--missing", "age=never")
    assert "--missing age must be one of" in both.err


def test_strict_refuses_with_exit_code_2(folder: Path) -> None:
    asked = ("evaluate", folder / "log.csv", "--policy", "far", *COLUMNS, "--no-propensity-models")
    assert run(*asked).code == 0
    strict = run(*asked, "--strict")
    assert strict.code == 2
    assert "run an experiment" in strict.out


def test_errors_are_one_paragraph_that_names_the_remedy(folder: Path, tmp_path: Path) -> None:
    assert "has no column 'segmnt'. Did you mean 'segment'?" in refused(
        "learn", folder / "log.csv", "--context", "segmnt", "--out", tmp_path / "x"
    )
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((folder / "log.parquet").read_bytes()[:-200])
    assert "is truncated" in refused("inspect", cut)
    assert "is no column of" in refused("evaluate", folder / "log.csv", "--policy", "nothing", *COLUMNS)
    assert "Invalid value for '--epochs'" in refused("learn", folder / "log.csv", "--out", tmp_path, "--epochs", "no")
    assert "No such command" in refused("lern")
    assert "There is no method 'uipz'" in refused("learn", folder / "log.csv", "--method", "uipz", "--out", tmp_path)
    assert "hyper-parameter" in refused("learn", folder / "log.csv", *COLUMNS, "--set", "x=1", "--out", tmp_path / "x")
    assert "mode" in refused(
        "recommend", folder / "run", folder / "log.csv", "--out", tmp_path / "a.csv", "--mode", "x"
    )
    assert "must end in one of" in refused("recommend", folder / "run", folder / "log.csv", "--out", tmp_path / "a.xls")
    assert "results.json does not exist" in refused("report", tmp_path)
    assert list(tmp_path.iterdir()) == [cut]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('contxt = "a"', "sets 'contxt', which is not an option of inspect"),
        ("seed = -4", "Invalid value for '--seed'"),
        ("seed = true", "'seed' to true, but it is not a switch"),
        ("json = 1", "must set 'json' to true or false"),
        ("context = [[1]]", "must set 'context' to text or a number"),
        ("action = {a = 1}", "must set 'action' to text or a number"),
        ('reward-range = "0"', "takes two numbers"),
        ('kind = {age = "tall"}', "must be one of numeric, categorical"),
        ("a =", "is not valid TOML"),
        ('action = "\\u0000"', "NUL"),
    ],
)
def test_mistakes_in_a_configuration_file_are_named(folder: Path, tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    assert said in refused("inspect", folder / "log.csv", "--config", config)


def test_a_damaged_policy_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "policy"
    damaged.mkdir()
    for file in current_version(folder / "run" / "policy").iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    contexts, out = folder / "log.csv", tmp_path / "out.csv"
    refused("recommend", damaged, contexts, "--out", out)
    refused("evaluate", contexts, "--policy", damaged)
    refused("export", damaged, "--onnx", tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == [damaged]


def test_debug_shows_the_traceback_before_or_after_the_command(tmp_path: Path) -> None:
    from offpolicy.errors import LogError

    for arguments in (("--debug", "inspect", "nowhere.csv"), ("inspect", "nowhere.csv", "--debug")):
        with pytest.raises(LogError):
            run(*arguments)


def test_the_commands_page_is_current() -> None:
    page = command_pages()
    assert page == (DOCS / "commands.md").read_text()
    for command in app.registered_commands:
        assert f"## offpolicy {command.name}" in page


# Kills


def check_learning(folder: Path, work: Path, tries: int, killer: Killer) -> None:
    """However often it is killed, learning ends with the very policy of an undisturbed run."""
    given = [*COLUMNS, "--method", "uips", "--epochs", "12", "--no-propensity-models"]
    arguments = ["learn", str(folder / "log.parquet"), *given, "--out"]
    assert run(*arguments, work / "whole").code == 0
    out = work / "killed"
    history = out / "training" / "uips" / "metrics.jsonl"
    for _ in range(tries):
        epochs = killer.chance.randint(1, 12)
        killer.kill([*arguments, str(out)], partial(_has_lines, history, epochs))
        if (out / "policy").exists():
            load_policy(out / "policy")
        if (out / "results.json").exists():
            json.loads((out / "results.json").read_text())
    assert history.exists()
    found = run(*arguments, out)
    assert found.code == 0, found.err
    for name in ("policy.safetensors", "checksums.json"):
        assert (current_version(out / "policy") / name).exists()
    whole, after = (load_policy(path / "policy").policy for path in (work / "whole", out))
    assert after.weights.equal(whole.weights)
    assert {path.name for path in out.iterdir()} == {"nuisances", "policy", "results.json", "run.json", "training"}


def check_recommending(folder: Path, work: Path, tries: int, killer: Killer) -> None:
    """The file of recommendations is whole or absent."""
    contexts = work / "contexts.parquet"
    pl.concat([a_frame(500)] * 100).write_parquet(contexts)
    out = work / "out.parquet"
    arguments = ["recommend", str(folder / "run"), str(contexts), "--out", str(out)]
    for _ in range(tries):
        killer.kill(arguments, lambda: leftovers(out))
        if out.exists():
            assert len(pl.read_parquet(out)) == 4 * 50_000
            out.unlink()
    assert run(*arguments).code == 0
    assert len(pl.read_parquet(out)) == 4 * 50_000
    assert leftovers(out) == []


def _has_lines(path: Path, number: int) -> bool:
    return path.exists() and path.read_text().count("\n") >= number


@pytest.mark.timeout(900)  # nearly all of it is waiting, where the machine is busy
def test_kill_while_learning_and_recommending(folder: Path, tmp_path: Path) -> None:
    with Killer(seed=0) as killer:
        check_learning(folder, tmp_path, 2, killer)
        check_recommending(folder, tmp_path, 1, killer)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_twenty_times(folder: Path, tmp_path: Path) -> None:
    with Killer(seed=int(time.time())) as killer:
        check_learning(folder, tmp_path, 20, killer)
        check_recommending(folder, tmp_path, 20, killer)
