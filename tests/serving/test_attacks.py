"""What a hostile or broken client can do: clear 4xx answers, no trace, no growth, no wrong probability in the store."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from offpolicy.serving import load_policy, replay
from offpolicy.serving.join import Join, joined
from serving_world import ITEMS, Client, a_context, server_here

GOOD = {"request_id": "good", "context": a_context(0)}


@pytest.fixture
def server(policy: Path, tmp_path: Path) -> Any:
    options = {"token": "correct horse", "timeout": 0.5, "max_candidates": 5_000, "epsilon": 0.1}
    with server_here(run=str(policy), store=str(tmp_path / "events.db"), **options) as found:
        yield found


BAD: list[tuple[int, bytes]] = [
    (400, b""),
    (400, b"{"),
    (400, b"\xff\xfe"),
    (400, b'{"request_id": "r", "context": {"age": NaN}}'),
    (400, b'{"request_id": "r", "context": {"age": Infinity}}'),
    (400, b'{"request_id": "\\ud800"}'),
    (400, b"[" * 100_000),
    (422, b"[]"),
    (422, b"null"),
    (422, b"7"),
    (422, b'{"request_id": ""}'),
    (422, b'{"request_id": 7}'),
    (422, b'{"request_id": "a\\u0000b"}'),
    (422, json.dumps({"request_id": "r" * 300}).encode()),
    (422, b'{"request_id": "r", "context": []}'),
    (422, b'{"request_id": "r", "k": 0}'),
    (422, b'{"request_id": "r", "k": 100000000000}'),
    (422, b'{"request_id": "r", "candidates": [1.5]}'),
    (422, b'{"request_id": "r", "candidates": "item-1"}'),
    (422, b'{"request_id": "r", "probability": 1}'),
    (422, json.dumps({"request_id": "r", "candidates": list(range(10_000))}).encode()),
    (422, json.dumps([{"request_id": str(i)} for i in range(257)]).encode()),
]


def test_malformed_requests_are_told_what_is_wrong(server: Any) -> None:
    client, service = server
    for status, body in BAD:
        found, answer = client.send("POST", "/decide", body)
        assert found == status, (body[:60], found, answer)
        assert set(answer) == {"error"}
        assert "Traceback" not in answer["error"]
    for body in (
        b'{"request_id": "r"}',
        b'{"request_id": "r", "reward": "1"}',
        b'{"request_id": "r", "reward": 1e999}',
    ):
        assert client.send("POST", "/reward", body)[0] == 422
    assert client.send("GET", "/decide")[0] == 405
    assert client.send("GET", "/nowhere")[0] == 404
    assert client.get("/status")["decisions"] == 0
    assert client.post("/decide", GOOD)["action"] in ITEMS
    metrics = client.get("/metrics")
    assert 'status="500"' not in metrics
    assert service.writer.waiting == 0


def test_odd_but_valid_requests_are_recorded_with_the_right_probability(server: Any, policy: Path) -> None:
    client, service = server
    odd: list[dict[str, Any]] = [
        {"context": {"age": 1e308, "country": "zz"}},
        {"context": {"age": [1, 2], "country": {"a": 1}, "other": [[1]]}},
        {"context": {"age": 10**400}},
        {"context": {"country": True}},
        {"candidates": []},
        {"candidates": ["item-1", "item-1", "new", True, 1]},
        {"candidates": ["only"]},
        {"k": 1000},
        {"context": {"\u2028<script>": "é" * 1000}},
    ]
    for i, one in enumerate(odd):
        answer = client.post("/decide", {"request_id": f"odd{i}"} | one)
        assert answer["probability"] is None or 0 < answer["probability"] <= 1
    raw = b'{"request_id": "huge", "context": {"age": 1e999}}'
    assert client.send("POST", "/decide", raw)[0] == 200
    found = replay(service.store, [load_policy(policy)])
    assert (found.confirmed, found.agrees) == (len(odd) + 1, True)
    rows = {one.row["request_id"]: one.row for page in joined(service.store, Join()) for one in page}
    assert rows["odd4"]["action"] == "null"


def test_the_token_is_needed_where_decisions_are_told(server: Any) -> None:
    client, _ = server
    for token in (None, "wrong", "correct hors", "Correct Horse"):
        stranger = Client(client.port, token)
        for method, path in (("POST", "/decide"), ("POST", "/reward"), ("GET", "/status"), ("GET", "/metrics")):
            assert stranger.send(method, path, GOOD if method == "POST" else None)[0] == 401
        for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json"):
            assert stranger.send("GET", path)[0] == 200


def test_large_bodies_are_refused_before_they_are_read(server: Any) -> None:
    client, _ = server
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        head = "POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer correct horse\r\n"
        raw.sendall(f"{head}Content-Length: 100000000\r\n\r\n".encode())
        assert b" 413 " in raw.recv(4096)
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 100_000_000:
                raw.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass
        assert sent < 20_000_000
    assert client.post("/decide", GOOD)["action"] in ITEMS


def test_slow_clients_are_let_go_and_others_served_meanwhile(server: Any) -> None:
    client, _ = server
    head = b"POST /decide HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer correct horse\r\nContent-Length: 40\r\n\r\n"
    slow = [socket.create_connection(("127.0.0.1", client.port), timeout=10) for _ in range(60)]
    for i, raw in enumerate(slow):
        raw.sendall(head + b'{"req' if i % 2 else b"POST /dec")
    began = time.monotonic()
    assert client.post("/decide", GOOD)["action"] in ITEMS
    assert time.monotonic() - began < 5
    answers = [raw.recv(4096) for raw in slow]
    assert all(b" 408 " in answer for answer in answers[1::2])
    assert all(answer == b"" for answer in answers[0::2])  # closed without an answer: there was no request yet
    for raw in slow:
        raw.close()


def test_too_many_requests_are_slowed_down(policy: Path, tmp_path: Path) -> None:
    with server_here(run=str(policy), store=str(tmp_path / "e.db"), rate=2.0) as (client, _):
        codes = [client.send("GET", "/healthz")[0] for _ in range(12)]
        assert codes[:4] == [200] * 4
        assert codes.count(429) >= 5
        assert client.headers["retry-after"] == "1"
        time.sleep(1.1)
        assert client.send("GET", "/healthz")[0] == 200


def test_a_store_that_does_not_answer_is_told_and_nothing_grows(policy: Path, tmp_path: Path) -> None:
    with server_here(run=str(policy), store=str(tmp_path / "e.db"), max_waiting=3) as (client, service):
        append = service.store.append

        def broken(batch: Any) -> Any:
            raise OSError("the disk is full")

        service.store.append = broken  # type: ignore[method-assign]
        status, answer = client.send("POST", "/decide", GOOD)
        assert (status, answer["error"]) == (503, "the event store does not answer")
        assert client.headers["retry-after"] == "1"
        service.store.append = append  # type: ignore[method-assign]
        many = [{"request_id": f"m{i}"} for i in range(4)]
        assert client.send("POST", "/decide", many)[0] == 503  # more than may wait
        assert client.post("/decide", GOOD)["repeated"] is False
        assert service.writer is not None
        assert service.writer.waiting == 0
