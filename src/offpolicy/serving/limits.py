"""What stands between the network and the handlers: token, rate, sizes, patience, and errors as short JSON."""

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("offpolicy.serving")
OPEN = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/page.css", "/page.js", "/docs.js"})
"""Paths that need no token: they tell nothing about decisions."""
MOST_CLIENTS = 10_000


class Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Say what is wrong with it."""
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


class RateLimit:
    """So many requests a second from each address, with bursts of twice that; addresses are kept in bounded number."""

    def __init__(self, rate: float) -> None:
        """0 lets everything pass."""
        self.rate = rate
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Whether one more request may pass."""
        if not self.rate:
            return True
        moment = time.monotonic()
        tokens, before = self._clients.pop(client, (2 * self.rate, moment))
        tokens = min(2 * self.rate, tokens + (moment - before) * self.rate)
        passed = tokens >= 1
        self._clients[client] = (tokens - passed, moment)
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
        return passed


class Guard:
    """Checks every request before the app sees it, and turns whatever goes wrong into a short answer."""

    def __init__(self, app: App, token: str | None, rate: float, count: Callable[[str, int], None]) -> None:
        """Guard an app; `count` is told the path and status of every answer."""
        self.app, self.count = app, count
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._rate = RateLimit(rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500
        started = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, watched)
        except Refusal as refusal:
            if not started:
                await refused(refusal)(scope, receive, watched)
        except ClientDisconnect:
            status = 499
        except Exception:
            log.exception("a request to %s failed", scope["path"])
            if not started:
                await refused(Refusal(500, "internal error"))(scope, receive, watched)
        finally:
            self.count(scope["path"], status)

    def _check(self, scope: Scope) -> None:
        client = scope.get("client")
        if not self._rate.allows(client[0] if client else ""):
            raise Refusal(429, "too many requests from this address", 1)
        if self._expected is None or scope["path"] in OPEN:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(given, self._expected):
            raise Refusal(401, "a valid token is needed: Authorization: Bearer TOKEN")


def refused(refusal: Refusal) -> Response:
    """The answer to a refused request."""
    headers = {} if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in (408, 413):
        headers["connection"] = "close"
    return Response(to_json({"error": refusal.message}), refusal.status, headers, "application/json")


async def read_body(request: Request, most: int, patience: float) -> bytes:
    """The body of a request, refused once it is too large or too slow."""
    announced = request.headers.get("content-length")
    if announced is not None and announced.isdigit() and int(announced) > most:
        raise Refusal(413, f"the body has {announced} bytes, more than the {most} allowed")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(patience):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refusal(413, f"the body has more than the {most} bytes allowed")
                parts.append(part)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {patience:g} seconds") from None
    return b"".join(parts)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request line and headers do not arrive in time."""

    patience = 10.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Take bytes; as long as they are no whole head of a request, the time runs."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before or (before is not None and not before.response_complete):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()
