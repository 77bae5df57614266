"""A file of JSON lines that grows row by row and survives a kill at any moment."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offpolicy.errors import LogError
from offpolicy.json_writer import json_text

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The finished rows of a file; a last line cut short by a kill does not count."""
    if not path.exists():
        return []
    rows: list[Row] = []
    lines = path.read_bytes().split(b"\n")  # as bytes, because a kill may cut a character in two
    for number, line in enumerate(lines):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError:
            if number < len(lines) - 1:
                raise LogError(
                    f"Line {number + 1} of {path} is not JSON. Delete the line; it will be computed again."
                ) from None
    return rows


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows in one write; a line that a kill cut short is removed first."""
    complete = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
    text = as_lines(rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(complete)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def as_lines(rows: Iterable[Row]) -> str:
    """One JSON object per line."""
    return "".join(json_text(row, "row") + "\n" for row in rows)
