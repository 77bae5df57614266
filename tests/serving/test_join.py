"""From the store to a log: the join against brute force, what is left out, and the commands that take the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import sqlalchemy as sa

from offpolicy.errors import OffPolicyError, ParameterError
from offpolicy.log import read_log
from offpolicy.serving import Decider, EventStore, Join, collect, load_policy, replay
from offpolicy.serving.join import RULES, SECOND, Rule
from offpolicy.serving.records import decision_row, policy_facts
from offpolicy.serving.store import decisions
from serving_world import a_context
from small_log import refused, run

HOUR = 3600 * SECOND


def fill(store: EventStore, decider: Decider, n: int, **more: Any) -> list[dict[str, Any]]:
    """n decisions a second apart."""
    rows = [decision_row(decider.decide(f"r{i}", a_context(i), **more), i * SECOND, decider.keep) for i in range(n)]
    store.append({"decisions": rows})
    store.remember(decider.policy.digest, policy_facts(decider))
    return rows


@pytest.mark.parametrize("rule", RULES)
def test_the_join_is_that_of_brute_force(store: str, policy: Path, tmp_path: Path, rule: Rule) -> None:
    events = EventStore(store)
    decider = Decider.load(policy, salt=events.salt, epsilon=0.1)
    rows = fill(events, decider, 300)
    random = np.random.default_rng(0)
    received: list[dict[str, Any]] = [
        {
            "request_id": f"r{random.integers(0, 320)}",  # some belong to no decision
            "event_id": str(i),
            "value": round(float(random.random()), 3),
            "received_at": int(random.integers(0, 500)) * SECOND + i,
        }
        for i in range(600)
    ]
    events.append({"rewards": received})
    horizon, at = 40.0, 280 * SECOND
    found = collect(events, tmp_path / "log.parquet", join=Join(horizon, rule, -1.0), at=at)
    log = pl.read_parquet(tmp_path / "log.parquet")
    events.close()
    expected = {}
    for row in rows:
        start = row["decided_at"]
        if start + horizon * SECOND > at:
            continue
        mine = sorted(
            (one["received_at"], one["value"])
            for one in received
            if one["request_id"] == row["request_id"] and one["received_at"] <= start + horizon * SECOND
        )
        values = [value for _, value in mine] or [-1.0]
        by_rule = {"first": values[0], "last": values[-1], "sum": sum(values), "max": max(values)}
        expected[row["request_id"]] = by_rule[rule]
    assert dict(zip(log["request_id"], log["reward"], strict=True)) == pytest.approx(expected)
    assert (found.rows, found.pending) == (len(expected), len(rows) - len(expected)) == (241, 59)
    assert found.mean_reward == pytest.approx(np.mean(list(expected.values())))
    recorded = {row["request_id"]: row["probability"] for row in rows}
    assert all(recorded[i] == p for i, p in zip(log["request_id"], log["propensity"], strict=True))


def test_what_was_not_drawn_is_left_out_and_counted(store: str, policy: Path, tmp_path: Path) -> None:
    events = EventStore(store)
    explore, shadow = (Decider.load(policy, mode=mode, salt=events.salt) for mode in ("explore", "shadow"))
    made = [
        explore.decide("drawn", a_context(0), ["item-1", "item-2", "new"]),
        explore.decide("told", a_context(0), override="item-3"),
        explore.decide("empty", a_context(0), []),
        explore.decide("hidden", a_context(0), deferred=True),
        explore.decide("shown", a_context(0), deferred=True),
        Decider.load(policy, mode="greedy").decide("greedy", a_context(0)),
        shadow.decide("baseline", a_context(0), baseline="item-0"),
        shadow.decide("known", a_context(0), baseline="item-0", baseline_probability=0.5),
    ]
    events.append(
        {
            "decisions": [decision_row(one, SECOND, 0.25) for one in made],
            "activations": [{"request_id": "shown", "activated_at": 50 * SECOND}],
            "rewards": [{"request_id": "shown", "event_id": "", "value": 1.0, "received_at": 3640 * SECOND}],
        }
    )
    found = collect(events, tmp_path / "some.parquet")
    log = pl.read_parquet(tmp_path / "some.parquet").sort("request_id")
    assert log["request_id"].to_list() == ["drawn", "known", "shown"]
    assert log["propensity"].to_list() == [made[0].probability, 0.5, made[4].probability]
    assert log["reward"].to_list() == [0.0, 0.0, 1.0]  # the horizon runs from the activation
    assert log["candidates"].to_list() == [["item-1", "item-2", "new"], None, None]
    assert log["keep_prob"].to_list() == [0.25] * 3
    assert log["decision_policy"].unique().to_list() == [explore.policy.digest]
    assert (found.deterministic, found.without_propensity, found.nothing_decided, found.not_shown) == (2, 1, 1, 1)
    everything = collect(events, tmp_path / "all.parquet", everything=True)
    assert everything.rows == 6
    marked = collect(events, tmp_path / "p.parquet", keep_pending=True, at=30 * SECOND)
    pending = pl.read_parquet(tmp_path / "p.parquet")
    assert (marked.pending, pending["decision_pending"].all(), pending["reward"].null_count()) == (6, True, 3)
    with pytest.raises(OffPolicyError, match="exists and is not replaced"):
        collect(events, tmp_path / "all.parquet")
    with pytest.raises(OffPolicyError, match=r"within the horizon \(wait"):
        collect(events, tmp_path / "none.parquet", at=SECOND)
    with pytest.raises(OffPolicyError, match=r"must end in \.parquet"):
        collect(events, tmp_path / "log.csv")
    with pytest.raises(ParameterError, match="rule"):
        Join.checked(1.0, "median")
    events.close()


def test_commands_take_the_file_as_it_is(policy: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "events.db")
    events = EventStore(store)
    decider = Decider.load(policy, salt=events.salt, epsilon=0.3)
    fill(events, decider, 400)
    odd = decider.decide("odd", {"country": "zz", "note": "extra", "reward": 7})  # no age; a name that is taken
    events.append({"decisions": [decision_row(odd, 5, 1.0)]})
    clicked = [f"r{i}" for i in range(0, 400, 3)]
    events.append({"rewards": [{"request_id": r, "event_id": "", "value": 1.0, "received_at": HOUR} for r in clicked]})
    events.close()
    out = tmp_path / "log.parquet"
    done = run("collect", "--store", store, "--out", out, "--json")
    assert json.loads(done.out)["rows"] == 401
    log = pl.read_parquet(out)
    assert log.filter(pl.col("request_id") == "odd")["context_reward"].to_list() == [7]
    read = read_log(out, context=["country", "age"], action="action", reward="reward", propensity="propensity")
    assert read.n_rows == 401
    evaluated = run("evaluate", out, "--policy", str(policy), "--propensity", "propensity", "--json")
    assert evaluated.code == 0, evaluated.err
    assert json.loads(evaluated.out)["evaluation"]["logging"]["model"] == "recorded"
    learned = run("learn", out, "--out", tmp_path / "run", "--method", "ips", "--set", "epochs=2", "--json")
    assert learned.code == 0, learned.err
    columns = json.loads((tmp_path / "run" / "results.json").read_text())["log"]["columns"]
    assert {"country", "age", "note", "context_reward"} >= {
        n for n, k in columns.items() if k in ("numeric", "categorical")
    } - {"action"}
    again = run("replay", str(policy), "--store", store, "--json")
    assert json.loads(again.out)["confirmed"] == 401
    assert "There is no event store" in refused("replay", str(policy), "--store", str(tmp_path / "other.db"))
    assert "--since takes a time" in refused(
        "collect", "--store", store, "--out", tmp_path / "x.parquet", "--since", "noon"
    )


def test_replay_names_the_first_that_differs(store: str, policy: Path) -> None:
    events = EventStore(store)
    decider = Decider.load(policy, salt=events.salt, epsilon=0.1)
    rows = fill(events, decider, 50, k=2)
    assert replay(events, [load_policy(policy)]).confirmed == 50
    changes: list[dict[str, Any]] = [
        {"probability": rows[20]["probability"] + 1e-6},
        {"context": json.dumps({"country": "jp", "age": 99.0})},
        {"actions": json.dumps(json.loads(rows[20]["actions"])[::-1])},
    ]
    for change in changes:
        at = sa.update(decisions).where(decisions.c.request_id == "r20")
        with events.transaction() as connection:
            connection.execute(at.values(change))
        found = replay(events, [load_policy(policy)])
        assert (found.confirmed, found.different) == (49, 1)
        assert found.first_difference is not None
        assert found.first_difference["request_id"] == "r20"
        with events.transaction() as connection:
            connection.execute(at.values({name: rows[20][name] for name in change}))
    assert replay(events, []).other_policies == {decider.policy.digest: 50}
    events.close()
