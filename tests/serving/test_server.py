"""A running server, on both kinds of store: what it answers, what it records, and how it changes its policy."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offpolicy.serving import Decider, EventStore, load_policy, load_versions, replay
from offpolicy.serving.join import Join, joined
from offpolicy.serving.store import now
from serving_world import ITEMS, ServerProcess, a_context, a_policy, server_here


def recorded(store: EventStore) -> dict[str, dict[str, Any]]:
    return {one.row["request_id"]: dict(one.row) for page in joined(store, Join(0.0)) for one in page}


def test_decisions_are_the_deciders_and_are_recorded(store: str, policy: Path) -> None:
    with server_here(run=str(policy), store=store, epsilon=0.2) as (client, service):
        one = client.post("/decide", {"request_id": "r0", "context": a_context(0)})
        many = client.post("/decide", [{"request_id": f"r{i}", "context": a_context(i), "k": 2} for i in range(1, 40)])
        decider = Decider(load_policy(policy), epsilon=0.2, salt=service.store.salt)
        expected = [decider.decide("r0", a_context(0))]
        expected += [decider.decide(f"r{i}", a_context(i), k=2) for i in range(1, 40)]
        rows = recorded(service.store)
        for told, made in zip([one, *many], expected, strict=True):
            assert (told["action"], told["probability"]) == (made.action, made.probability)
            assert told["actions"] == list(made.actions)
            assert rows[told["request_id"]]["probability"] == made.probability
            assert (rows[told["request_id"]]["policy"], told["policy"]) == (made.policy, made.policy)
        again = client.post("/decide", {"request_id": "r0", "context": a_context(1), "candidates": ["item-5"]})
        assert again == one | {"repeated": True}
        within = client.post("/decide", [{"request_id": "twice", "context": a_context(i)} for i in (0, 1)])
        assert [answer["repeated"] for answer in within] == [False, True]
        assert within[0]["action"] == within[1]["action"]
        found = replay(service.store, [load_policy(policy)])
        assert (found.decisions, found.confirmed, found.agrees) == (41, 41, True)
        status = client.get("/status")
        assert (status["decisions"], sum(status["bars"])) == (41, 41)
        assert client.get("/policy")["actions"] == 6
        assert client.get("/readyz")["status"] == "ready"
        assert 'offpolicy_decisions_total{mode="explore",source="policy"} 43' in client.get("/metrics")


def test_rewards_and_activations(store: str, policy: Path) -> None:
    with server_here(run=str(policy), store=store) as (client, service):
        client.post("/decide", [{"request_id": f"r{i}", "deferred": i > 1} for i in range(4)])
        assert client.post("/reward", {"request_id": "r0", "reward": 1}) == {"accepted": 1, "not_kept": 0}
        client.post("/reward", [{"request_id": "r0", "reward": 0.0}, {"request_id": "r3", "reward": 0.5}])
        client.post("/activate", {"request_id": "r3"})
        assert client.send("POST", "/reward", {"request_id": "r0", "reward": 2.0})[0] == 422
        time.sleep(0.01)
        found = {o.row["request_id"]: o.reward for page in joined(service.store, Join(0.001)) for o in page}
        assert (found["r1"], found["r2"]) == (0.0, None)
        long = {
            o.row["request_id"]: o.reward for page in joined(service.store, Join(60.0), at=now() + 10**9) for o in page
        }
        assert long == {"r0": 1.0, "r1": 0.0, "r2": None, "r3": 0.5}  # the first wins; r2 was never shown
        later = {o.row["request_id"]: o for page in joined(service.store, Join(3600.0)) for o in page}
        assert later["r0"].pending
        assert (later["r2"].start, later["r2"].pending) == (None, False)


def test_modes_overrides_and_kept_shares(store: str, policy: Path) -> None:
    with server_here(run=str(policy), store=store, mode="shadow", keep=0.5) as (client, service):
        asked = [{"request_id": f"s{i}", "baseline": "item-2"} for i in range(200)]
        told = client.post("/decide", asked)
        assert {one["action"] for one in told} == {"item-2"}
        assert {one["probability"] for one in told} == {None}
        rows = recorded(service.store)
        assert 60 < len(rows) < 140
        assert {row["keep_prob"] for row in rows.values()} == {0.5}
        rewards = client.post("/reward", [{"request_id": f"s{i}", "reward": 1.0} for i in range(200)])
        assert (rewards["accepted"], rewards["not_kept"]) == (len(rows), 200 - len(rows))
        kept = next(iter(rows))
        told = client.post("/decide", {"request_id": f"{kept}-told", "override": "item-1"})
        assert (told["action"], told["probability"], told["source"]) == ("item-1", 1.0, "override")


def test_two_servers_on_one_store_agree(store: str, policy: Path) -> None:
    with (
        server_here(run=str(policy), store=store, epsilon=0.1) as (first, service),
        server_here(run=str(policy), store=store, epsilon=0.1) as (second, _),
    ):
        told: list[dict[str, Any]] = []

        def ask(client: Any) -> None:
            for i in range(60):
                told.append(client.post("/decide", {"request_id": f"r{i}", "context": a_context(i)}))

        threads = [threading.Thread(target=ask, args=(client,)) for client in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        actions = {(one["request_id"], one["action"], one["probability"]) for one in told}
        assert (len(told), len(actions)) == (120, 60)
        assert sum(one["repeated"] for one in told) == 60
        assert len(recorded(service.store)) == 60


def test_a_new_policy_is_taken_up_while_requests_go_on(tmp_path: Path) -> None:
    folder = a_policy(tmp_path / "policy", 1)
    first = load_policy(folder).digest
    with server_here(run=str(folder), store=str(tmp_path / "e.db"), reload_seconds=0.05) as (client, service):
        a_policy(folder, 2)
        second = load_policy(folder).digest
        seen = []
        for i in range(1000):
            seen.append(client.post("/decide", {"request_id": f"r{i}", "context": a_context(i)})["policy"])
            if seen[-1] == second and seen.count(second) > 3:
                break
        assert set(seen) <= {first, second}
        assert seen == sorted(seen, key=[first, second].index)
        assert replay(service.store, load_versions(folder)).confirmed == len(seen)
        # what is broken is ignored: the old policy serves on
        before = service.metrics.reloads_failed
        (current,) = [v for v in (folder / "versions").iterdir() if v.name == (folder / "CURRENT").read_text()]
        (current / "policy.json").write_text("{}")
        for _ in range(100):
            time.sleep(0.05)
            if service.metrics.reloads_failed > before:
                break
        assert service.metrics.reloads_failed == before + 1
        assert client.post("/decide", {"request_id": "after"})["policy"] == second
        assert client.get("/readyz")["policy"] == second


def test_the_description_names_every_field_and_answers_keep_to_it(policy: Path, tmp_path: Path) -> None:
    with server_here(run=str(policy), store=str(tmp_path / "e.db"), token="12345678") as (client, _):
        described = client.get("/openapi.json")
        assert described["security"] == [{"token": []}]
        told = client.post("/decide", {"request_id": "r", "context": {"age": "old"}, "candidates": [*ITEMS, 7]})
        assert told.keys() == described["components"]["schemas"]["DecideOut"]["properties"].keys()
        assert "age" in told["notes"]
        paths = set(described["paths"])
        assert paths == {"/decide", "/reward", "/activate", "/policy", "/status", "/metrics", "/healthz", "/readyz"}


def test_it_stops_gracefully(policy: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "e.db")
    with ServerProcess(str(policy), "--store", store) as server:
        assert f"serving policy {load_policy(policy).digest}" in server.said
        for i in range(10):
            server.client.post("/decide", {"request_id": f"r{i}", "context": a_context(i)})
        code, error = server.stop()
    assert code in (0, -15)
    assert error == ""
    events = EventStore(store)
    assert len(recorded(events)) == 10
    events.close()


def test_options_are_checked_before_anything_listens(policy: Path, tmp_path: Path) -> None:
    from small_log import refused

    where = ["--store", str(tmp_path / "e.db")]
    assert "--epsilon" in refused("serve", str(policy), *where, "--epsilon", "2")
    assert "--mode" in refused("serve", str(policy), *where, "--mode", "bold")
    assert "Without a token" in refused("serve", str(policy), *where, "--host", "0.0.0.0")
    assert "does not exist" in refused("serve", str(tmp_path / "nowhere"), "--store", str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()
    assert "--horizon takes a duration" in refused("serve", str(policy), *where, "--horizon", "soon")


@pytest.mark.slow
def test_workers_share_the_port_and_the_store(policy: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "e.db")
    with ServerProcess(str(policy), "--store", store, "--workers", "2", port=18573) as server:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                server.client.get("/readyz")
                break
            except OSError:
                time.sleep(0.2)
        told = [server.client.post("/decide", {"request_id": f"r{i}", "context": a_context(i)}) for i in range(100)]
        assert len({one["request_id"] for one in told}) == 100
        server.stop()
    events = EventStore(store)
    assert replay(events, [load_policy(policy)]).confirmed == 100
    events.close()
