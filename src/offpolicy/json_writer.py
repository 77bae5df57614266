"""The one way values become JSON: numbers that are not finite are null, and what JSON cannot hold is refused."""

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.atomic import write_atomic
from offpolicy.errors import ParameterError

NESTING = 50
"""Levels that a value may have."""
_ATOMS = frozenset({str, int, bool, type(None)})


def jsonable(value: Any, name: str = "value") -> Any:
    """A value as JSON can hold it, or a ParameterError that says where, inside `name`, it cannot.

    Arrays, dataclasses and Pydantic models become lists and objects, paths and dates text, numbers that are not finite
    None.
    """
    return _jsonable(value, (name,))


def json_text(value: Any, name: str = "value", *, indent: int | None = None) -> str:
    """The value as JSON on one line, or on several with `indent`; no line break at the end."""
    text = json.dumps(jsonable(value, name), indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(f"{name} cannot be written as JSON: {error}. Replace that text.") from None
    return text


def write_json(path: str | Path, value: Any, name: str = "value") -> None:
    """Write a JSON file atomically."""
    write_atomic(path, json_text(value, name, indent=1) + "\n")


def _jsonable(value: Any, path: tuple[Any, ...]) -> Any:
    if len(path) > NESTING + 1:
        raise ParameterError(f"{_where(path)} is nested deeper than {NESTING} levels. Flatten it.")
    value = _taken_apart(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path | datetime.date):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _item(item, path, key) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [_item(item, path, place) for place, item in enumerate(items)]
    raise ParameterError(
        f"{_where(path)} must hold numbers, text, lists and mappings to be saved, but it is {type(value).__name__}."
    )


def _item(item: Any, path: tuple[Any, ...], key: Any) -> Any:
    return item if type(item) in _ATOMS else _jsonable(item, (*path, key))


def _taken_apart(value: Any) -> Any:
    """Records as mappings, arrays of NumPy and torch as lists, their numbers as Python's; all else as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return value.tolist()
    return value.model_dump() if hasattr(value, "model_dump") and not isinstance(value, type) else value


def _where(path: tuple[Any, ...]) -> str:
    """For example `metadata['config'][3]`; of a deep place only the first few steps."""
    steps = [f"[{step!r}]" for step in path[1:6]]
    return "".join([str(path[0]), *steps, "…" if len(path) > 6 else ""])
