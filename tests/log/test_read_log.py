"""read_log on good input: every format gives the log that the arrays give."""

import datetime as dt
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offpolicy.errors import ParameterError
from offpolicy.log import (
    BagColumn,
    CategoricalColumn,
    EmbeddingColumn,
    LoggedData,
    LogSchema,
    NumericColumn,
    read_log,
)

CONTEXT = ["user", "city", "age"]
FRAME = pl.DataFrame(
    {
        "user": [7, 3, 7, 9, 3],
        "city": ["Rome", None, "Rome", "Oslo", None],
        "age": [0.5, 1.25, 0.5, -3.0, 1.25],
        "item": ["b", "a", "c", "b", "a"],
        "reward": [0.0, 1.0, 0.5, 1.0, 0.0],
        "prob": [0.5, 0.25, 1.0, 0.125, 0.5],
        "group": ["g1", "g2", "g1", "g2", "g2"],
        "time": [5, 4, 3, 2, 1],
        "unused": [[1], [2], [3], [4], [5]],
    }
)
ROLES: dict[str, Any] = {
    "context": CONTEXT,
    "action": "item",
    "reward": "reward",
    "propensity": "prob",
    "cluster": "group",
    "timestamp": "time",
}
EXPECTED = LoggedData.from_arrays(
    {"user": [7, 3, 7, 9, 3], "city": ["Rome", None, "Rome", "Oslo", None], "age": [0.5, 1.25, 0.5, -3.0, 1.25]},
    ["b", "a", "c", "b", "a"],
    [0.0, 1.0, 0.5, 1.0, 0.0],
    logging_prob=[0.5, 0.25, 1.0, 0.125, 0.5],
    cluster=["g1", "g2", "g1", "g2", "g2"],
    timestamp=[5, 4, 3, 2, 1],
)


def write(frame: pl.DataFrame, path: Path) -> Path:
    """Write a frame in the format of the path's suffix."""
    if path.suffix in (".parquet", ".pq"):
        frame.write_parquet(path)
    elif path.suffix in (".ndjson", ".jsonl"):
        frame.write_ndjson(path)
    else:
        flat = frame.drop("unused", strict=False)
        text = flat.write_csv(separator="\t" if ".tsv" in path.suffixes else ",")
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".pq", ".csv", ".tsv", ".csv.gz", ".ndjson", ".jsonl"])
def test_every_format_gives_the_same_log(tmp_path: Path, suffix: str) -> None:
    assert read_log(write(FRAME, tmp_path / f"log{suffix}"), **ROLES) == EXPECTED


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson"])
def test_a_file_without_a_suffix_is_recognised_by_its_bytes(tmp_path: Path, suffix: str) -> None:
    path = write(FRAME, tmp_path / f"log{suffix}").rename(tmp_path / "log")
    assert read_log(str(path), **ROLES) == EXPECTED


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson"])
def test_globs_and_lists_stack_files_in_order(tmp_path: Path, suffix: str) -> None:
    first = write(FRAME[:2], tmp_path / f"part-0{suffix}")
    second = write(FRAME[2:], tmp_path / f"part-1{suffix}")
    assert read_log(str(tmp_path / f"part-*{suffix}"), **ROLES) == EXPECTED
    assert read_log([first, str(second)], **ROLES) == EXPECTED


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame,
        lambda frame: frame.lazy(),
        lambda frame: frame.to_arrow(),
        lambda frame: frame.to_pandas(),
        lambda frame: pd.DataFrame(frame.to_dicts(), index=[3] * len(frame)),
        lambda frame: frame.with_columns(pl.col("city", "item").cast(pl.Categorical), pl.col("user").cast(pl.UInt8)),
        lambda frame: frame.to_pandas().astype({"city": "category", "item": "category"}),
    ],
)
def test_every_frame_gives_the_same_log(convert: Any) -> None:
    assert read_log(convert(FRAME), **ROLES) == EXPECTED


rows = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", None]), st.sampled_from([0.5, 2.0]), st.integers(0, 2)),
    min_size=2,
    max_size=25,
).filter(lambda table: len({row[3] for row in table}) > 1)


@given(rows, st.randoms(use_true_random=False))
def test_shuffled_rows_give_the_log_of_the_arrays(table: list[Any], random: Any) -> None:
    random.shuffle(table)
    user, city, age, item = (list(column) for column in zip(*table, strict=True))
    reward = [float(value % 2) for value in item]
    frame = pl.DataFrame(
        {"user": user, "city": pl.Series(city, dtype=pl.String), "age": age, "item": item, "reward": reward}
    )
    log = read_log(frame, context=CONTEXT, action="item", reward="reward")
    assert log == LoggedData.from_arrays({"user": user, "city": city, "age": age}, item, reward)
    doubled = read_log(pl.concat([frame, frame]), context=CONTEXT, action="item", reward="reward")
    assert doubled.contexts == log.contexts
    assert doubled.context_index.tolist() == log.context_index.tolist() * 2
    decoded = log.contexts["city"]
    assert isinstance(decoded, CategoricalColumn)
    assert decoded.vocabulary.decode(decoded.codes[log.context_index]) == city


@settings(max_examples=20)
@given(rows)
def test_csv_gives_the_log_of_the_frame(tmp_path_factory: pytest.TempPathFactory, table: list[Any]) -> None:
    user, city, age, item = (list(column) for column in zip(*table, strict=True))
    frame = pl.DataFrame(
        {"user": user, "city": pl.Series(city, dtype=pl.String), "age": age, "item": item, "reward": 0.5}
    )
    path = tmp_path_factory.mktemp("csv") / "log.csv"
    frame.write_csv(path)
    roles: dict[str, Any] = {"context": CONTEXT, "action": "item", "reward": "reward"}
    from_csv, from_frame = read_log(path, **roles), read_log(frame, **roles)
    if set(city) == {None}:  # nothing tells the type of a column of empty fields
        assert from_csv.context_index.tolist() == from_frame.context_index.tolist()
    else:
        assert from_csv == from_frame


def feature_frame() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "vector": pl.Series([[0.5, 1.0], [1.5, 2.0], [0.5, 1.0]], dtype=pl.List(pl.Float64)),
            "fixed": pl.Series([[1.0], [2.0], [1.0]], dtype=pl.Array(pl.Float32, 1)),
            "history": [[1, 5, 5], None, [1, 5, 5]],
            "tags": [["b", "a"], [], ["b", "a"]],
            "flag": [True, False, True],
            "count": [1, 2, 1],
            "item": [0, 1, 1],
            "reward": [0, 1, 1],
        }
    )


def test_kinds_are_inferred_from_types_and_overridden() -> None:
    names = ["vector", "fixed", "history", "tags", "flag", "count"]
    log = read_log(feature_frame(), context=names, action="item", reward="reward", kinds={"count": "numeric"})
    assert log.n_contexts == 2
    kinds = {name: column.kind for name, column in log.contexts.items()}
    assert kinds == dict(zip(names, ["embedding", "embedding", "bag", "bag", "categorical", "numeric"], strict=True))
    history, tags, vector = log.contexts["history"], log.contexts["tags"], log.contexts["vector"]
    assert isinstance(history, BagColumn)
    assert isinstance(tags, BagColumn)
    assert isinstance(vector, EmbeddingColumn)
    assert history.vocabulary.decode(history.codes) == [1, 5, 5]
    assert history.offsets.tolist() == [0, 3, 3]
    assert tags.vocabulary.decode(tags.codes) == ["b", "a"]
    assert vector.values.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert log.contexts["flag"].vocabulary.to_list() == [False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cells", "bags"),
    [
        (["1 5 9", "", "5"], [[1, 5, 9], [], [5]]),
        (["[1, 5, 9]", "[]", "[5]"], [[1, 5, 9], [], [5]]),
        (["a|b c", "b c", ""], [["a", "b c"], ["b c"], []]),
        (["['x', 'y']", "", "['x']"], [["x", "y"], [], ["x"]]),
        (["007;8", "8", ""], [["007", "8"], ["8"], []]),
    ],
)
def test_bags_written_as_text_are_parsed(tmp_path: Path, cells: list[str], bags: list[Any]) -> None:
    path = tmp_path / "log.csv"
    pl.DataFrame({"h": cells, "item": [1, 2, 3], "reward": [0, 1, 0]}).write_csv(path)
    log = read_log(path, context=["h"], action="item", reward="reward", kinds={"h": "bag"})
    column = log.contexts["h"]
    assert isinstance(column, BagColumn)
    decoded = column.vocabulary.decode(column.codes)
    held = [decoded[a:b] for a, b in pairwise(column.offsets)]
    assert [held[context] for context in log.context_index] == bags


def test_embeddings_and_numbers_written_as_text_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('e,n,item,reward\n"[0.5, 1]",1,1,0\n"[2, 3e-1]",2,2,1\n')
    kinds: dict[str, Any] = {"e": "embedding", "n": "numeric"}
    log = read_log(path, context=["e", "n"], action="item", reward="reward", kinds=kinds)
    vector, number = log.contexts["e"], log.contexts["n"]
    assert isinstance(vector, EmbeddingColumn)
    assert isinstance(number, NumericColumn)
    np.testing.assert_allclose(vector.values, [[0.5, 1.0], [2.0, 0.3]], rtol=1e-6)
    assert number.values.tolist() == [1.0, 2.0]


def test_csv_ids_keep_their_spelling(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("zip,n,item,reward\n007,1,01,0\n12,2,1,1\n\n")
    log = read_log(path, context=["zip", "n"], action="item", reward="reward")
    assert log.actions.vocabulary.to_list() == ["01", "1"]
    assert log.contexts["zip"].vocabulary.to_list() == ["007", "12"]  # type: ignore[union-attr]
    assert log.contexts["n"].vocabulary.to_list() == [1, 2]  # type: ignore[union-attr]
    assert log.n_rows == 2  # the blank line at the end is not a row


def test_mixed_ids_may_be_declared_categorical(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("sku,item,reward\n12,1,0\n13,2,1\n12A,1,1\n")
    kinds: dict[str, Any] = {"sku": "categorical"}
    log = read_log(path, context=["sku"], action="item", reward="reward", kinds=kinds)
    assert log.contexts["sku"].vocabulary.to_list() == ["12", "12A", "13"]  # type: ignore[union-attr]


def test_actions_from_a_list_a_file_or_a_frame(tmp_path: Path) -> None:
    listed = read_log(FRAME, **ROLES, actions=["z", "c", "b", "a"])
    assert listed.actions.vocabulary.to_list() == ["z", "c", "b", "a"]
    assert listed.actions.vocabulary.decode(listed.action) == FRAME["item"].to_list()
    table = pl.DataFrame({"price": [1.0, 2.0, 3.0, 4.0], "item": ["a", "b", "c", "d"], "brand": ["x", "x", None, "y"]})
    for source in (table, write(table, tmp_path / "items.parquet"), write(table, tmp_path / "items.csv")):
        log = read_log(FRAME, **ROLES, actions=source)
        assert log.n_actions == 4
        assert log.actions.features is not None
        assert {name: column.kind for name, column in log.actions.features.items()} == {
            "price": "numeric",
            "brand": "categorical",
        }
    numbered = FRAME.with_columns(item=pl.Series([0, 2, 1, 0, 2]))
    assert read_log(numbered, **ROLES, actions=5).n_actions == 5


def test_a_csv_matches_text_actions_by_spelling(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("u,item,reward\n1,10,0\n2,20,1\n")
    log = read_log(path, context=["u"], action="item", reward="reward", actions=["20", "10", "30"])
    assert log.action.tolist() == [1, 0]


def test_reward_range_rescales(tmp_path: Path) -> None:
    frame = FRAME.with_columns(reward=pl.Series([1, 5, 3, 2, 1]))
    log = read_log(frame, **ROLES, reward_range=(1, 5))
    assert log.reward.tolist() == [0.0, 1.0, 0.5, 0.25, 0.0]
    assert log.reward_to_user_scale(log.reward).tolist() == [1, 5, 3, 2, 1]


@pytest.mark.parametrize(
    ("values", "micro"),
    [
        ([dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(1970, 1, 2)], [1_000_000, 86_400_000_000]),
        ([dt.date(1970, 1, 1), dt.date(1970, 1, 2)], [0, 86_400_000_000]),
        ([1.5, 2.25], [1_500_000, 2_250_000]),
        ([17, 18], [17, 18]),
    ],
)
def test_timestamps_of_every_type(tmp_path: Path, values: list[Any], micro: list[int]) -> None:
    frame = pl.DataFrame({"u": [1, 2], "item": [1, 2], "reward": [0, 1], "t": values})
    roles: dict[str, Any] = {"context": ["u"], "action": "item", "reward": "reward", "timestamp": "t"}
    path = tmp_path / "log.csv"
    frame.write_csv(path)
    for source in (frame, frame.to_pandas(), path):
        log = read_log(source, **roles)
        assert log.timestamp is not None
        assert log.timestamp.tolist() == micro


def test_only_the_needed_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    lines = [{"u": 1, "item": 1, "reward": 0, "note": "x"}, {"u": 2, "item": 2, "reward": 1, "note": "y"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    log = read_log(path, context=["u"], action="item", reward="reward", cluster="u")
    assert list(log.contexts) == ["u"]
    assert log.cluster is not None  # one column may be both context and cluster
    assert log.cluster.tolist() == [0, 1]


def test_large_ids_stay_exact() -> None:
    ids = [2**62 + 1, 2**62, -(2**62), 2**62 + 1]
    hashes = [2**64 - 1, 2**63, 0, 2**64 - 1]
    frame = pl.DataFrame(
        {"u": ids, "h": pl.Series(hashes, dtype=pl.UInt64), "item": [1, 2, 3, 1], "reward": [0, 1, 0, 1]}
    )
    log = read_log(frame, context=["u", "h"], action="item", reward="reward")
    back = log.contexts.take(log.context_index)
    for name, values in (("u", ids), ("h", hashes)):
        column = back[name]
        assert isinstance(column, CategoricalColumn)
        assert column.vocabulary.decode(column.codes) == values
    assert log.n_contexts == 3


def test_the_schema_refuses_roles_that_make_no_sense() -> None:
    good: dict[str, Any] = {"context": "u", "action": "a", "reward": "r"}
    assert LogSchema(**good).columns == ("u", "a", "r")
    for change, said in (
        ({"context": []}, "context"),
        ({"context": ["u", "u"]}, "twice"),
        ({"context": ["u", "a"]}, "both action and context"),
        ({"context": ["r"]}, "both reward and context"),
        ({"reward": "a"}, "both action and reward"),
        ({"propensity": "r"}, "both reward and propensity"),
        ({"action": 3}, "action is not valid"),
        ({"kinds": {"u": "number"}}, "kinds"),
        ({"reward_range": (1, 0)}, "low < high"),
        ({"colour": "x"}, "colour"),
    ):
        with pytest.raises(ParameterError, match=said):
            LogSchema(**good | change)
    with pytest.raises(ParameterError, match=r"kinds declares the column 'agee'.*'age'"):
        read_log(FRAME, **ROLES, kinds={"agee": "numeric"})
