"""Any configuration file is obeyed or refused with a paragraph."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpolicy.cli import app
from offpolicy.cli.config import config_values
from offpolicy.errors import ParameterError
from small_log import a_frame, run

KEYS = ["log", "context", "action", "reward", "propensity", "cluster", "timestamp", "kind", "reward-range"]
KEYS += ["reward_range", "actions", "seed", "config", "json", "policy", "out", "level", "debug", "x"]
WORDS = st.sampled_from(
    ["segment", "age", "item", "click", "pscore", "user", "0,1", "age=numeric", "~x/y", "1e999", ""]
)
scalars = (
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | WORDS | st.text(max_size=5) | st.just("2024-01-31")
)
toml_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
documents = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), toml_values, max_size=4)


def toml_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return "2024-01-31" if value == "2024-01-31" else json.dumps(value)


def check_configuration(folder: Path, document: dict[str, Any], garbage: str) -> None:
    """Every command reads the file or refuses it with a paragraph; inspect then does its work or refuses too."""
    config = folder / "fuzz.toml"
    lines = "\n".join(f"{json.dumps(key)} = {toml_text(value)}" for key, value in document.items())
    config.write_text(lines + "\n" + garbage, encoding="utf-8")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        with contextlib.suppress(ParameterError):
            config_values(config, command.params, name)
    found = run("inspect", folder / "tiny.csv", "--config", config)
    assert found.code in (0, 1), found
    assert (found.err == "") == (found.code == 0)
    assert "Traceback" not in found.err


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(document=documents, garbage=st.just("") | st.text(max_size=5))
def test_any_configuration_file_is_obeyed_or_refused(tmp_path: Path, document: dict[str, Any], garbage: str) -> None:
    a_frame(40).write_csv(tmp_path / "tiny.csv")
    check_configuration(tmp_path, document, garbage)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(document=documents, garbage=st.just("") | st.text(max_size=5))
def test_any_of_many_configuration_files(tmp_path: Path, document: dict[str, Any], garbage: str) -> None:
    a_frame(40).write_csv(tmp_path / "tiny.csv")
    check_configuration(tmp_path, document, garbage)
