"""Candidates on the command line: learn, evaluate, recommend, convert, and back from Vowpal Wabbit's file."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from offpolicy.cli import app
from offpolicy.log import read_log, read_vowpal


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop's log as lists, and as a row a candidate."""
    folder = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(0)
    lists, long = [], []
    for request in range(500):
        names = [f"i{o}" for o in random.choice(6, int(random.integers(1, 5)), replace=False)]
        price = random.random(len(names)).round(2)
        share = np.exp(-price) / np.exp(-price).sum()
        place = int(random.choice(len(names), p=share))
        x, buy = float(random.normal()), int(random.random() < 0.8 - 0.6 * price[place])
        lists.append((x, names[place], buy, names, price.tolist(), float(share[place]), 0.5))
        long += [(request, x, n, float(p), n == names[place], buy) for n, p in zip(names, price, strict=True)]
    columns = ["x", "item", "click", "offered", "price", "pscore", "kept"]
    pl.DataFrame(lists, schema=columns, orient="row").write_parquet(folder / "lists.parquet")
    pl.DataFrame(long, schema=["id", "x", "item", "price", "was_shown", "click"], orient="row").write_csv(
        folder / "long.csv"
    )
    return folder


LISTS = ("--candidates", "offered", "--candidate-feature", "price")


def test_both_forms_of_a_log_are_inspected_alike(shop: Path) -> None:
    first = json.loads(run("inspect", shop / "lists.parquet", *LISTS, "--context", "x", "--json"))["log"]
    second = json.loads(run("inspect", shop / "long.csv", "--request", "id", "--shown", "was_shown", "--json"))["log"]
    assert first["candidates"] == second["candidates"]
    assert first["candidates"]["features"] == {"price": "numeric"}
    assert (first["rows"], first["actions"]) == (second["rows"], second["actions"]) == (500, 6)


def test_a_shop_learns_evaluates_and_recommends(shop: Path, tmp_path: Path) -> None:
    log, policy = shop / "lists.parquet", tmp_path / "run"
    options = (*LISTS, "--context", "x", "--logging-model", "linear")
    run("learn", log, *options, "--epochs", 3, "--out", policy, "--json")
    said = json.loads(run("evaluate", log, "--policy", f"mine={policy}", "--logging-model", "linear", "--json"))[
        "evaluation"
    ]
    assert said["policies"]["mine"]["value"] > 0
    assert said["log"]["candidates"]["most"] == 4
    run("recommend", policy, log, "--candidates", "offered", "--k", 1, "--out", tmp_path / "best.parquet", "--json")
    best, frame = pl.read_parquet(tmp_path / "best.parquet"), pl.read_parquet(log)
    assert len(best) == 500
    assert all(action in offered for action, offered in zip(best["action"], frame["offered"], strict=True))


def test_kept_shares_weigh_every_mean(shop: Path) -> None:
    log = shop / "lists.parquet"
    options = ("--policy", "uniform", *LISTS, "--context", "x", "--propensity", "pscore", "--json")
    plain, kept = (
        json.loads(run("evaluate", log, *options, *more))["evaluation"] for more in ((), ("--keep-prob", "kept"))
    )
    assert kept["policies"]["uniform"]["value"] == pytest.approx(plain["policies"]["uniform"]["value"])
    weights = pl.read_parquet(log).with_columns(kept=pl.when(pl.col("click") == 1).then(0.5).otherwise(1.0))
    weights.write_parquet(shop / "weighted.parquet")
    found = json.loads(run("evaluate", shop / "weighted.parquet", *options, "--keep-prob", "kept"))["evaluation"]
    clicks = pl.read_parquet(log)["click"].to_numpy()
    assert found["logging"]["value"] == pytest.approx(2 * clicks.sum() / (2 * clicks.sum() + (1 - clicks).sum()))


@pytest.mark.parametrize("form", ["dsjson", "cb_adf"])
def test_a_log_goes_to_vowpal_and_back(shop: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / ("log.dsjson" if form == "dsjson" else "log.vw")
    roles = (*LISTS, "--context", "x", "--propensity", "pscore")
    run("convert", shop / "lists.parquet", *roles, "--to", form, "--out", out, "--json")
    own = read_log(
        shop / "lists.parquet",
        context=["x"],
        action="item",
        reward="click",
        propensity="pscore",
        candidates="offered",
        candidate_features=["price"],
    )
    assert read_vowpal(out) == own
    said = json.loads(run("inspect", out, "--json"))
    assert said["log"]["candidates"]["most"] == 4
    assert "candidates: those listed with each decision" in said["inferred"]
