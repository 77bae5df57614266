"""Vowpal Wabbit's formats, against decisions written by hand."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.errors import OffPolicyError
from offpolicy.log import read_log
from offpolicy.log.files import column_names, format_of
from offpolicy.log.formats.vowpal import vowpal_format, vowpal_frame

TOPICS = ("sport", "art", "news")


def event(place: int, cost: float, prob: float, **more: Any) -> dict[str, Any]:
    return {
        "_label_cost": cost,
        "_label_probability": prob,
        "_label_Action": place + 1,
        "_labelIndex": place,
        "Timestamp": "2024-01-31T12:00:00.0000000Z",
        "a": [place + 1, *(other + 1 for other in range(3) if other != place)],
        "c": {
            "User": {"name": "Tom" if place else "Anna", "age": 30 + place, "likes": ["tea", "ski"][: place + 1]},
            "_multi": [{"Action": {"topic": topic}} for topic in TOPICS],
        },
        "p": [prob, (1 - prob) / 2, (1 - prob) / 2],
        **more,
    }


def written(path: Path, events: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in events) + "\n")
    return path


def test_dsjson_is_read_as_it_was_decided(tmp_path: Path) -> None:
    late = {"RewardValue": 1.0, "EventId": "x"}  # a reward that came late
    unlearned = event(0, -1, 0.5, _skipLearn=True)
    path = written(tmp_path / "log.json", [event(0, -1, 0.8), late, event(2, 0, 0.25), unlearned, event(1, -0.5, 0.5)])
    assert format_of(path) == "dsjson"
    frame = vowpal_frame(path, "dsjson")
    assert frame["action"].to_list() == ["topic=sport", "topic=news", "topic=art"]
    assert frame["reward"].to_list() == [1.0, 0.0, 0.5]
    assert frame["propensity"].to_list() == [0.8, 0.25, 0.5]
    assert frame["User.name"].to_list() == ["Anna", "Tom", "Tom"]
    assert frame["User.age"].to_list() == [30.0, 32.0, 31.0]
    assert frame["User.likes"].to_list() == [["tea"], ["tea", "ski"], ["tea", "ski"]]
    log = read_log(
        path,
        context=["User.name", "User.age", "User.likes"],
        action="action",
        reward="reward",
        propensity="propensity",
        timestamp="timestamp",
    )
    assert {name: column.kind for name, column in log.contexts.items()} == {
        "User.name": "categorical",
        "User.age": "numeric",
        "User.likes": "bag",
    }
    assert log.reward.tolist() == [1.0, 0.0, 0.5]
    assert log.timestamp is not None
    assert np.datetime64(int(log.timestamp[0]), "us") == np.datetime64("2024-01-31T12:00:00")


@pytest.mark.parametrize(
    ("action", "name"),
    [
        ({"_tag": "x7", "f": 1}, "x7"),
        ({"i": {"constant": 1, "id": "fp0"}, "A": {"f": "1"}}, "fp0"),
        ({"A": {"f": "1"}, "B": {"size": 2.5}}, "f=1 B.size:2.5"),
        ({}, "1"),
    ],
)
def test_actions_are_called_by_tag_id_features_or_place(tmp_path: Path, action: dict[str, Any], name: str) -> None:
    one = event(0, -1, 0.5)
    one["c"]["_multi"] = [action, {"_tag": "other"}]
    other = event(1, -1, 0.5)
    other["c"]["_multi"] = one["c"]["_multi"]
    frame = vowpal_frame(written(tmp_path / "log.dsjson", [one, other]), "dsjson")
    assert frame["action"].to_list() == [name, "other"]


def test_the_action_and_its_probability_may_be_told_by_ranking(tmp_path: Path) -> None:
    one = event(2, 1, 0.6)
    for name in ("_labelIndex", "_label_Action", "_label_probability"):
        del one[name]
    frame = vowpal_frame(written(tmp_path / "log.dsjson", [one]), "dsjson")
    assert (frame["action"][0], frame["propensity"][0], frame["reward"][0]) == ("topic=news", 0.6, -1.0)


CB = """1:-1:0.5 | tea ski |User age:31.5 time=morning
2:0:0.25 |User age:20 time=evening

3:-1:0.25 3 | tea
"""


def test_cb_text_is_one_decision_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(CB)
    assert format_of(path) == "cb"
    frame = vowpal_frame(path, "cb")
    assert frame["action"].to_list() == [1, 2, 3]
    assert frame["reward"].to_list() == [1.0, 0.0, 1.0]
    assert frame["propensity"].to_list() == [0.5, 0.25, 0.25]
    assert frame["features"].to_list() == [["tea", "ski"], [], ["tea"]]
    assert frame["User.age"].to_list() == [31.5, 20.0, 0.0]
    assert frame["User.time"].to_list() == ["morning", "evening", None]
    assert column_names(path, "cb") == ["action", "reward", "propensity", "features", "User.age", "User.time"]


ADF = """shared |User name=Tom
0:-1.0:0.7 |Action topic=sport
|Action topic=art

shared |User name=Anna
|Action topic=sport
0:0:0.4 'second |Action topic=art

shared |User name=Eve
|Action topic=sport
"""


def test_adf_text_is_one_decision_a_block(tmp_path: Path) -> None:
    path = tmp_path / "log.vw.gz"
    with gzip.open(path, "wt") as file:
        file.write(ADF)
    assert format_of(path) == "cb"
    frame = vowpal_frame(path, "cb")
    assert frame["action"].to_list() == ["topic=sport", "second"]
    assert frame["propensity"].to_list() == [0.7, 0.4]
    assert frame["User.name"].to_list() == ["Tom", "Anna"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("log.dsjson", '{"_label_cost": -1, "c"', "line 1 is not JSON"),
        ("log.dsjson", '{"_label_cost": "x", "_labelIndex": 0, "_label_probability": 1, "c": {}}', "_label_cost"),
        ("log.dsjson", '{"_label_cost": 0, "_label_probability": 1, "c": {"_multi": [{}]}}', "which action"),
        ("log.dsjson", '{"_label_cost": 0, "_labelIndex": 3, "c": {"_multi": [{}]}}', "which action"),
        ("log.dsjson", "[1]", "not a JSON object"),
        ("log.dsjson", "\n", "no labelled decision"),
        ("log.vw", "1:x:0.5 | a\n", "must hold a number as cost"),
        ("log.vw", "shared | a\n0:1:1 | b\n0:0:1 | c\n", "line 3 is the second"),
        ("log.vw", "1:0:0.5 | a\n\n| b\n", "line 3 must begin with action:cost:probability"),
        ("log.vw", "1:0:0.5 | a:b\n", "feature 'a'"),
    ],
)
def test_broken_files_are_one_paragraph(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(OffPolicyError, match=said):
        vowpal_frame(path, "dsjson" if name.endswith("dsjson") else "cb")


def test_other_files_are_not_taken_for_vowpals() -> None:
    for head in (b"a,b\n1,2\n", b'{"a": 1}\n', b"x|y\n1|2\n", b"", b"time 12:30:15,b\n"):
        assert vowpal_format(Path("log.txt"), head) is None


texts = st.text(alphabet="ab01 |:'=.\n-shared", max_size=60)
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
events = st.fixed_dictionaries(
    {"_label_cost": values, "c": st.dictionaries(st.sampled_from(["U", "_multi", "action"]), values, max_size=3)},
    optional={"_labelIndex": values, "_label_Action": values, "a": values, "p": values, "_label_probability": values},
)


def check_only_clean_errors(folder: Path, text: str, name: str) -> None:
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(OffPolicyError):
        assert len(vowpal_frame(path, "dsjson" if name.endswith("dsjson") else "cb")) > 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=texts, one=events)
def test_any_text_is_read_or_refused(tmp_path: Path, text: str, one: dict[str, Any]) -> None:
    check_only_clean_errors(tmp_path, text, "a.vw")
    check_only_clean_errors(tmp_path, "1:0:0.5 | x\n" + text, "b.vw")
    check_only_clean_errors(tmp_path, json.dumps(one) + "\n", "c.dsjson")


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(text=texts, one=events)
def test_any_of_many_texts_is_read_or_refused(tmp_path: Path, text: str, one: dict[str, Any]) -> None:
    check_only_clean_errors(tmp_path, "1:0:0.5 | x\n" + text, "b.vw")
    check_only_clean_errors(tmp_path, json.dumps(one) + "\n", "c.dsjson")
