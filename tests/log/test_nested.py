"""Events as objects: every field is a column, whatever the format, in one go and piece by piece."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offpolicy.errors import LogError
from offpolicy.log import prepare_log, read_log, source_names
from offpolicy.workflows import LogSpec
from offpolicy.workflows.prepare import resolve

N = 60
COLUMNS: dict[str, Any] = {"context": ["ctx.user.country", "ctx.dev"], "action": "item", "reward": "outcome.click"}


def events() -> list[dict[str, Any]]:
    return [
        {
            "ctx": {"user": {"country": ["at", "fr", None][i % 3]}, "dev": "ios" if i % 2 else "web"},
            "item": f"i{i // 3 % 4}",
            "outcome": {"click": int(i % 5 == 0), "dwell": 1.5 * i, "note": "ok"},
        }
        for i in range(N)
    ]


def flat() -> pl.DataFrame:
    rows = [
        {
            "ctx.user.country": one["ctx"]["user"]["country"],
            "ctx.dev": one["ctx"]["dev"],
            "item": one["item"],
            "outcome.click": one["outcome"]["click"],
        }
        for one in events()
    ]
    return pl.DataFrame(rows)


def written(folder: Path, form: str) -> Any:
    frame = pl.DataFrame(events())
    if form in ("polars", "lazy", "arrow"):
        return {"polars": frame, "lazy": frame.lazy(), "arrow": frame.to_arrow()}[form]
    path = folder / f"log.{form}"
    if form == "parquet":
        frame.write_parquet(path)
    else:
        path.write_text("\n".join(map(json.dumps, events())))
    return path


@pytest.mark.parametrize("form", ["ndjson", "parquet", "polars", "lazy", "arrow"])
def test_fields_are_columns_in_every_format(tmp_path: Path, form: str) -> None:
    source = written(tmp_path, form)
    names = ["ctx.user.country", "ctx.dev", "item", "outcome.click", "outcome.dwell", "outcome.note"]
    assert source_names(source) == names
    assert read_log(source, **COLUMNS) == read_log(flat(), **COLUMNS)


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_a_store_holds_the_same_fields(tmp_path: Path, form: str) -> None:
    source = written(tmp_path, form)
    store = prepare_log(source, tmp_path / "log.store", shards=3, memory="100MB", **COLUMNS)
    assert store == read_log(flat(), **COLUMNS).sharded(3)


def test_a_field_that_later_pieces_lack_is_missing_there(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    lines = [one if i < N // 2 else {**one, "ctx": {"dev": "tv"}} for i, one in enumerate(events())]
    path.write_text("\n".join(map(json.dumps, lines)))
    log = read_log(path, **COLUMNS)
    column = log.contexts["ctx.user.country"]
    levels = column.vocabulary.decode(column.codes[log.context_index].tolist())  # type: ignore[union-attr]
    assert levels[N // 2 :] == [None] * (N - N // 2)


def test_a_whole_column_wins_over_a_field_of_its_name() -> None:
    frame = pl.DataFrame(events()).with_columns(pl.lit("here").alias("ctx.dev"))
    log = read_log(frame, **COLUMNS)
    assert log.contexts["ctx.dev"].vocabulary.ids.to_list() == ["here"]  # type: ignore[union-attr]


def test_an_object_is_no_reward_and_its_fields_are_listed(tmp_path: Path) -> None:
    source = written(tmp_path, "parquet")
    with pytest.raises(LogError, match="'outcome' must hold numbers"):
        read_log(source, **{**COLUMNS, "reward": "outcome"})
    with pytest.raises(LogError, match=r"no column 'outcome\.clack'\. Did you mean 'outcome\.click'\?"):
        read_log(source, **{**COLUMNS, "reward": "outcome.clack"})


def test_roles_are_known_by_the_names_of_fields_and_fields_of_outcomes_are_no_context(tmp_path: Path) -> None:
    found = resolve(LogSpec(str(written(tmp_path, "ndjson"))))
    assert (found.action, found.reward) == ("item", "outcome.click")
    assert found.context == ("ctx.user.country", "ctx.dev")
    said = "\n".join(found.notes)
    assert "left out: outcome.dwell (it looks like an outcome" in said
    assert "left out: outcome.note (it looks like an outcome, as a field of outcome)" in said
