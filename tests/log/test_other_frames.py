"""`read_log` takes what other libraries call a table: DuckDB relations and Hugging Face data sets."""

from typing import Any

import pytest

from offpolicy.errors import LogError, ParameterError
from offpolicy.log import read_log
from small_log import a_frame

ROLES: dict[str, Any] = {
    "context": ["segment", "age"],
    "action": "item",
    "reward": "click",
    "propensity": "pscore",
    "cluster": "user",
}


def test_a_duckdb_relation_gives_the_log_of_its_frame() -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    frame = a_frame(200)
    relation = duckdb.from_arrow(frame.to_arrow())
    assert read_log(relation, **ROLES) == read_log(frame, **ROLES)
    some = relation.filter("click = 1 or age > 0").order("user")
    kept = frame.sql("select * from self where click = 1 or age > 0")
    assert read_log(some, **ROLES).n_rows == len(kept)


def test_a_duckdb_query_that_fails_is_an_error_of_the_log() -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    relation = duckdb.from_arrow(a_frame(20).to_arrow())
    broken = relation.project("*, cast(segment as integer) as number")
    with pytest.raises(LogError, match="cannot be evaluated"):
        read_log(broken, **(ROLES | {"context": ["number"]}))


def test_a_data_set_of_hugging_face_gives_the_log_of_its_frame() -> None:
    datasets = pytest.importorskip("datasets.arrow_dataset", reason="Hugging Face datasets is not installed: 32 MB")
    frame = a_frame(200)
    data = datasets.Dataset.from_polars(frame)
    assert read_log(data, **ROLES) == read_log(frame, **ROLES)
    some = data.shuffle(seed=0).select(range(150))  # an indirection over the same arrow table
    assert read_log(some, **ROLES) == read_log(some.to_polars(), **ROLES)
    with pytest.raises(ParameterError, match=r"several splits \(train, test\): give one"):
        read_log(data.train_test_split(0.5), **ROLES)
    with pytest.raises(ParameterError, match="load it without streaming"):
        read_log(data.to_iterable_dataset(), **ROLES)
