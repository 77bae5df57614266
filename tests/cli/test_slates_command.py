"""A log of slates through the commands: learned from, evaluated, its user model named."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from slate_worlds import SlateWorld
from small_log import run


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Visits to a shelf of three of five products."""
    world = SlateWorld.make("cascade", 1, n_actions=5, length=3, d=2)
    log = world.log(400, 0)
    x = log.contexts["x"].values[log.context_index]  # type: ignore[union-attr]
    frame = pl.DataFrame(
        {
            "visit": np.repeat(np.arange(400), 3),
            "place": np.tile([1, 2, 3], 400),
            "warm": x[:, 0] > 0,
            "product": [f"p{code}" for code in log.action],
            "bought": log.reward.astype(int),
        }
    )
    frame.write_parquet(tmp_path / "shelf.parquet")
    return tmp_path / "shelf.parquet"


ROLES = ("--request", "visit", "--position", "place", "--context", "warm", "--action", "product", "--reward", "bought")
QUICK = ("--logging-model", "linear", "--no-propensity-models")


def test_a_policy_learned_from_slates_is_evaluated_on_other_requests(shelf: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    learned = run("learn", str(shelf), *ROLES, *QUICK, "--method", "rips", "--set", "epochs=2", "--out", out)
    assert learned.code == 0, learned.err
    found = run("evaluate", str(shelf), *QUICK, "--policy", out, "--user-model", "cascade", "--json")
    assert found.code == 0, found.err
    evaluation = json.loads(found.out)["evaluation"]
    policy = evaluation["policies"]["run"]
    assert policy["assumes"] == "cascade"
    assert {one["name"]: one["assumes"] for one in policy["estimates"]}["sips"] == "any"
    assert evaluation["log"]["rows"] == 3 * evaluation["log"]["slates"]["requests"] < 1200
    assert evaluation["log"]["clusters"] == evaluation["log"]["slates"]["requests"]


def test_what_is_printed_says_what_it_assumes(shelf: Path) -> None:
    found = run("evaluate", str(shelf), *ROLES, *QUICK, "--policy", "uniform")
    assert found.code == 0, found.err
    assert "they assume nothing about users" in found.out
    assert "pseudo_inverse (uniform): it needs positions filled independently" in found.out.replace("\n", " ")
    wrong = run("evaluate", str(shelf), *ROLES, *QUICK, "--policy", "uniform", "--user-model", "top-down")
    assert wrong.code != 0
    assert "user_model" in wrong.err
