"""Vowpal Wabbit's logs, DSJSON and `cb` text, as frames with the columns action, reward, propensity and the features.

`reward` is −cost. Features of a decision become columns named `namespace.feature`: numbers (0 where a row lacks them,
as Vowpal Wabbit reads it), text, or bags of names where a row may hold several. An action is called by its tag or id
where it has one, else by its features, else by its place in the list.
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, TypeAlias

import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.origin import shown

VowpalFormat: TypeAlias = Literal["dsjson", "cb"]

SUFFIXES: dict[str, VowpalFormat] = {".dsjson": "dsjson", ".vw": "cb", ".cb": "cb"}
ROLES = ("action", "reward", "propensity", "timestamp")
MOST_COLUMNS = 5_000
LABEL = re.compile(r"\d+:[^:\s|]+:[^:\s|]+")
DSJSON_KEYS = (b'"_label_cost"', b'"_labelIndex"', b'"_label_probability"')

Row: TypeAlias = dict[str, Any]
"""A column's name to a number, or to a list of names."""


def vowpal_format(path: Path, head: bytes) -> VowpalFormat | None:
    """Which of the two formats a file has, by its suffix or its first bytes; None for anything else."""
    suffixes = path.suffixes[:-1] if path.suffix == ".gz" else path.suffixes
    by_name = SUFFIXES.get(suffixes[-1].lower()) if suffixes else None
    if by_name is not None:
        return by_name
    start = head.lstrip()
    if start.startswith(b"{"):
        return "dsjson" if any(key in start for key in DSJSON_KEYS) else None
    first = start.splitlines()[0].decode(errors="replace") if start else ""
    label = first.partition("|")[0].split()
    labelled = any(LABEL.fullmatch(token) for token in label) or label[:1] == ["shared"]
    return "cb" if "|" in first and labelled else None


def vowpal_frame(path: Path, form: VowpalFormat) -> pl.DataFrame:
    """All decisions of a file, one row each."""
    try:
        stamp = path.stat()
        return _parsed(path, form, stamp.st_mtime_ns, stamp.st_size)
    except (OSError, EOFError, zlib.error) as error:
        raise LogError(f"{path} cannot be read ({error}). Fix or rewrite the file.") from None


@lru_cache(maxsize=1)  # the names of the columns and then the columns are asked for
def _parsed(path: Path, form: VowpalFormat, changed: int, size: int) -> pl.DataFrame:
    with _opened(path) as lines:
        rows = list(_dsjson_rows(path, lines) if form == "dsjson" else _cb_rows(path, lines))
    if not rows:
        raise LogError(f"{path} holds no labelled decision. A log needs rows with an action, a cost and a probability.")
    return _frame(path, rows)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


def _bad(path: Path, line: int, problem: str, remedy: str = "Fix or drop the line.") -> NoReturn:
    raise LogError(f"{path}: line {line} {problem}. {remedy}")


def _number(path: Path, line: int, what: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        _bad(path, line, f"must hold a number as {what}, but it holds {shown(value)}")
    return number


def _dsjson_rows(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            event = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            _bad(path, number, f"is not JSON: {shown(text.strip())}")
        if not isinstance(event, dict):
            _bad(path, number, "is not a JSON object")
        if "c" in event and "_label_cost" in event and not event.get("_skipLearn", False):
            yield _dsjson_row(path, number, event)  # other lines report rewards that came late, or teach nothing


def _dsjson_row(path: Path, line: int, event: Mapping[str, Any]) -> Row:
    context = event["c"]
    if not isinstance(context, dict):
        _bad(path, line, "must hold an object as 'c', the context")
    listed = context.get("_multi", [])
    if not isinstance(listed, list):
        _bad(path, line, "must hold a list as 'c._multi', the actions")
    ranking, probs = event.get("a", []), event.get("p", [])
    place = event.get("_labelIndex")
    if place is None:
        chosen = event.get("_label_Action", ranking[0] if isinstance(ranking, list) and ranking else None)
        place = chosen - 1 if isinstance(chosen, int) else None
    if not isinstance(place, int) or place < 0 or (listed and place >= len(listed)):
        _bad(path, line, "must say which action was taken by _labelIndex (from 0) or _label_Action (from 1)")
    prob = event.get("_label_probability")
    if prob is None and isinstance(ranking, list) and isinstance(probs, list) and place + 1 in ranking[: len(probs)]:
        prob = probs[ranking.index(place + 1)]
    row: Row = {}
    _flatten({key: value for key, value in context.items() if not key.startswith("_")}, "", row)
    row = _apart_from_roles(row)
    row["action"] = _action_name(listed[place], place) if listed else str(place + 1)
    row["reward"] = -_number(path, line, "_label_cost", event["_label_cost"])
    row["propensity"] = _number(path, line, "_label_probability", prob)
    if isinstance(event.get("Timestamp"), str):
        row["timestamp"] = event["Timestamp"]
    return row


def _flatten(value: Any, name: str, row: Row) -> None:
    """Numbers and lists of names, by the path that leads to them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), row)
    elif isinstance(value, list):
        if value and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value):
            row |= {f"{name}.{place}": float(one) for place, one in enumerate(value)}
        else:
            for one in value:
                _flatten(one, name, row)
    elif isinstance(value, str | bool):
        _add_name(row, name, str(value).lower() if isinstance(value, bool) else value)
    elif isinstance(value, int | float) and abs(value) < 1e300:
        row[name] = float(value)


def _add_name(row: Row, column: str, name: str) -> None:
    held = row.setdefault(column, [])
    if isinstance(held, list):
        held.append(name)
    else:
        row[column] = [f"{held:g}", name]


def _action_name(action: Any, place: int) -> str:
    if isinstance(action, dict):
        inner = action.get("i")
        named = [action.get("_tag"), inner.get("id") if isinstance(inner, dict) else None, action.get("id")]
        for candidate in named:
            if isinstance(candidate, str | int):
                return str(candidate)
        features: Row = {}
        _flatten({key: value for key, value in action.items() if not key.startswith("_")}, "", features)
        if features:
            return _described(features)
    return str(place + 1)


def _described(features: Row) -> str:
    parts = []
    for name, value in sorted(features.items()):
        short = name.rpartition(".")[2] if isinstance(value, list) else name
        parts += [f"{short}={one}" for one in value] if isinstance(value, list) else [f"{short}:{value:g}"]
    return " ".join(parts)


def _cb_rows(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    """One decision a line, or (cb_adf) one a block of lines with a line per action."""
    block: list[tuple[int, str]] = []
    many: bool | None = None
    for number, text in enumerate([*lines, ""], start=1):
        if text.strip():
            block.append((number, text.strip()))
            continue
        if block and many is None:
            many = any(_label(line) is None for _, line in block)
        if block and many:
            yield from _adf_row(path, block)
        elif block:
            yield from (_cb_row(path, *one) for one in block)
        block = []


def _label(line: str) -> list[str] | None:
    """Action, cost and probability of a line; None where it has no label or is shared."""
    label = next((token for token in line.partition("|")[0].split() if token.count(":") == 2), None)
    return None if label is None or line.startswith("shared") else label.split(":")


def _cb_row(path: Path, number: int, line: str) -> Row:
    label = _label(line)
    if label is None or not label[0].isdigit():
        _bad(path, number, f"must begin with action:cost:probability, but it is {shown(line)}")
    row = _apart_from_roles(_cb_features(path, number, line))
    return row | {"action": label[0]} | _outcome(path, number, label)


def _outcome(path: Path, number: int, label: list[str]) -> Row:
    return {
        "reward": -_number(path, number, "cost", label[1]),
        "propensity": _number(path, number, "probability", label[2]),
    }


def _adf_row(path: Path, block: list[tuple[int, str]]) -> Iterator[Row]:
    shared = [(number, line) for number, line in block if line.startswith("shared")]
    offered = [(number, line) for number, line in block if not line.startswith("shared")]
    chosen = [(place, number, line) for place, (number, line) in enumerate(offered) if _label(line) is not None]
    if len(chosen) > 1:
        _bad(path, chosen[1][1], "is the second of its block with a label, but one action is taken in a decision")
    if not chosen:
        return  # a decision whose outcome is not known
    place, number, line = chosen[0]
    row: Row = {}
    for where, text in shared:
        row |= _cb_features(path, where, text)
    features = _cb_features(path, number, line)
    tag = re.search(r"'(\S+?)\s*\|", line)
    name = tag.group(1) if tag else _described(features) if features else str(place + 1)
    yield _apart_from_roles(row) | {"action": name} | _outcome(path, number, _label(line) or [])


def _cb_features(path: Path, number: int, line: str) -> Row:
    row: Row = {}
    for part in line.split("|")[1:]:
        tokens = part.split()
        namespace = ""
        if tokens and not part[:1].isspace():
            namespace = tokens.pop(0).partition(":")[0]
        for token in tokens:
            name, colon, value = token.rpartition(":") if ":" in token else (token, "", "")
            before, equals, after = name.partition("=")
            prefix = f"{namespace}." if namespace else ""
            if colon and value != "1":
                row[f"{prefix}{name}"] = _number(path, number, f"the value of feature {name!r}", value)
            elif equals:
                _add_name(row, f"{prefix}{before}", after)
            else:
                _add_name(row, namespace or "features", name)
    return row


def _apart_from_roles(row: Row) -> Row:
    return {f"context.{name}" if name in ROLES else name: value for name, value in row.items()}


def _frame(path: Path, rows: list[Row]) -> pl.DataFrame:
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ROLES))
    if len(names) > MOST_COLUMNS:
        raise LogError(
            f"{path} holds {len(names)} different features with values of their own, more than {MOST_COLUMNS}. Write "
            "features without values as names, which become one bag, or convert the file to Parquet."
        )
    ids = [row["action"] for row in rows]
    whole = all(i.isdigit() and str(int(i)) == i and len(i) < 19 for i in ids)
    columns = [pl.Series("action", [int(i) for i in ids] if whole else ids)]
    columns += [pl.Series(name, [row[name] for row in rows], pl.Float64) for name in ("reward", "propensity")]
    if all("timestamp" in row for row in rows):
        columns.append(_instants([row["timestamp"] for row in rows]))
    if not names:
        columns.append(pl.Series("constant", [1.0] * len(rows)))
    return pl.DataFrame([*columns, *(_feature(name, [row.get(name) for row in rows]) for name in names)])


def _instants(values: list[str]) -> pl.Series:
    text = pl.Series("timestamp", values, pl.String)
    parsed = text.str.to_datetime(time_unit="us", time_zone="UTC", strict=False, ambiguous="earliest")
    return text if parsed.null_count() else parsed.dt.replace_time_zone(None)


def _feature(name: str, values: list[Any]) -> pl.Series:
    """Numbers where all are, else text where no row has two names, else bags."""
    if all(value is None or isinstance(value, float) for value in values):
        return pl.Series(name, [0.0 if value is None else value for value in values], pl.Float64)
    lists = [[] if v is None else [f"{v:g}"] if isinstance(v, float) else v for v in values]
    if all(len(names) <= 1 for names in lists):
        return pl.Series(name, [names[0] if names else None for names in lists], pl.String)
    return pl.Series(name, lists, pl.List(pl.String))
