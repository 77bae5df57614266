"""The page of learning: tables are what the recorded rows say, and the page shows the current ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.cli.learning_page import (
    ablation_table,
    coat_table,
    defaults_table,
    methods_table,
    refreshed_page,
    worlds_table,
)
from offpolicy.errors import LogError
from offpolicy.learning import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"
RESULTS = PAGE.parent / "results" / "reproduction"


def rows() -> list[dict[str, Any]]:
    """Three lines over three seeds, as the runner records them."""
    values = {"ce": (0.4, 0.4, 0.4), "bips_cap": (0.5, 0.51, 0.52), "uips": (0.6, 0.6, 0.6)}
    labels = {"ce": "CE", "bips_cap": "BIPS-Cap", "uips": "UIPS"}
    made: list[dict[str, Any]] = [{"part": "", "line": "ce", "label": "CE", "stage": "tune", "seed": 1000, "found": []}]
    for line, each in values.items():
        common = {"part": "", "line": line, "label": labels[line], "stage": "measure", "settings": {"lam": 20.04}}
        for seed, value in enumerate(each):
            made.append(common | {"seed": seed, "found": [{"value": value, "logging": 0.3, "best": 0.9}]})
    return made


def test_the_table_of_worlds_says_what_the_rows_say() -> None:
    lines = worlds_table(rows()).splitlines()
    assert lines[2] == (
        "| UIPS | 3 | 0.6000 ± 0.0000 | +0.3000 ± 0.0000 (3/3) | +0.2000 ± 0.0000 (3/3) "
        "| +0.0900 ± 0.0058 (3/3) | lam 20 |"
    )
    cap = np.array([0.5, 0.51, 0.52])
    assert f"| BIPS-Cap | 3 | {cap.mean():.4f} ± {cap.std(ddof=1):.4f} |" in lines[3]
    error = cap.std(ddof=1) / 3**0.5
    assert f"{(cap - 0.4).mean():+.4f} ± {error:.4f} (3/3)" in lines[3]
    assert lines[-2].startswith("| *logging policy* | 3 | 0.3000")
    assert lines[-1].startswith("| *best possible* | 3 | 0.9000")
    assert worlds_table([]) == "No rows yet.\n"


def test_the_defaults_table_says_what_the_rows_say() -> None:
    """Two seeds of one setting searched in hindsight, a third not: shares .5 and 1, one run below logging."""
    made: list[dict[str, Any]] = []
    for seed, auto in enumerate((0.5, 0.6, 0.1)):
        common = {"setting": 4, "name": "world", "seed": seed, "logging": 0.4 + 0.2 * (seed == 2)}
        made.append(common | {"job": "auto", "value": auto, "method": "dm", "covered": seed == 0})
        made += [common | {"job": job, "value": 0.45} for job in ("uips", "uips_permuted")]
    best = {f"4/{seed}": {"value": 0.6, "trainings": 34} for seed in range(2)}
    line = defaults_table(made, best).splitlines()[2]
    assert line == "| 4 world | 2 | 34 34 | 0.400 | 0.600 | 0.550 | 0.75 | dm | 1/2 | 0 | 0.450 | – | – | – |"
    assert defaults_table(made, {}) == ablation_table(made) == "No rows yet.\n"  # one setting has no standard error
    other = [row | {"setting": 5, "value": row["value"] - 0.1 * (row["job"] == "uips_permuted")} for row in made]
    line = ablation_table(made + other).splitlines()[2]
    assert line == "| `uips` | U permuted over rows | 6 | 2 | +0.0500 ± 0.0500 | 1/2 |"


def test_four_lines_of_coat_stand_beside_the_paper() -> None:
    found = [{"P@5": 0.25, "R@5": 0.45, "NDCG@5": 0.43}]
    config = {"redraw": "all", "trials": 20, "validations": 2}
    row = {"part": "Coat", "stage": "measure", "found": found, "config": config}
    lines = {"ce": "CE", "dm": "DM"}
    table = coat_table([row | {"line": line, "label": lines[line], "seed": seed} for line in lines for seed in (0, 1)])
    assert "CE" in table
    assert "0.4529" in table
    assert "DM" not in table
    assert coat_table([]) == "No rows yet.\n"


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed_page(text, RESULTS) == text, "run python -m offpolicy.cli.learning_page"
    assert all(f"| `{name}` |" in methods_table() for name in METHODS)
    with pytest.raises(LogError, match="no place"):
        refreshed_page("# Learning\n", RESULTS)
