"""The event store: written once, durable, migrated, and the same on SQLite and PostgreSQL."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from offpolicy.errors import OffPolicyError
from offpolicy.serving import Decider, EventStore
from offpolicy.serving import store as stores
from offpolicy.serving.records import decision_row
from serving_world import a_context


def row(decider: Decider, name: str, at: int = 1) -> dict[str, Any]:
    return decision_row(decider.decide(name, a_context(len(name))), at, 1.0)


def counts(store: EventStore) -> dict[str, int]:
    with store.reading() as connection:
        return {
            name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for name, table in stores.WRITTEN.items()
        }


def test_what_is_written_again_is_ignored_and_the_first_told(store: str, policy: Any) -> None:
    events, decider = EventStore(store), Decider.load(policy)
    first, second = row(decider, "a", 1), row(decider, "a", 2)
    assert events.append({"decisions": [first, row(decider, "b")]}) == {}
    assert events.append({"decisions": [second, row(decider, "c")]}) == {"a": first}
    reward = {"request_id": "a", "event_id": "", "value": 1.0, "received_at": 5}
    events.append({"rewards": [reward, reward | {"event_id": "x"}], "activations": []})
    events.append({"rewards": [reward | {"value": 0.0}]})
    assert counts(events) == {"decisions": 3, "rewards": 2, "activations": 0}
    with events.reading() as connection:
        recorded = dict(
            connection.execute(stores.decisions.select().where(stores.decisions.c.request_id == "a")).mappings().one()
        )
    assert recorded == first  # every number to the last bit
    events.close()


def test_writers_of_one_store_do_not_lose_or_repeat_each_others_rows(store: str, policy: Any) -> None:
    decider = Decider.load(policy)
    told: dict[str, set[int]] = {}
    lock = threading.Lock()

    def write(number: int) -> None:
        events = EventStore(store)
        for i in range(20):
            rows = [row(decider, f"r{(i * 7 + j * number) % 50}", 1000 * number + i) for j in range(1, 5)]
            once = {one["request_id"]: one for one in rows}
            before = events.append({"decisions": list(once.values())})
            with lock:
                for name, one in once.items():
                    told.setdefault(name, set()).add(
                        before[name]["decided_at"] if name in before else one["decided_at"]
                    )
        events.close()

    EventStore(store).close()
    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(times) == 1 for times in told.values())  # everyone was told the same decision
    events = EventStore(store)
    assert counts(events)["decisions"] == len(told)
    events.close()


def test_a_failed_batch_leaves_nothing_and_the_next_one_succeeds(store: str, policy: Any) -> None:
    events, decider = EventStore(store), Decider.load(policy)
    with pytest.raises(Exception, match=r"(?i)null"):
        events.append({"decisions": [row(decider, "a"), row(decider, "b") | {"policy": None}]})
    assert counts(events)["decisions"] == 0
    events.append({"decisions": [row(decider, "a")]})
    assert counts(events)["decisions"] == 1
    events.close()


def test_old_decisions_are_pruned_with_what_belongs_to_them(store: str, policy: Any) -> None:
    events, decider = EventStore(store), Decider.load(policy)
    names = [f"r{i}" for i in range(20)]
    events.append(
        {
            "decisions": [row(decider, name, i) for i, name in enumerate(names)],
            "rewards": [{"request_id": n, "event_id": "", "value": 1.0, "received_at": 99} for n in names],
            "activations": [{"request_id": n, "activated_at": 99} for n in names],
        }
    )
    assert events.prune(before=12, limit=5) == 5
    assert events.prune(before=12) == 7
    assert events.prune(before=12) == 0
    assert counts(events) == {"decisions": 8, "rewards": 8, "activations": 8}
    events.close()


def test_the_salt_belongs_to_the_store(store: str, policy: Any) -> None:
    first, second = EventStore(store, salt="ours"), EventStore(store)
    assert (first.salt, second.salt) == ("ours", "ours")
    first.remember("digest", "{}")
    with pytest.raises(OffPolicyError, match="another salt"):
        EventStore(store, salt="theirs")
    first.close()
    second.close()


def test_schemas_are_migrated_step_by_step_and_newer_ones_refused(
    store: str, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = EventStore(store)
    old.append({"decisions": [row(Decider.load(policy), "a")]})
    old.close()

    def second_step(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE decisions ADD COLUMN tenant TEXT"))

    with monkeypatch.context() as patched:
        patched.setattr(stores, "MIGRATIONS", [*stores.MIGRATIONS, second_step])
        for _ in range(2):  # the second time there is nothing to do
            newer = EventStore(store)
            with newer.reading() as connection:
                assert connection.execute(sa.text("SELECT request_id, tenant FROM decisions")).all() == [("a", None)]
            assert newer.salt == old.salt
            newer.close()
    with pytest.raises(OffPolicyError, match=r"version 2 of the schema.*Upgrade offpolicy"):
        EventStore(store)


def test_a_store_that_cannot_be_opened_is_one_paragraph(tmp_path: Any) -> None:
    with pytest.raises(OffPolicyError, match=r"cannot be opened.*Check the URL"):
        EventStore(f"sqlite:///{tmp_path / 'no' / 'folder' / 'events.db'}")
    with pytest.raises(OffPolicyError, match="cannot be opened"):
        EventStore("postgresql://nobody:secret@127.0.0.1:9/none")
    with pytest.raises(OffPolicyError, match="There is no event store"):
        EventStore(str(tmp_path / "none.db"), existing=True)
    with pytest.raises(OffPolicyError, match="not the URL"):
        EventStore("what://")
