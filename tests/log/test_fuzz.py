"""Whatever happens to the bytes of a log file, reading it gives a log or an error of ours, never anything else."""

import gzip
import io
import random as chance
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.errors import OffPolicyError
from offpolicy.workflows.log_spec import LogSpec
from offpolicy.workflows.prepare import resolve
from small_log import a_frame

FRAME = a_frame(40).with_columns(
    tags=pl.Series([["a", "b"][: i % 3] for i in range(40)]), taste=pl.Series([[i / 7, 1.0] for i in range(40)])
)
FLAT = FRAME.drop("tags", "taste")


def _written(form: str) -> bytes:
    buffer = io.BytesIO()
    if form == "parquet":
        FRAME.write_parquet(buffer, compression="uncompressed")  # so that damage reaches the values
    elif form == "ndjson":
        FRAME.write_ndjson(buffer)
    else:
        FLAT.write_csv(buffer)
    return buffer.getvalue()


FILES = {f"log.{form}": _written(form) for form in ("parquet", "csv", "ndjson")}
FILES["log.csv.gz"] = gzip.compress(FILES["log.csv"], mtime=0)
SNIPPETS = [
    b"",
    b"\0",
    b"\n",
    b'"',
    b",",
    b"{",
    b"}",
    b"[",
    b"null",
    b"NaN",
    b"1e999",
    b"-1",
    b"\xff\xfe",
    b"\r",
    b"\t",
]
damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "delete", "repeat"]), st.floats(0, 1), st.integers(0, 2**32 - 1)
    ),
    min_size=1,
    max_size=4,
)


def damaged(content: bytes, damage: list[tuple[str, float, int]]) -> bytes:
    for how, share, seed in damage:
        place = min(int(share * len(content)), max(len(content) - 1, 0))
        random = chance.Random(seed)
        if how == "flip" and content:
            content = content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]
        elif how == "cut":
            content = content[:place]
        elif how == "insert":
            content = content[:place] + random.choice(SNIPPETS) + content[place:]
        elif how == "delete":
            content = content[:place] + content[place + random.randrange(1, 30) :]
        elif how == "repeat":
            content = content[:place] + content[place : place + random.randrange(1, 200)] * 2 + content[place:]
    return content


def check_reading(folder: Path, name: str, damage: list[tuple[str, float, int]]) -> None:
    path = folder / name
    path.write_bytes(damaged(FILES[name], damage))
    log, said = None, ""
    try:
        log = resolve(LogSpec(str(path))).read().log
    except OffPolicyError as error:
        said = str(error)
    if log is None:
        assert all(line.endswith((".", "?")) for line in said.split("\n"))
        assert said.count("\n") == (int(said.partition(" problems.")[0].split()[-1]) if " problems.\n" in said else 0)
    else:
        assert log.n_rows > 0
        assert ((log.reward >= 0) & (log.reward <= 1)).all()


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(damage=damages)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str, damage: list[tuple[str, float, int]]) -> None:
    check_reading(tmp_path, name, damage)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=2_500, derandomize=False, suppress_health_check=list(HealthCheck))
@given(damage=damages)
def test_ten_thousand_damaged_files(tmp_path: Path, name: str, damage: list[tuple[str, float, int]]) -> None:
    check_reading(tmp_path, name, damage)
