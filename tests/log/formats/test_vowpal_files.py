"""Vowpal Wabbit's own test files: what each holds, against values worked out here from the raw lines alone."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest

from offpolicy.errors import LogError, ParameterError
from offpolicy.evaluation import evaluate, weight_inputs
from offpolicy.log import LoggedData, read_log, read_vowpal, to_cb_adf, to_dsjson, vowpal_log
from offpolicy.policies import RecordedPolicy, UniformPolicy
from shared_data import shared_data


class Held(NamedTuple):
    """What a file holds."""

    requests: int
    """Labelled decisions."""
    candidates: tuple[int, ...]
    """The sizes of their sets, in order, without immediate repetition."""
    actions: int
    mean_reward: float
    ips_uniform: float
    snips_uniform: float
    reward_range: tuple[float, float]
    skipped: tuple[str, ...] = ()


TABLE = {
    "cb_features_w_zero_vals.dat": Held(2, (3, 2), 5, -0.5, -1 / 3, -0.4, (-1, 0), ("1 blocks without a cost",)),
    "cb_features_w_zero_vals.dsjson": Held(2, (2,), 4, 1.0, 1.0, 1.0, (0, 1)),
    "cb_simple_pdrop.json": Held(1, (2,), 2, 1.0, 1.0, 1.0, (0, 1)),
    "cb_test_medium.ldf": Held(10, (3, 2) * 5, 5, -0.5, -1 / 3, -0.4, (-1, 0), ("5 blocks without a cost",)),
    "cb_test_non_binary_costs.ldf": Held(10, (3, 2) * 5, 5, -0.1, -0.08, -0.096, (-1, 1), ("5 blocks",)),
    "decisionservice.json": Held(3, (12,), 12, 2 / 3, 0.0680272, 2 / 3, (0, 1)),
    "dsjson_cb_part1.json": Held(12, (4,), 4, 0.5, 0.1470588, 0.1363636, (0, 1)),
}
REFUSED = {
    "b1848_dsjson_parser_regression.txt": ("1 events marked _skipLearn", "6 lines with rewards", "1 checkpoint lines"),
    "ccb_data.json": ("59 events with several slots",),
}


def test_the_table_is_complete() -> None:
    folder = shared_data("vw") / "vw"
    assert {path.name for path in folder.iterdir()} == {*TABLE, *REFUSED}


def by_hand(path: Path) -> dict[str, Any]:
    """Sets, rewards, propensities and weights, read without the library."""
    sizes, rewards, probs, weights = [], [], [], []
    if path.suffix in (".dat", ".ldf"):
        for block in path.read_text().strip().split("\n\n"):
            lines = [line for line in block.splitlines() if line.strip() and not line.startswith("shared")]
            labels = [line.split("|")[0].split() for line in lines]
            taken = [words[0].split(":") for words in labels if words]
            if taken:
                sizes.append(len(lines))
                rewards.append(-float(taken[0][1]))
                probs.append(float(taken[0][2]))
                weights.append(1.0)
    else:
        for line in path.read_text().splitlines():
            if not line.strip():
                continue
            event = json.loads(line)
            sizes.append(len(event["c"]["_multi"]))
            rewards.append(-event["_label_cost"])
            probs.append(
                event["p"][event["a"].index(event["_label_Action"])]
                if event.get("pdrop")
                else event["_label_probability"]
            )
            weights.append(1 / (1 - event.get("pdrop", 0)))
    return {
        name: np.array(found)
        for name, found in zip(("size", "r", "p", "w"), (sizes, rewards, probs, weights), strict=True)
    }


@pytest.mark.parametrize("name", TABLE)
def test_files_hold_what_the_table_says(name: str) -> None:
    path, held = shared_data("vw") / "vw" / name, TABLE[name]
    log = read_vowpal(path, reward_range=held.reward_range)
    raw = by_hand(path)
    assert log.candidates is not None
    assert log.logging_prob is not None
    size = log.candidates.sizes[log.context_index]
    weight = np.ones(log.n_rows) if log.row_weight is None else log.row_weight
    reward = log.reward_to_user_scale(log.reward)
    for mine, theirs in ((size, raw["size"]), (reward, raw["r"]), (log.logging_prob, raw["p"]), (weight, raw["w"])):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    ratio = 1 / raw["size"] / raw["p"]
    ips = float((raw["w"] * ratio * raw["r"]).sum() / raw["w"].sum())
    snips = float((raw["w"] * ratio * raw["r"]).sum() / (raw["w"] * ratio).sum())
    found = weight_inputs(("log_ratio",), log, UniformPolicy(log.actions), RecordedPolicy(log.actions))
    mass = weight * found["log_ratio"].exp().numpy()
    assert float((mass * reward).sum() / weight.sum()) == pytest.approx(ips, abs=1e-9)
    assert float((mass * reward).sum() / mass.sum()) == pytest.approx(snips, abs=1e-9)
    mean = float(np.average(raw["r"], weights=raw["w"]))
    assert log.reward_to_user_scale(log.mean_reward) == pytest.approx(mean, abs=1e-9)  # the logged policy's own value
    assert (log.n_rows, log.n_actions) == (held.requests, held.actions)
    runs = tuple(int(s) for i, s in enumerate(size) if i == 0 or s != size[i - 1])
    assert runs == held.candidates
    assert (mean, ips, snips) == pytest.approx((held.mean_reward, held.ips_uniform, held.snips_uniform), abs=1e-6)
    notes = vowpal_log([path], "cb" if path.suffix in (".dat", ".ldf") else "dsjson").notes
    assert len(notes) == len(held.skipped)
    assert all(said in note for said, note in zip(held.skipped, notes, strict=True))


@pytest.mark.parametrize("name", ["decisionservice.json", "dsjson_cb_part1.json"])
def test_evaluate_takes_the_same_values(name: str) -> None:
    path, held = shared_data("vw") / "vw" / name, TABLE[name]
    found = evaluate(read_vowpal(path), {"uniform": "uniform"}, logging_policy="recorded", estimators=["ips", "snips"])
    values = {one.name: one.value for one in found.policies["uniform"].estimates}
    assert (values["ips"], values["snips"]) == pytest.approx((held.ips_uniform, held.snips_uniform), abs=1e-6)
    assert found.logging.value == pytest.approx(held.mean_reward, abs=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_files_without_single_decisions_are_refused_with_counts(name: str) -> None:
    path = shared_data("vw") / "vw" / name
    with pytest.raises(LogError, match="no labelled decision") as error:
        read_vowpal(path)
    assert all(said in str(error.value) for said in REFUSED[name])


def test_what_is_the_same_everywhere_describes_the_action(tmp_path: Path) -> None:
    path = tmp_path / "log.dsjson"
    events = [
        {
            "_label_cost": -1,
            "_label_probability": 0.5,
            "_labelIndex": place,
            "c": {
                "hour": hour,
                "_multi": [{"_tag": "tea", "hot": 1, "price": price}, {"_tag": "ice", "hot": 0, "price": 2.0}],
            },
        }
        for place, hour, price in ((0, 9.0, 1.0), (1, 10.0, 1.5))
    ]
    path.write_text("\n".join(map(json.dumps, events)))
    found = vowpal_log([path], "dsjson")
    assert found.candidate_features == ("price",)
    assert found.actions is not None
    assert found.actions.sort("action").to_dict(as_series=False) == {"action": ["ice", "tea"], "hot": [0.0, 1.0]}
    assert found.frame["price"].to_list() == [[1.0, 2.0], [1.5, 2.0]]
    log = read_vowpal(path)
    assert log.actions.features is not None
    assert list(log.actions.features) == ["hot"]


def test_a_value_of_one_is_the_value_one(tmp_path: Path) -> None:
    path = tmp_path / "log.vw"
    path.write_text("1:0:0.5 | price:1 red\n2:-1:0.5 | price:2.5\n1:0:0.5 | price blue\n2:0:0.5 | red\n")
    log = read_vowpal(path)
    prices = log.contexts["price"].values[log.context_index]  # type: ignore[union-attr]
    assert prices.tolist() == [1.0, 2.5, 1.0, 0.0]
    frame = vowpal_log([path], "cb").frame
    assert frame["features"].to_list() == ["red", None, "blue", "red"]


def test_kept_shares_change_neither_propensity_nor_mean_by_themselves(tmp_path: Path) -> None:
    """Of events kept half of the time, `_label_probability` is half of the action's own probability."""
    path = tmp_path / "log.dsjson"
    event = {
        "_label_cost": -1,
        "_label_probability": 0.2,
        "_labelIndex": 0,
        "pdrop": 0.5,
        "c": {"x": 1, "_multi": [{}, {}]},
    }
    other = {"_label_cost": 0, "_label_probability": 0.6, "_labelIndex": 1, "c": {"x": 1, "_multi": [{}, {}]}}
    path.write_text(f"{json.dumps(event)}\n{json.dumps(other)}\n")
    log = read_vowpal(path)
    assert log.logging_prob is not None
    assert log.row_weight is not None
    assert log.logging_prob.tolist() == pytest.approx([0.4, 0.6])
    assert log.row_weight.tolist() == [2.0, 1.0]
    assert log.mean_reward == pytest.approx(2 / 3)


def shop(n: int = 60, *, times: bool, weights: bool) -> LoggedData:
    """A log with numbers, text, bags, candidates and their features."""
    random = np.random.default_rng(0)
    names = ["tea", "cake", "soup", "pie"]
    rows: list[dict[str, Any]] = []
    for i in range(n):
        offered = [names[j] for j in sorted(random.choice(4, int(random.integers(1, 5)), replace=False))]
        rows.append(
            {
                "age": float(random.normal()),
                "city": ["Rome", "Oslo"][i % 2],
                "likes": [["sun", "rain"], ["snow"]][i % 3 == 0],
                "item": offered[int(random.integers(len(offered)))],
                "click": float(random.integers(2)),
                "p": float(random.uniform(0.1, 1)),
                "offered": offered,
                "price": random.random(len(offered)).tolist(),
                "kept": float(random.uniform(0.2, 1)),
                "at": i * 10**6,
            }
        )
    return read_log(
        pl.DataFrame(rows),
        context=["age", "city", "likes"],
        action="item",
        reward="click",
        propensity="p",
        candidates="offered",
        candidate_features=["price"],
        timestamp="at" if times else None,
        keep_prob="kept" if weights else None,
    )


def test_dsjson_goes_both_ways(tmp_path: Path) -> None:
    log = shop(times=True, weights=False)
    to_dsjson(log, tmp_path / "log.dsjson")
    again = read_vowpal(tmp_path / "log.dsjson")
    assert again == log
    assert again.fingerprint == log.fingerprint
    to_dsjson(again, tmp_path / "again.dsjson")
    assert (tmp_path / "again.dsjson").read_text() == (tmp_path / "log.dsjson").read_text()


def test_kept_shares_go_both_ways(tmp_path: Path) -> None:
    log = shop(times=True, weights=True)
    to_dsjson(log, tmp_path / "log.dsjson")
    again = read_vowpal(tmp_path / "log.dsjson")
    assert log.row_weight is not None
    assert log.logging_prob is not None
    np.testing.assert_allclose(again.row_weight, log.row_weight, rtol=1e-12)  # type: ignore[arg-type]
    np.testing.assert_allclose(again.logging_prob, log.logging_prob, rtol=1e-12)  # type: ignore[arg-type]
    assert again.weighted(None).without_propensities() == log.weighted(None).without_propensities()


def test_adf_text_goes_both_ways(tmp_path: Path) -> None:
    log = shop(times=False, weights=False)
    to_cb_adf(log, tmp_path / "log.vw")
    again = read_vowpal(tmp_path / "log.vw")
    assert again == log
    assert again.fingerprint == log.fingerprint


def test_what_text_cannot_hold_is_refused(tmp_path: Path) -> None:
    log = shop(times=False, weights=False)
    with pytest.raises(ParameterError, match="needs the probability"):
        to_cb_adf(log.without_propensities(), tmp_path / "log.vw")
    with pytest.raises(ParameterError, match="no place for row weights"):
        to_cb_adf(shop(times=False, weights=True), tmp_path / "log.vw")
    spaced = LoggedData.from_arrays({"x": ["a b", "c"]}, ["u", "v"], [0, 1], logging_prob=[0.5, 0.5])
    with pytest.raises(ParameterError, match="cannot hold the name 'a b'"):
        to_cb_adf(spaced, tmp_path / "log.vw")
    assert not (tmp_path / "log.vw").exists()


def test_several_files_are_one_log(tmp_path: Path) -> None:
    log = shop(times=True, weights=False)
    to_dsjson(log, tmp_path / "whole.dsjson")
    lines = (tmp_path / "whole.dsjson").read_text().splitlines(keepends=True)
    (tmp_path / "a.dsjson").write_text("".join(lines[:20]))
    (tmp_path / "b.dsjson").write_text("".join(lines[20:]))
    assert read_vowpal([tmp_path / "a.dsjson", tmp_path / "b.dsjson"]) == log
