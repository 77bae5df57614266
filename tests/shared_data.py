"""Where tests find real data: OFFPOLICY_DATA, or shared/data beside the repository."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(folder: str) -> Path:
    """The root of the data, if it holds this folder; otherwise the test is skipped."""
    root = Path(os.environ.get("OFFPOLICY_DATA") or BESIDE)
    if not (root / folder).is_dir():
        pytest.skip(f"needs real data: no folder {folder!r} in OFFPOLICY_DATA or in shared/data beside the repository")
    return root


def write(root: Path, files: dict[str, str]) -> Path:
    """Write small files of a data set's own format; the folder they are in."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
