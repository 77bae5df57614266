"""The study of linear worlds: its controls, one line tuned and learned, and the committed results under its recipe."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from offpolicy.learning import METHODS
from offpolicy.paper.plan import Plan
from offpolicy.paper.recipe import load_recipe
from offpolicy.paper.runner import ResultsLog
from offpolicy.paper.studies import STUDIES, linear_worlds
from offpolicy.paper.studies.estimates import Estimates
from offpolicy.paper.studies.linear_worlds import LinearWorlds, draw_world
from offpolicy.paper.studies.lines import ENTRIES, LATER

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "reproduction" / "linear_worlds.jsonl"


def test_the_controls_keep_or_destroy_what_they_should() -> None:
    _, log = draw_world(3)
    estimates = Estimates(log, 3)
    own, permuted, frequency = (estimates.uncertainty(kind) for kind in ("own", "permuted", "frequency"))
    assert torch.equal(own.sort().values, permuted.sort().values)
    assert not torch.equal(own, permuted)
    for action in range(3):
        rows = log.action == action
        assert frequency[torch.from_numpy(rows)] == pytest.approx(rows.sum() ** -0.5)
    assert {*METHODS} - {*LATER} < set(ENTRIES)
    assert {*LATER} < {*METHODS}


def test_a_small_run_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_worlds, "TUNING_WORLDS", 1)
    monkeypatch.setattr(linear_worlds, "FRESH_CONTEXTS", 500)
    study = LinearWorlds()
    (best,) = study.tune("uips_permuted_u", 2, 1000)
    assert set(best["settings"]) == {"learning_rate", "lam", "gamma", "epochs"}
    assert best["trials"] == 2
    again = study.validate("uips_permuted_u", best["settings"], 1000)
    assert again == pytest.approx(best["validation"], abs=1e-6)
    (row,) = study.measure("uips_permuted_u", best["settings"], 0)
    assert row["logging"] < row["value"] < row["best"]
    assert row == json.loads(json.dumps(row))
    kept = LinearWorlds(redraw="policy").measure("uips_permuted_u", best["settings"], 1)[0]
    assert (kept["logging"], kept["best"]) == (row["logging"], row["best"])
    assert kept["value"] != row["value"]


def test_the_committed_results_are_complete_under_the_recipe(tmp_path: Path) -> None:
    shutil.copy(RESULTS, tmp_path / "results.jsonl")
    log = ResultsLog.open(Plan.of(load_recipe("linear_worlds"), STUDIES), tmp_path)
    assert {line for _, line in log.lines} == set(ENTRIES)
    assert [log.open_keys(part, line) for part, line in log.lines] == [[]] * len(ENTRIES)
