from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offpolicy.datasets.obd import CONTEXT, load_obd
from offpolicy.errors import LogError, ParameterError
from offpolicy.log import CategoricalColumn, NumericColumn
from shared_data import shared_data, write

HEADER = ",timestamp,item_id,position,click,propensity_score," + ",".join(CONTEXT[:4]) + ",user-item_affinity_0\n"
ROWS = (
    "0,2019-11-24 00:00:00.000001+00:00,2,1,0,0.25,aa,11,cc,dd,0.0\n"
    "1,2019-11-24 00:00:01+00:00,0,3,1,0.5,aa,22,cc,dd,0.0\n"
    "2,2019-11-24 00:00:02+00:00,2,1,1,0.125,aa,11,cc,dd,1.0\n"
)
ITEMS = ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n" + "".join(
    f"{n},{n},{n / 2},f{n % 2},g,h{n}\n" for n in range(4)
)
FILES = {"obd/bts/men/men.csv": HEADER + ROWS, "obd/bts/men/item_context.csv": ITEMS}


def test_small_files_row_by_row(tmp_path: Path) -> None:
    log = load_obd("bts", "men", write(tmp_path, FILES), check_counts=False)
    assert log.n_contexts == 2
    assert log.context_index.tolist() == [0, 1, 0]
    assert log.action.tolist() == [2, 0, 2]
    assert log.reward.tolist() == [0, 1, 1]
    assert log.logging_prob is not None
    assert log.logging_prob.tolist() == [0.25, 0.5, 0.125]
    assert log.timestamp is not None
    assert (log.timestamp - log.timestamp[0]).tolist() == [0, 999_999, 1_999_999]
    position = log.contexts["position"]
    assert isinstance(position, CategoricalColumn)
    assert position.vocabulary.decode(position.codes) == [1, 3]
    assert list(log.contexts) == list(CONTEXT)
    assert log.n_actions == 4  # two of them were never shown
    features = log.actions.features
    assert features is not None
    first, second = features["item_feature_0"], features["item_feature_1"]
    assert isinstance(first, NumericColumn)
    assert isinstance(second, CategoricalColumn)
    assert first.values.tolist() == [0, 0.5, 1, 1.5]
    assert second.vocabulary.decode(second.codes) == ["f0", "f1", "f0", "f1"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("men.csv", "click", "clicked", r"men\.csv has no column 'click'\. Did you mean 'clicked'"),
        ("men.csv", "0.125", "1.125", r"'propensity_score' .*row 3 \(counted from 1; line 4\)"),
        ("men.csv", ",3,1,0.5", ",3,2,0.5", r"'click' .*row 2 \(counted from 1; line 3\)"),
        (
            "men.csv",
            "+00:00,0,3",
            "+00:00,9,3",
            r"'item_id' must hold one of the 4 ids .*row 2 .*line 3\) holds 9",
        ),
        ("item_context.csv", "item_feature_3", "other", r"item_context\.csv has no column 'item_feature_3'"),
        ("item_context.csv", "0.5,f1", "x,f1", r"item_context\.csv: column 'item_feature_0' must hold numbers"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    files = dict(FILES)
    name = f"obd/bts/men/{file}"
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    with pytest.raises(LogError, match=message):
        load_obd("bts", "men", write(tmp_path, files), check_counts=False)


def test_missing_files_other_counts_and_unknown_names_are_told(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    with pytest.raises(LogError, match=r"holds 3 rows, 4 items, but .* 10,000 rows, 34 items or 4,077,727 rows"):
        load_obd("bts", "men", tmp_path)
    with pytest.raises(LogError, match=r"random/men/men\.csv was not found"):
        load_obd("random", "men", tmp_path)
    wrong: Any = "btz"
    with pytest.raises(ParameterError, match="Did you mean 'bts'"):
        load_obd(wrong, "men", tmp_path)


def test_the_real_data() -> None:
    root = shared_data("obd")
    logs = {policy: load_obd(policy, "men", root) for policy in ("bts", "random")}
    assert [int(log.reward.sum()) for log in logs.values()] == [69, 46]
    assert all((log.n_rows, log.n_actions) == (10_000, 34) for log in logs.values())
    assert logs["random"].logging_prob is not None
    assert logs["random"].logging_prob == pytest.approx(1 / 34)
    frame = pl.read_csv(root / "obd/bts/men/men.csv")
    assert logs["bts"].n_contexts == frame.select(CONTEXT).n_unique()
    assert logs["bts"].action.tolist() == frame["item_id"].to_list()
