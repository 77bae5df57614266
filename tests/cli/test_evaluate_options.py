"""`offpolicy evaluate` and `learn` with several rewards, policies in files, times and formats: as in Python."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy import evaluate, read_log
from offpolicy.artifacts import load_policy
from offpolicy.cli.evaluate import INTERVAL_NAMES, named_policies
from offpolicy.cli.options import LOGGING_MODELS
from offpolicy.drawing import chance, p_value
from offpolicy.errors import ParameterError
from offpolicy.evaluation.intervals import INTERVALS
from offpolicy.propensity import MODELS
from small_log import ACTIONS, a_frame, refused, run

ROLES = ("--context", "segment", "--context", "age", "--action", "item", "--timestamp", "when", "--cluster", "user")
FAST = ("--logging-model", "linear", "--no-propensity-models")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("options")
    frame = a_frame(600)
    chance = np.random.default_rng(1)
    times = np.datetime64("2026-09-01", "us") + np.arange(600) * np.timedelta64(2 * 3600 * 10**6, "us")
    money = np.where(frame["click"] == 1, chance.lognormal(1, 1, 600).round(2), 0.0)
    frame = frame.with_columns(
        when=pl.Series(times),
        revenue=pl.Series(money),
        returns=pl.Series((chance.random(600) < 0.2).astype(int)),
        request=pl.Series([f"q{n}" for n in range(600)]),
    )
    frame.write_parquet(made / "log.parquet")
    frame.write_csv(made / "log.csv")
    best = [[ACTIONS[(int(s[1:]) + 1) % 4]] for s in frame["segment"]]
    pl.DataFrame({"request": frame["request"], "items": best}).head(500).write_parquet(made / "lists.parquet")
    pl.DataFrame({"segment": ["s0", "s1", "s2"], "item": ["coffee", "juice", "milk"], "p": [0.9, 0.9, 0.9]}).write_csv(
        made / "rows.csv"
    )
    return made


def found_by(folder: Path, *words: str) -> dict[str, object]:
    asked = run("evaluate", folder / "log.parquet", *ROLES, *FAST, *words, "--json")
    assert asked.code == 0, asked.err
    plain: dict[str, object] = asked.json["evaluation"]
    return plain


def test_several_rewards_are_those_of_the_library(folder: Path) -> None:
    words = ("--reward", "click", "--reward", "value=0.1*click + revenue", "--guardrail", "returns<=+10%")
    found = found_by(folder, *words, "--policy", "better", "--winsorise", "0.02")
    log = read_log(
        folder / "log.parquet",
        context=["segment", "age"],
        action="item",
        reward="click",
        timestamp="when",
        cluster="user",
        keep=["value=0.1*click + revenue", "returns", "better"],
    )
    asked = {"rewards": ["value"], "guardrails": ["returns<=+10%"], "winsorise": 0.02}
    own = evaluate(log, {"better": "better"}, "linear", **asked).to_json()  # type: ignore[arg-type]
    assert found["outcomes"] == own["outcomes"]
    assert found["decisions"] == own["decisions"]
    text = run(
        "evaluate", folder / "log.parquet", *ROLES, *FAST, *words, "--policy", "better", "--winsorise", "0.02"
    ).out
    assert "Taken together" in text
    assert "value winsorised at 0.02" in text
    assert str(own["decisions"][0]["sentence"]) in text


@pytest.mark.parametrize("named", ["mine=returns", "(returns)", "+returns"])
def test_a_column_under_another_name_is_that_column(folder: Path, named: str) -> None:
    plain, first = (found_by(folder, "--reward", one, "--policy", "better") for one in ("returns", named))
    assert first["reward"] == named.partition("=")[0]
    assert first["policies"] == plain["policies"]
    both = [found_by(folder, "--reward", "click", "--reward", one, "--policy", "better") for one in ("returns", named)]
    theirs, ours = ([one | {"reward": ""} for one in each["outcomes"]] for each in both)  # type: ignore[attr-defined]
    assert ours == theirs


def test_files_of_policies_are_joined_and_what_they_miss_is_said(folder: Path) -> None:
    words = (
        "--reward",
        "click",
        "--policy",
        "new=" + str(folder / "lists.parquet"),
        "--policy",
        str(folder / "rows.csv"),
    )
    asked = run("evaluate", folder / "log.parquet", *ROLES, *FAST, *words)
    assert asked.code == 0, asked.err
    assert "new: joined by request (lists share 95% of the probability)." in asked.out
    assert "new has no entry for 100 of 600 rows, which are left out." in asked.out
    assert "rows: 1 of its actions were never logged" in asked.out
    assert "rows: joined by segment (p)." in asked.out
    roles = {"context": ["segment", "age"], "action": "item", "cluster": "user", "timestamp": "when"}
    log = read_log(folder / "log.parquet", reward="click", keep=["request"], **roles)  # type: ignore[arg-type]
    frame = pl.read_parquet(folder / "lists.parquet")
    own = evaluate(log.take(np.arange(500)), {"new": frame}, "linear")
    theirs = found_by(folder, "--reward", "click", "--policy", "new=" + str(folder / "lists.parquet"))
    assert theirs["policies"]["new"]["value"] == pytest.approx(own["new"].value, rel=1e-6)  # type: ignore[index]


def test_rows_from_a_date_on(folder: Path) -> None:
    found = found_by(folder, "--reward", "click", "--policy", "better", "--held-out-after", "2026-10-01")
    assert found["log"]["rows"] == 600 - 30 * 12  # type: ignore[index]
    words = ("evaluate", folder / "log.parquet", *ROLES, "--reward", "click", "--policy", "better", "--held-out-after")
    said = refused(*words, "2027-01-01")
    assert "no rows from 2027-01-01: its times reach from 2026-09-01T00:00:00" in said
    said = refused(*words, "soon")
    assert "such as 2026-10-01" in said


def test_how_many_rows_a_date_leaves_is_said(folder: Path) -> None:
    words = ("--reward", "click", "--policy", "better", "--held-out-after", "2026-10-01")
    said = run("evaluate", folder / "log.parquet", *ROLES, *FAST, *words).out
    assert "Evaluated on the 240 of 600 rows from 2026-10-01 on." in said


def test_shares_chances_and_p_values_are_printed_for_people(folder: Path) -> None:
    words = ("evaluate", folder / "log.csv", *ROLES, *FAST, "--reward", "click", "--policy", "better", "--by", "month")
    plain = run(*words, "--format", "json").json["evaluation"]
    compared, segments = plain["comparisons"][0], plain["segments"]
    said = {"table": run(*words).out, "md": run(*words, "--format", "md").out}
    row = next(line for line in said["table"].splitlines() if "better" in line and "logging" in line)
    assert f"{100 * compared['relative']:+.3g} %" in row
    for text in said.values():
        assert chance(compared["probability_of_improvement"]) in text
        assert all(p_value(one["adjusted_p_value"]) in text for one in segments if not one["refused"])
        assert not re.search(r"[0-9]e-|×10⁻", text)


def test_a_recommendation_by_one_of_several_rewards_says_so(folder: Path, tmp_path: Path) -> None:
    words = ("learn", folder / "log.parquet", *ROLES, *FAST, "--reward", "click", "--epochs", "1")
    said = run(*words, "--guardrail", "returns", "--out", tmp_path / "two").out
    assert "\nRecommendation by click alone\n" in said
    assert "\nRecommendation\n" in run(*words, "--out", tmp_path / "one").out


def test_an_option_that_is_not_there_is_a_sentence(folder: Path) -> None:
    assert "No such option: --nothing. See offpolicy --help." in refused("learn", folder / "log.csv", "--nothing", "1")


def test_a_policy_learned_before_a_date_is_evaluated_after_it(folder: Path, tmp_path: Path) -> None:
    learned = run("learn", folder / "log.parquet", *ROLES, *FAST, "--reward", "click", "--guardrail", "returns",
                  "--method", "ce", "--epochs", "2", "--held-out-after", "2026-10-01",
                  "--out", tmp_path / "run")  # fmt: skip
    assert learned.code == 0, learned.err
    assert "Learned from 360 rows, evaluated on the 240 others." in learned.out
    assert "returns: lower is better, at most 2 % worse" in learned.out
    rule = (load_policy(tmp_path / "run" / "policy").metadata.model_extra or {})["held_out"]
    assert (rule["unit"], rule["after"]) == ("time", "2026-10-01T00:00:00.000000")
    again = run("evaluate", folder / "log.parquet", "--policy", tmp_path / "run", *FAST)
    assert "which are left out" in again.out
    assert "Evaluated on the 240 rows that no policy was learned from." in again.out
    assert "not fitted again" in again.out


def test_formats_say_the_same(folder: Path) -> None:
    words = ("evaluate", folder / "log.csv", *ROLES, *FAST, "--reward", "click", "--policy", "better", "--by", "month")
    plain = run(*words, "--format", "json").json["evaluation"]
    table = pl.read_csv(io.StringIO(run(*words, "--format", "csv").out))
    assert table["value"].to_list() == pytest.approx(
        [plain["logging"]["value"], plain["policies"]["better"]["value"], *(s["value"] for s in plain["segments"])]
    )
    assert table["segment"].to_list() == [None, None, "2026-09", "2026-10"]
    markdown = run(*words, "--format", "md").out
    assert markdown.startswith("| reward | by |")
    assert markdown.count("\n| ") == len(table)


def test_every_estimator_interval_gamma_and_refits_is_within_reach(folder: Path) -> None:
    found = found_by(folder, "--reward", "click", "--policy", "better", "--estimator", "ips", "--estimator", "snips",
                     "--interval", "bootstrap", "--interval", "betting", "--gamma", "3", "--refits", "2")  # fmt: skip
    policy = found["policies"]["better"]  # type: ignore[index]
    assert [one["name"] for one in policy["estimates"]] == ["ips", "snips"]
    assert all(set(one["intervals"]) == {"bootstrap", "betting"} for one in policy["estimates"])
    assert set(policy["propensity_intervals"]) == {"worst_case", "refit_bootstrap"}
    assert "There is no estimator 'nothing'" in refused(
        "evaluate", folder / "log.csv", *ROLES, "--reward", "click", "--policy", "better", "--estimator", "nothing"
    )


def test_what_is_asked_for_is_printed(folder: Path) -> None:
    words = ("evaluate", folder / "log.parquet", *ROLES, "--reward", "click", *FAST, "--policy", "better")
    assert "Estimators" not in run(*words).out
    asked = ("--estimator", "ips", "--estimator", "dr", "--interval", "betting", "--refits", "2")
    found = run(*words, *asked, "--json").json["evaluation"]["policies"]["better"]
    said = run(*words, *asked).out
    listed = said[said.index("Estimators and 95% intervals") :]
    ends = found["estimates"][0]["intervals"]["betting"]
    row = next(line for line in listed.splitlines() if " ips " in line)
    assert all(f"{value:.4g}" in row for value in (found["estimates"][0]["value"], ends["low"], ends["high"]))
    assert "refit_bootstrap" in listed
    assert "dr (better): it needs a reward model" in listed


@pytest.mark.parametrize("gamma", ["nan", "inf", "-1"])
def test_gamma_is_a_number_that_counts(folder: Path, gamma: str) -> None:
    words = ("evaluate", folder / "log.parquet", *ROLES, "--reward", "click", *FAST, "--policy", "better")
    assert "gamma must" in refused(*words, f"--gamma={gamma}")


def test_a_function_that_fails_is_named(folder: Path) -> None:
    message = refused("evaluate", folder / "log.parquet", *ROLES, "--reward", "click", *FAST, "--policy", "json:loads")
    assert "The policy function failed with TypeError: the JSON object must be str" in message


def test_completion_offers_what_there_is() -> None:
    assert set(LOGGING_MODELS) == set(MODELS)
    assert set(INTERVAL_NAMES) <= set(INTERVALS)
    assert "--install-completion" in run("--help").out


def test_policies_without_a_name_have_their_own(folder: Path) -> None:
    given = (str(folder / "lists.parquet"), "mine:best", "column:better", "uniform", "new=pi")
    assert list(named_policies(given)) == ["lists", "best", "better", "uniform", "new"]


@pytest.mark.parametrize(
    "words",
    [
        ("--policy", "/\n"),
        ("--policy", "a=\x1b[31mred"),
        ("--policy", "better", "--by", "a\nb"),
        ("--policy", "better", "--reward", "a\nb"),
        ("--policy", "better", "--guardrail", "a\nb\x07<=2%"),
        ("--policy", "better", "--estimator", "a\nb"),
        ("--policy", "better", "--format", "a\nb"),
        ("--policy", "better", "--context", "a\nb"),
    ],
)
def test_nothing_typed_breaks_the_line_of_an_error(folder: Path, words: tuple[str, ...]) -> None:
    said = refused("evaluate", folder / "log.csv", *ROLES, "--reward", "click", *words).rstrip("\n")
    assert all(sign.isprintable() for sign in said), said


def test_policies_of_one_name_are_refused_in_one_line(folder: Path) -> None:
    words = ("evaluate", folder / "log.csv", *ROLES, "--reward", "click", "--policy", "\n", "--compare", "\n")
    assert refused(*words).count("\n") == 1
    with pytest.raises(ParameterError, match=r"Two policies are called 'best'.*--policy first='other:best'"):
        named_policies(("mine:best", "other:best"))


# Fuzz

TEXT = st.text(max_size=8).filter(lambda text: not text.startswith("-"))
NUMBERS = st.sampled_from(["0", "1", "-1", "0.5", "nan", "inf", "1e308", "1e-300", "", "0x1", "calibrated"])
EXPRESSIONS = st.one_of(
    st.sampled_from(["click", "revenue", "returns", "value=0.1*click + revenue", "click/0", "click - click", "=click"]),
    st.sampled_from(["__import__('os')", "click.real", "click**99", "a=b=click", "1", "-click", "(" * 300, "item", ""]),
    st.text(alphabet="clik+-*/().=0123 ", max_size=12).filter(lambda text: not text.startswith("-")),
)
LIMITS = [
    "returns<=+2%",
    "revenue>=-5%",
    "returns<=2",
    "returns",
    "<=2%",
    "returns<=+nan%",
    "returns<=+2%<=+2%",
    "no<=1%",
]
FORMS = ["better", "uniform", "a=uniform", "uniform=better", "column:better", "lists.parquet", "rows.csv", "log.csv"]
FORMS += [".", "json:loads", "os:nothing", "no.such:thing", "=", "a=", "=uniform", "b=nothing", "/dev/null", "x.onnx"]
BY = ["segment", "age", "time", "week", "hour", "weekday", "request", "item", "click", "nothing", ""]
TIMES = [
    "2026-09-20",
    "2026-09-20T12:00",
    "2030-01-01",
    "1970-01-01",
    "yesterday",
    "2026-13-40",
    "",
    "2026-09-20+25:00",
]
ESTIMATORS = ["ips", "dr", "all", "log_sum_exp", "mips", "sips", "nothing", ""]
VALUES: dict[str, st.SearchStrategy[str]] = {
    "--policy": st.sampled_from(FORMS) | TEXT,
    "--compare": st.sampled_from(FORMS) | TEXT,
    "--key": st.sampled_from(["request", "segment", "age", "nothing", ""]),
    "--reward": EXPRESSIONS,
    "--guardrail": st.sampled_from(LIMITS) | TEXT,
    "--winsorise": NUMBERS,
    "--by": st.sampled_from(BY) | TEXT,
    "--held-out-after": st.sampled_from(TIMES) | TEXT,
    "--estimator": st.sampled_from(ESTIMATORS) | TEXT,
    "--interval": st.sampled_from([*INTERVAL_NAMES, "nothing", ""]),
    "--gamma": NUMBERS,
    "--level": NUMBERS,
    "--format": st.sampled_from(["table", "json", "csv", "md", "xml", ""]),
    "--user-model": st.sampled_from(["auto", "any", "cascade", "nothing"]),
}
option_sets = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(lambda option: st.tuples(st.just(option), VALUES[option])), max_size=5
)


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    pl.read_parquet(folder / "log.parquet").head(90).write_parquet(folder / "small.parquet")
    return folder


def check_evaluation(folder: Path, words: list[tuple[str, str]]) -> None:
    """Whatever the options, there is an answer, or one paragraph that says what is wrong."""
    given_words = [word for option in words for word in option]
    roles: tuple[Any, ...] = (*ROLES, "--logging-model", "uniform", "--no-propensity-models")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = run("evaluate", "small.parquet", *roles, "--policy", "p=better", *given_words)
    assert found.code in (0, 1), found
    assert "Traceback" not in found.err
    if found.code:
        assert found.out == ""
        assert found.err.startswith("offpolicy: ")
        assert found.err.count("\n") == 1 or " problems.\n" in found.err
    elif ("--format", "json") in words[-1:]:
        assert json.loads(found.out)["evaluation"]["policies"]["p"]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=option_sets)
def test_any_options_are_answered_or_refused(small: Path, words: list[tuple[str, str]]) -> None:
    check_evaluation(small, words)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@settings(max_examples=10_000, derandomize=False, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=option_sets)
def test_ten_thousand_options_are_answered_or_refused(small: Path, words: list[tuple[str, str]]) -> None:
    check_evaluation(small, words)
