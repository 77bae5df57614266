"""JSON: what becomes of each kind of value, and what is refused with the place where it stands."""

import datetime
import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from offpolicy.errors import ParameterError
from offpolicy.json_writer import NESTING, json_text, jsonable, write_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT


@dataclass(frozen=True)
class Point:
    x: float
    tags: tuple[str, ...] = ("a", "b")


class Model(BaseModel):
    rate: float = 0.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32("inf"), None),
        (np.float64(2.5), 2.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, math.nan]), [1.0, None]),
        (torch.tensor(2.0), 2.0),
        (torch.tensor([1.0, math.inf]), [1.0, None]),
        (Point(math.nan), {"x": None, "tags": ["a", "b"]}),
        ([Point(1.0)], [{"x": 1.0, "tags": ["a", "b"]}]),
        (Model(), {"rate": 0.5}),
        (MappingProxyType({4: {"b", "a"}}), {"4": ["a", "b"]}),
        (Path("a") / "b", "a/b"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        (range(3), [0, 1, 2]),
        ({"deep": [(None, True, "ü")]}, {"deep": [[None, True, "ü"]]}),
    ],
)
def test_values_as_json_holds_them(value: Any, expected: Any) -> None:
    assert jsonable(value) == expected
    assert json.loads(json_text(value)) == expected
    assert json.loads(json_text(value, indent=1)) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"config": {"f": print}}, r"metadata\['config'\]\['f'\] .* builtin_function_or_method"),
        ([1, [b"bytes"]], r"metadata\[1\]\[0\] .* bytes"),
        ({3: object()}, r"metadata\[3\] .* object"),
        ("\ud800", "metadata cannot be written as JSON"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        json_text(value, "metadata")


def test_nesting_has_an_end() -> None:
    value: Any = 1.5
    for _ in range(NESTING):
        value = [value]
    assert json.loads(json_text(value)) == value
    with pytest.raises(ParameterError, match=r"value\[0\].*… is nested deeper than 50 levels"):
        json_text([value])
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ParameterError, match="nested deeper"):
        json_text(loop)


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert json.loads(json_text(value)) == value
    assert "\n" not in json_text(value)


def test_a_file_that_cannot_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": math.nan})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n "ü": null\n}\n'
    with pytest.raises(ParameterError):
        write_json(tmp_path / "a.json", {"f": print})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"ü": None}
