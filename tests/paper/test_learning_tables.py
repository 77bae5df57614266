"""The learning tables: rows survive kills, tables are what the rows say, and the page shows the current ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offpolicy.errors import LogError
from offpolicy.learning import METHODS
from offpolicy.paper import learning_runs
from offpolicy.paper.json_lines import read_rows
from offpolicy.paper.learning_runs import ENTRIES, Nuisances, draw_world, learn_synthetic, tune_synthetic
from offpolicy.paper.learning_tables import (
    Experiment,
    coat_table,
    methods_table,
    refreshed_page,
    synthetic_table,
)

PAGE = Path(__file__).parents[2] / "docs" / "learning.md"


def fake_tune(name: str, trials: int) -> dict[str, Any]:
    return {"method": name, "trials": trials, "tuned": {"learning_rate": 0.1}}


def fake_learn(seed: int, tuned: Mapping[str, Any], trials: int) -> list[dict[str, Any]]:
    values = {"ce": 0.4, "bips_cap": 0.5 + 0.01 * seed, "uips": 0.6}
    return [
        {"method": m, "seed": seed, "trials": trials, "value": values[m], "logging": 0.3, "best": 0.9} for m in tuned
    ]


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    Experiment(("ce", "bips_cap", "uips"), 3, 4, fake_tune, fake_learn).run(path, workers=0)
    return path


def test_every_method_and_seed_has_one_row(finished: Path) -> None:
    rows = read_rows(finished)
    assert sorted(row["method"] for row in rows if "tuned" in row) == ["bips_cap", "ce", "uips"]
    assert len({(row["method"], row["seed"]) for row in rows if "seed" in row}) == 9 == len(rows) - 3


def test_a_file_cut_anywhere_is_completed_without_repeating(finished: Path, tmp_path: Path) -> None:
    whole = finished.read_bytes()
    for cut in (0, 5, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)):
        path = tmp_path / f"cut{cut}.jsonl"
        path.write_bytes(whole[:cut])
        Experiment(("ce", "bips_cap", "uips"), 3, 4, fake_tune, fake_learn).run(path, workers=0)
        assert sorted(path.read_text().splitlines()) == sorted(whole.decode().splitlines())


def test_another_budget_and_damage_are_refused(finished: Path) -> None:
    with pytest.raises(LogError, match="4 trials, not 5"):
        Experiment(("ce",), 3, 5, fake_tune, fake_learn).run(finished, workers=0)
    text = finished.read_text().splitlines()
    finished.write_text("\n".join([text[0], "{broken", *text[1:]]) + "\n")
    with pytest.raises(LogError, match="Line 2"):
        read_rows(finished)


def test_the_synthetic_table_says_what_the_rows_say(finished: Path) -> None:
    lines = synthetic_table(read_rows(finished)).splitlines()
    assert lines[2].startswith("| UIPS | 3 | 0.6000 ± 0.0000 | +0.3000 ± 0.0000 (3/3) | +0.2000 ± 0.0000 (3/3) |")
    cap = np.array([0.5, 0.51, 0.52])
    assert f"| BIPS-Cap | 3 | {cap.mean():.4f} ± {cap.std(ddof=1):.4f} |" in lines[3]
    error = cap.std(ddof=1) / 3**0.5
    assert f"{(cap - 0.4).mean():+.4f} ± {error:.4f} (3/3)" in lines[3]
    assert lines[-2].startswith("| *logging policy* | 3 | 0.3000")
    assert synthetic_table([]) == "No rows yet.\n"


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


def test_the_controls_keep_or_destroy_what_they_should() -> None:
    _, log = draw_world(3)
    nuisances = Nuisances(log, 3)
    own, permuted, frequency = (nuisances.uncertainty(kind) for kind in ("own", "permuted", "frequency"))
    assert torch.equal(own.sort().values, permuted.sort().values)
    assert not torch.equal(own, permuted)
    for action in range(3):
        rows = log.action == action
        assert frequency[torch.from_numpy(rows)] == pytest.approx(rows.sum() ** -0.5)
    assert set(METHODS) < set(ENTRIES)


def test_a_small_run_of_the_real_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_runs, "TUNING_SEEDS", (1000,))
    monkeypatch.setattr(learning_runs, "FRESH_CONTEXTS", 500)
    tuned = tune_synthetic("uips_permuted_u", 2)
    assert set(tuned["tuned"]) == {"learning_rate", "lam", "gamma", "epochs"}
    (row,) = learn_synthetic(0, {"uips_permuted_u": tuned["tuned"]}, 2)
    assert row["logging"] < row["value"] < row["best"]


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed_page(text, PAGE.parent / "results") == text, "run python -m offpolicy.paper.learning_tables docs"
    assert all(f"| `{name}` |" in methods_table() for name in METHODS)
    with pytest.raises(LogError, match="no place"):
        refreshed_page("# Learning\n", PAGE.parent / "results")
