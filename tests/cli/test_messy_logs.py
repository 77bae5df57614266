"""The commands on a messy shop log: what they ask for fixes it, and what they learn serves requests as messy."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from first_look import write_shop_log
from offpolicy.results import spreadsheet_safe
from offpolicy.workflows.holdout import Holdout
from small_log import a_frame, refused, run

QUICK = ("--epochs", "2", "--no-propensity-models", "--logging-model", "popularity")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    write_shop_log(folder / "shop.parquet", rows=1_500, items=10)
    return folder


def test_inspect_looks_anyway_and_says_which_options_the_others_need(shop: Path) -> None:
    found = run("inspect", shop / "shop.parquet", "--cluster", "user_id", "--json").json
    frame = pl.read_parquet(shop / "shop.parquet")
    assert found["log"]["rows"] == frame["click"].is_not_null().sum()
    assert found["options"] == ["--missing click=drop", "--missing age=indicator"]
    pending = frame["click"].null_count()
    assert f"({pending:,} of 1,500 rows, {pending / 1500:.1%}: feedback not yet in)" in found["problems"][0]
    assert set(found["log"]["columns"]) >= {"age", "age:missing", "signup_date:weekday", "signup_date:days"}
    assert "item_price" not in found["log"]["columns"]


def test_what_learn_asks_for_fixes_it_in_one_go_and_serves_messy_requests(shop: Path) -> None:
    words = ("learn", shop / "shop.parquet", "--cluster", "user_id", "--out", shop / "run", *QUICK)
    message = run(*words)
    assert message.code == 1
    assert message.err.startswith(f"offpolicy: {shop / 'shop.parquet'} has 2 problems.")
    offered = shlex.split(message.err.strip().splitlines()[-1].removeprefix("All at once: "))
    assert run(*words, *offered).code == 0
    judged = run("evaluate", shop / "shop.parquet", "--policy", shop / "run", "--no-propensity-models", "--json")
    assert judged.code == 0, judged.err  # columns, treatments and clusters are those of the policy
    requests = pl.read_parquet(shop / "shop.parquet").head(30).drop("item_id", "click")
    assert requests["age"].null_count()
    requests.write_parquet(shop / "requests.parquet")
    requests.write_csv(shop / "requests.csv")
    tops = []
    for name in ("requests.parquet", "requests.csv"):
        out = shop / f"top-{name}.parquet"
        found = run("recommend", shop / "run", shop / name, "--k", "3", "--out", out)
        assert found.code == 0, found.err
        tops.append(pl.read_parquet(out).drop("note"))
    assert tops[0].select("row", "rank", "action").equals(tops[1].select("row", "rank", "action"))
    assert not tops[0]["unknown"].any()


def test_policies_that_are_columns_follow_their_rows_when_others_are_dropped(tmp_path: Path) -> None:
    frame = a_frame().with_columns(age=pl.when(pl.int_range(pl.len()) % 5 == 2).then(None).otherwise("age"))
    frame.write_parquet(tmp_path / "holes.parquet")
    frame.drop_nulls().write_parquet(tmp_path / "whole.parquet")
    columns = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click")
    words = (*columns, "--policy", "better", "--no-propensity-models", "--logging-model", "linear", "--json")
    holes = run("evaluate", tmp_path / "holes.parquet", *words, "--missing", "age=drop").json
    whole = run("evaluate", tmp_path / "whole.parquet", *words).json
    assert holes["evaluation"]["policies"] == whole["evaluation"]["policies"]


def test_a_policy_is_joined_by_a_number_that_is_missing_in_places(tmp_path: Path) -> None:
    """The same answer from a file of probabilities with decimal commas as from one with points."""
    frame = a_frame().with_columns(age=pl.when(pl.int_range(pl.len()) % 5 == 2).then(None).otherwise("age"))
    frame.write_parquet(tmp_path / "holes.parquet")
    ages = frame["age"].unique().to_list()
    items = sorted(set(frame["item"]))
    rows = [(age, item, (0.75, 0.25)[place % 2]) for age in ages for place, item in enumerate(items[:2])]
    table = pl.DataFrame(rows, schema=["age", "item", "probability"], orient="row")
    table.write_csv(tmp_path / "points.csv")
    text = table.with_columns(pl.col("age", "probability").cast(pl.String))
    commas = text.with_columns(pl.col("probability").str.replace(".", ",", literal=True))
    commas.write_csv(tmp_path / "commas.csv", separator=";")
    columns = ("--context", "segment", "--context", "age", "--action", "item", "--reward", "click")
    words = (*columns, "--no-propensity-models", "--logging-model", "popularity", "--missing", "age=indicator")
    found = [
        run("evaluate", tmp_path / "holes.parquet", *words, "--policy", f"new={tmp_path / name}", "--json")
        for name in ("points.csv", "commas.csv")
    ]
    assert found[0].code == 0, found[0].err
    assert found[0].json["evaluation"]["policies"] == found[1].json["evaluation"]["policies"]


def test_wrong_treatments_are_refused(shop: Path) -> None:
    log = shop / "shop.parquet"
    assert "must be one of drop, zero, indicator, not 'mean'" in refused("inspect", log, "--missing", "age=mean")
    said = refused("inspect", log, "--missing", "agee=drop")
    assert "'agee', which is not among the columns read" in said
    assert "Did you mean 'age'?" in said
    assert "no column 'nothing'" in refused("inspect", log, "--exclude", "nothing")


@pytest.mark.parametrize("name", ["log.csv", "log.ndjson", "log.parquet"])
def test_empty_files_are_called_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    message = refused("inspect", tmp_path / name)
    assert f"{name} is empty" in message or "it holds no rows" in message


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.csv")
    for path in (tmp_path / "log.csv", Path("/dev/zero")):
        assert f"{path} is a pipe or a device" in refused("inspect", path)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_terminal_without_other_letters_gets_words(tmp_path: Path, as_json: bool) -> None:
    frame = a_frame(120).with_columns(item=pl.col("item").replace({"tea": "thé"}))
    frame.write_parquet(tmp_path / "log.parquet")
    words = ["evaluate", str(tmp_path / "log.parquet"), "--policy", "uniform", "--context", "segment"]
    words += ["--action", "item", "--reward", "click", "--no-propensity-models", "--logging-model", "popularity"]
    command = [str(Path(sys.executable).with_name("offpolicy")), *words, *(["--json"] if as_json else [])]
    plain = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=plain, check=True)
    shown = done.stdout.decode("ascii")
    if as_json:
        assert json.loads(shown)["kind"] == "evaluate"
    else:
        assert "+/- sampling" in shown
        tables = [line for line in shown.splitlines() if line.startswith(("|", "+"))]
        assert {len(line) for line in tables if "+/- sampling" in line} <= {len(line) for line in tables[:1]}


def test_formulas_in_csv_are_text_and_numbers_stay() -> None:
    ids = ["=cmd|' /C calc'!A0", "@SUM(1)", "-1+2", "-5", "+3.5", "tea", None, "\tx"]
    safe = spreadsheet_safe(pl.DataFrame({"action": ids, "value": range(8)}))
    assert safe["action"].to_list() == [
        "'=cmd|' /C calc'!A0",
        "'@SUM(1)",
        "'-1+2",
        "-5",
        "+3.5",
        "tea",
        None,
        "'\tx",
    ]
    assert safe["value"].to_list() == list(range(8))


HOSTILE = [
    {"share": float("nan"), "seed": 0, "unit": "cluster", "sketch": []},
    {"share": 0.2, "seed": -1, "unit": "cluster", "sketch": []},
    {"share": 0.2, "seed": 2**80, "unit": "cluster", "sketch": []},
    {"share": 0.2, "seed": True, "unit": "cluster", "sketch": []},
    {"share": 0.2, "seed": 0, "unit": ["cluster"], "sketch": []},
    {"share": 0.2, "seed": 0, "unit": "day", "sketch": []},
    {"share": "0.2", "seed": 0, "unit": "cluster", "sketch": {}},
    [],
    "x" * 10_000,
]


@pytest.mark.parametrize("kept", HOSTILE)
def test_hostile_records_of_what_was_held_out_are_ignored(kept: object) -> None:
    assert Holdout.from_json(kept) is None


def test_hostile_sketches_lose_what_is_no_hash() -> None:
    sketch = ["-1", "0x10", "1_0", "g" * 16, "f" * 17, None, 3, ["ff"], "ff", "0" * 15 + "a"]
    rule = Holdout.from_json({"share": 0.2, "seed": 3, "unit": "context", "sketch": sketch})
    assert rule is not None
    assert rule.sketch == (255, 10)


words = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["--missing", "--exclude", "--context", "--kind", "--cluster", "--timestamp", "--reward"]),
            st.one_of(
                st.sampled_from(
                    ["age", "age=drop", "zero", "click=zero", "=", "age=", "=drop", "*=drop", "signup_date"]
                ),
                st.sampled_from(
                    ["age:missing", "signup_date:days", "click:hour", "age=numeric", "country=embedding", ""]
                ),
                st.sampled_from(["item_id", "user_id", "event_time", "click", "revenue", "legacy_score", "position"]),
                st.text(max_size=8).filter(lambda text: not text.startswith("-")),
            ),
        ),
        st.sampled_from([("--drop-duplicates",), ("--quiet",), ("--reward-range", "0,100")]),
    ),
    max_size=5,
)


ROUGH = dict.fromkeys(("certain_rows", "mean_weight", "mean_weight_error", "log_likelihood"), 1.0)


@pytest.fixture(scope="module")
def unfitted(shop: Path) -> Iterator[Path]:
    """The log, inspected without a fit of β̂, which no option here has to do with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offpolicy.workflows.inspect._quick_fit", lambda *_: {**ROUGH, "repeats": None, "note": ""})
        yield shop / "shop.parquet"


def check_options(log: Path, given_words: list[tuple[str, ...]]) -> None:
    found = run("inspect", log, *(word for option in given_words for word in option), "--json")
    assert found.code in (0, 1)
    assert "Traceback" not in found.err
    if found.code:
        assert found.err.startswith("offpolicy: ")
        numbered = re.match(r"offpolicy: .* has (\d+) problems\.\n", found.err)
        assert numbered or found.err.count("\n") == 1
    else:
        assert found.json["log"]["rows"] > 0


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_words=words)
def test_any_options_are_taken_or_refused(unfitted: Path, given_words: list[tuple[str, ...]]) -> None:
    check_options(unfitted, given_words)


@pytest.mark.slow
@pytest.mark.timeout(20_000)
@settings(max_examples=10_000, derandomize=False, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_words=words)
def test_ten_thousand_sets_of_options(unfitted: Path, given_words: list[tuple[str, ...]]) -> None:
    check_options(unfitted, given_words)


def test_a_log_is_converted_as_the_options_say_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("item,click,x,junk\na,1,0.5,9\nb,,0.2,8\na,0,,7\nb,1,0.3,6\nb,1,0.3,6\n")
    options = ("--missing", "click=drop", "--missing", "x=zero", "--exclude", "junk", "--drop-duplicates")
    done = run("convert", tmp_path / "log.csv", *options, "--out", tmp_path / "log.dsjson")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in (tmp_path / "log.dsjson").read_text().splitlines()]
    told = [(one["_label_cost"], one["c"]["_multi"][one["_labelIndex"]]["_tag"], one["c"]["x"]) for one in events]
    assert told == [(-1.0, "a", 0.5), (0.0, "a", 0.0), (-1.0, "b", 0.3)]
    assert all(set(one["c"]) == {"x", "_multi"} for one in events)
