"""KuaiRec: 12.5 million watches of 10,728 videos by 7,176 users, and 1,411 users who watched nearly all of 3,327."""

import csv
import math
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.datasets.location import check_known_counts, find_data
from offpolicy.datasets.ranking_data import CandidateLists, RankingData
from offpolicy.errors import LogError
from offpolicy.log import ActionTable, BagColumn, CategoricalColumn, Column, FeatureTable, LoggedData, Vocabulary

FILES = ("big_matrix.csv", "small_matrix.csv", ("item_categories.csv", "item_feat.csv"))
BIG = {"rows": 12_530_806, "users": 7_176, "videos": 10_728}
SMALL = {"rows": 4_676_570, "users": 1_411, "videos": 3_327}
WATCHED = 0.7
"""From this share of a video's length on, a watch is a positive."""

Unobserved: TypeAlias = Literal["skip", "negative"]


def load_kuairec(
    data: str | Path | None = None,
    *,
    history: int = 20,
    unobserved: Unobserved = "skip",
    check_counts: bool = True,
) -> RankingData:
    """The big matrix as a log, the small one as candidate lists; reward = watch ratio ≥ 0.7.

    The actions are the videos that occur in either matrix, by their own ids and in ascending order, with the bag of
    their categories (empty where the item file has none). The old edition also lists video 1225, which nobody was
    shown: it is not an action, so codes agree between the editions although later ids differ by one. A user's `history`
    is the bag of the last so many distinct videos they watched to a positive in the big matrix, oldest first; 0 leaves
    the column out. A video of the small matrix that a user blocked is no candidate of theirs, or a negative one with
    `unobserved="negative"`. Timestamps are in microseconds.
    """
    check_number("history", history, Range(0, 10**6, integer=True))
    check_choice("unobserved", unobserved, ("skip", "negative"))
    big_path, small_path, item_path = find_data("KuaiRec", FILES, data)
    big, small = _watches(big_path, timed=True), _watches(small_path, timed=False)
    if check_counts:
        check_known_counts(big_path, _counts(big), BIG)
        check_known_counts(small_path, _counts(small), SMALL)
    users = Vocabulary.of(pl.concat([big["user"].unique(), small["user"].unique()]))
    videos = Vocabulary.of(pl.concat([big["video"].unique(), small["video"].unique()]))
    coded = {name: _coded(frame, users, videos) for name, frame in (("big", big), ("small", small))}
    columns: dict[str, Column] = {"user": CategoricalColumn(np.arange(len(users), dtype=np.int32), users)}
    if history:
        columns["history"] = _history(coded["big"], history, videos, len(users))
    contexts = FeatureTable(columns)
    log = LoggedData(
        contexts=contexts,
        context_index=coded["big"]["user"].to_numpy(),
        action=coded["big"]["video"].to_numpy(),
        reward=coded["big"]["reward"].cast(pl.Float64).to_numpy(),
        actions=ActionTable(videos, FeatureTable({"categories": _categories(item_path, videos)})),
        timestamp=coded["big"]["time"].to_numpy(),
    )
    listed = _with_unobserved(coded["small"]) if unobserved == "negative" else coded["small"]
    rows = (listed[name].to_numpy() for name in ("user", "video", "reward"))
    return RankingData(log, CandidateLists.from_rows(contexts, *rows))


def _watches(path: Path, *, timed: bool) -> pl.DataFrame:
    """user, video, reward and, if asked for, time of every row, streamed so that only these are ever in memory."""
    kinds: dict[str, Any] = {"user_id": pl.Int32, "video_id": pl.Int32, "watch_ratio": pl.Float64}
    if timed:
        kinds["timestamp"] = pl.Float64
    _check_header(path, kinds)
    ratio = pl.col("watch_ratio")
    wanted = [
        pl.col("user_id").alias("user"),
        pl.col("video_id").alias("video"),
        pl.when(ratio.is_finite()).then(ratio >= WATCHED).alias("reward"),
    ]
    if timed:
        wanted.append((pl.col("timestamp") * 1e6).round().cast(pl.Int64, strict=False).alias("time"))
    scan = pl.scan_csv(path, schema_overrides=kinds, infer_schema=False, glob=False).select(wanted)
    whole_lines = pl.QueryOptFlags(projection_pushdown=False)  # otherwise a line with a field too many goes unnoticed
    try:
        frame = scan.collect(engine="streaming", optimizations=whole_lines)
    except pl.exceptions.PolarsError as error:
        raise LogError(_first_fault(path, kinds) or f"{path} cannot be read: {str(error).splitlines()[0]}.") from None
    if any(frame.null_count().row(0)):
        raise LogError(_first_fault(path, kinds))
    if frame.is_empty():
        raise LogError(f"{path} holds no rows. Fetch the file again.")
    return frame


def _check_header(path: Path, columns: dict[str, Any]) -> None:
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        header = next(csv.reader(lines), [])
    for column in columns:
        if column not in header:
            raise LogError(f"{path} has no column {column!r}. Its columns are: {', '.join(header) or 'none'}.")


def _first_fault(path: Path, kinds: dict[str, Any]) -> str:
    """The first value that is not of its kind, found by a slower reader."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.reader(lines)
        header = next(reader)
        for fields in reader:
            if len(fields) > len(header):
                return f"{path}: line {reader.line_num} has {len(fields)} fields, but the header has {len(header)}."
            for column, kind in kinds.items():
                place = header.index(column)
                field = fields[place] if place < len(fields) else ""
                if not _is_number(field, integer=kind == pl.Int32):
                    rule = "an integer" if kind == pl.Int32 else "a finite number"
                    return f"{path}: line {reader.line_num}, column {column!r} must hold {rule}, but it is {field!r}."
    return ""


def _is_number(field: str, *, integer: bool) -> bool:
    try:
        return -(2**31) <= int(field) < 2**31 if integer else math.isfinite(float(field))
    except ValueError:
        return False


def _counts(frame: pl.DataFrame) -> dict[str, int]:
    return {"rows": len(frame), "users": frame["user"].n_unique(), "videos": frame["video"].n_unique()}


def _coded(frame: pl.DataFrame, users: Vocabulary, videos: Vocabulary) -> pl.DataFrame:
    user, video = users.encode(frame["user"]), videos.encode(frame["video"])
    return frame.with_columns(pl.Series("user", user), pl.Series("video", video))


def _history(log: pl.DataFrame, length: int, videos: Vocabulary, n_users: int) -> BagColumn:
    """The last videos each user watched to a positive, each once at its latest time, oldest first."""
    latest = log.lazy().filter("reward").group_by("user", "video").agg(pl.col("time").max())
    ordered = latest.sort("user", "time", "video").collect()
    kept = ordered.group_by("user", maintain_order=True).tail(length)
    sizes = np.bincount(kept["user"].to_numpy(), minlength=n_users)
    return BagColumn(np.concatenate(([0], np.cumsum(sizes))), kept["video"].to_numpy(), videos)


def _categories(path: Path, videos: Vocabulary) -> BagColumn:
    """The categories of each action, as the item file writes them ("[27, 9]"); none for a video it does not list."""
    _check_header(path, {"video_id": None, "feat": None})
    try:
        table = pl.read_csv(path, infer_schema=False, glob=False).select("video_id", "feat")
    except pl.exceptions.PolarsError as error:
        raise LogError(f"{path} cannot be read: {str(error).splitlines()[0]}. Fetch the file again.") from None
    table = table.with_row_index("line", offset=2).with_columns(pl.col("video_id").cast(pl.Int64, strict=False))
    named = pl.col("feat").str.contains(r"^\s*\[\s*(\d{1,9}\s*(,\s*\d{1,9}\s*)*)?\]\s*$")
    bad = table.filter(pl.col("video_id").is_null() | ~named.fill_null(False))
    if len(bad):
        line, _, text = bad.row(0)
        raise LogError(
            f"{path}: line {line} must hold a video's id and a list like [27, 9], but it ends with {text!r}."
        )
    if table["video_id"].is_duplicated().any():
        twice = table.filter(~pl.col("video_id").is_first_distinct()).row(0)
        raise LogError(f"{path}: line {twice[0]} lists the video {twice[1]} again. Drop one of the lines.")
    numbers = pl.col("feat").str.extract_all(r"\d+").cast(pl.List(pl.Int64))
    actions = pl.DataFrame({"video_id": videos.ids})
    joined = actions.join(table.with_columns(numbers), on="video_id", how="left", maintain_order="left")
    sizes = joined["feat"].list.len().fill_null(0).to_numpy()
    flat = joined.filter(pl.col("feat").list.len() > 0)["feat"].explode()
    vocabulary = Vocabulary.of(flat)
    return BagColumn(np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))), vocabulary.encode(flat), vocabulary)


def _with_unobserved(small: pl.DataFrame) -> pl.DataFrame:
    """Every pair of a user and a video of the small matrix; those it lacks are negative."""
    grid = small.select(pl.col("user").unique()).join(small.select(pl.col("video").unique()), how="cross")
    return grid.join(small, on=["user", "video"], how="left").with_columns(pl.col("reward").fill_null(False))
