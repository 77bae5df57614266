"""kill -9 under load: what was acknowledged is in the store, once, and every draw can be made again."""

import http.client
import json
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from offpolicy.serving import EventStore, load_policy, replay
from offpolicy.serving.store import decisions, rewards
from serving_world import ServerProcess, a_context


class Hammer(threading.Thread):
    """Asks for decisions and posts rewards until the server is gone, and keeps what was acknowledged."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__()
        self.port, self.label = port, name
        self.decided: dict[str, dict[str, Any]] = {}
        self.rewarded: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        number = 0
        try:
            while True:
                number += 1
                asked = [{"request_id": f"{self.label}-{number}-{i}", "context": a_context(number)} for i in range(3)]
                for told in self._post(connection, "/decide", asked):
                    self.decided[told["request_id"]] = told
                self._post(connection, "/reward", [{"request_id": asked[0]["request_id"], "reward": 1.0}])
                self.rewarded.append(str(asked[0]["request_id"]))
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()

    @staticmethod
    def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)


def killed(store: str, policy: Path, times: int, seconds: float) -> None:
    """Serve, hammer, kill, and again on the same store; then compare all that was acknowledged with the store."""
    chance = random.Random(0)
    hammers: list[Hammer] = []
    for turn in range(times):
        with ServerProcess(str(policy), "--store", store, "--epsilon", "0.2") as server:
            some = [Hammer(server.client.port, f"{turn}-{i}") for i in range(4)]
            for hammer in some:
                hammer.start()
            time.sleep(seconds * (0.5 + chance.random()))
            server.kill()
            for hammer in some:
                hammer.join()
        hammers += some
    acknowledged = {name: told for hammer in hammers for name, told in hammer.decided.items()}
    rewarded = [name for hammer in hammers for name in hammer.rewarded]
    assert len(acknowledged) > 20 * times
    events = EventStore(store)
    with events.reading() as connection:
        rows = {row["request_id"]: row for row in connection.execute(decisions.select()).mappings()}
        n_rows = connection.scalar(sa.select(sa.func.count()).select_from(decisions))
        given = list(connection.scalars(sa.select(rewards.c.request_id)))
    lost = [name for name in acknowledged if name not in rows] + [name for name in rewarded if name not in set(given)]
    assert lost == []
    assert (n_rows, len(given)) == (len(rows), len(set(given)))  # none is double
    for name, told in acknowledged.items():
        assert (rows[name]["action"], rows[name]["probability"]) == (json.dumps(told["action"]), told["probability"])
    found = replay(events, [load_policy(policy)])
    assert (found.confirmed, found.agrees) == (len(rows), True)
    events.close()


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(policy: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.db"
    killed(f"sqlite:///{store}", policy, 2, 0.5)
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_twenty_kills(store: str, policy: Path) -> None:
    killed(store, policy, 20, 1.0)
