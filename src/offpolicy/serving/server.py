"""The handlers of a server: decisions, rewards and activations, each acknowledged when it is durable."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from pydantic import ValidationError as Invalid
from pydantic_core import from_json, to_json

from offpolicy.errors import MissingExtraError, OffPolicyError

try:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, Router
except ImportError:
    raise MissingExtraError("Serving needs the serve extra. Run: pip install 'offpolicy[serve]'") from None

from offpolicy.atomic import current_version
from offpolicy.policy_files import policy_folder
from offpolicy.serving.api import ActivateIn, DecideIn, RewardIn, ServeOptions, openapi
from offpolicy.serving.decider import Decider, Decision
from offpolicy.serving.decider import Request as Asked
from offpolicy.serving.join import SECOND, Join
from offpolicy.serving.limits import App, Guard, Refusal, read_body
from offpolicy.serving.live import LiveStatus
from offpolicy.serving.metrics import Metrics
from offpolicy.serving.policy import ServedPolicy, load_policy
from offpolicy.serving.records import answer, decision_row, policy_facts, recorded_answer
from offpolicy.serving.store import EventStore, Row, now
from offpolicy.serving.writer import Busy, Writer

log = logging.getLogger("offpolicy.serving")
INLINE = 2_000_000
"""Multiplications that the event loop does itself; more go to a thread."""
PRUNE_EVERY, CHECKPOINT_EVERY = 600.0, 1.0
PAGES = Path(__file__).with_name("pages")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


class Service:
    """The state of one server process and its handlers."""

    def __init__(self, options: ServeOptions) -> None:
        """Open the store and load the policy, so that what cannot be served is known before anything listens."""
        self.options = options
        policy = load_policy(options.run)  # before a store is made for it
        self.store = EventStore(options.store, salt=options.salt)
        self.decider = self._ready(policy)
        self.metrics = Metrics()
        self.live = LiveStatus(self.store, Join(horizon=options.horizon, rule=options.rule))
        self.writer: Writer | None = None
        self._pages = {file.name: file.read_bytes() for file in PAGES.iterdir()}
        self._seen = self._version()

    def app(self) -> App:
        """The ASGI application."""
        endpoints: list[tuple[str, Callable[..., Any], str]] = [
            ("/decide", self.decide, "POST"),
            ("/reward", self.reward, "POST"),
            ("/activate", self.activate, "POST"),
            ("/healthz", self.healthz, "GET"),
            ("/readyz", self.readyz, "GET"),
            ("/metrics", self.show_metrics, "GET"),
            ("/policy", self.policy, "GET"),
            ("/status", self.status, "GET"),
            ("/openapi.json", self.openapi, "GET"),
        ]
        routes = [Route(path, handler, methods=[method]) for path, handler, method in endpoints]
        for path, name in (("/", "live.html"), ("/docs", "docs.html")):
            routes.append(Route(path, self._page(name, "text/html; charset=utf-8")))
        for name, kind in (("page.css", "text/css"), ("page.js", "text/javascript"), ("docs.js", "text/javascript")):
            routes.append(Route(f"/{name}", self._page(name, kind)))
        router = Router(routes, lifespan=self._lifespan)
        return Guard(router, self.options.token, self.options.rate, self.metrics.answered)

    async def decide(self, request: Request) -> Response:
        """Decide one request or a list of them; answered when the decisions are durable."""
        began = perf_counter()
        given, many = await self._parsed(request, DecideIn)
        asked = [Asked(**dict(one)) for one in given]
        most = self.options.max_candidates
        if any(one.candidates is not None and len(one.candidates) > most for one in asked):
            raise Refusal(422, f"a request may have at most {most} candidates")
        decider = self.decider  # this request ends on the policy it began with
        decisions = await self._decisions(decider, asked)
        at = now()
        rows = [decision_row(one, at, decider.keep) for one in decisions]
        recorded = await self._write([("decisions", row) for row in rows if decider.kept(row["request_id"])])
        answers = [
            answer(one) if recorded.get(row["request_id"], row) is row else recorded_answer(recorded[row["request_id"]])
            for one, row in zip(decisions, rows, strict=True)
        ]
        self.metrics.decided(decisions, len(recorded), perf_counter() - began)
        return _json(answers if many else answers[0])

    async def reward(self, request: Request) -> Response:
        """Take one reward or a list; a second one with the same request and event id is ignored."""
        given, _ = await self._parsed(request, RewardIn)
        low, high = self.decider.policy.reward_range
        outside = next((one for one in given if not low <= one.reward <= high), None)
        if outside is not None:
            raise Refusal(
                422, f"the reward {outside.reward:g} is outside [{low:g}, {high:g}], the range of this policy"
            )
        at = now()
        rows: list[tuple[str, Row]] = [
            (
                "rewards",
                {"request_id": one.request_id, "event_id": one.event_id, "value": one.reward, "received_at": at},
            )
            for one in given
            if self.decider.kept(one.request_id)
        ]
        await self._write(rows)
        self.metrics.rewarded(len(rows))
        return _json({"accepted": len(rows), "not_kept": len(given) - len(rows)})

    async def activate(self, request: Request) -> Response:
        """Say that deferred decisions have been shown."""
        given, _ = await self._parsed(request, ActivateIn)
        at = now()
        rows: list[tuple[str, Row]] = [
            ("activations", {"request_id": one.request_id, "activated_at": at})
            for one in given
            if self.decider.kept(one.request_id)
        ]
        await self._write(rows)
        return _json({"accepted": len(rows), "not_kept": len(given) - len(rows)})

    async def healthz(self, _: Request) -> Response:
        """Whether the process lives."""
        return _json({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        """Whether decisions can be made durable now."""
        try:
            async with asyncio.timeout(self.options.timeout):
                await asyncio.to_thread(self.store.ping)
        except Exception:
            raise Refusal(503, "the event store does not answer", 5) from None
        if self.writer is None or self.writer.waiting > self.options.max_waiting // 2:
            raise Refusal(503, "too many rows wait to be written", 1)
        return _json({"status": "ready", "policy": self.decider.policy.digest})

    async def show_metrics(self, _: Request) -> Response:
        """Counters in the text format of Prometheus."""
        text = self.metrics.text(self.writer, self.decider.policy.digest)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def policy(self, _: Request) -> Response:
        """Which policy decides, and how."""
        decider, policy = self.decider, self.decider.policy
        return _json(
            {
                "policy": policy.digest,
                "method": policy.method,
                "actions": len(decider.catalogue),
                "columns": policy.columns,
                "reward_range": policy.reward_range,
                "mode": decider.mode,
                "epsilon": decider.epsilon,
                "keep": decider.keep,
            }
        )

    async def status(self, _: Request) -> Response:
        """The figures of the page."""
        decider = self.decider
        found = await asyncio.to_thread(self.live.get, decider)
        told = {"policy": decider.policy.digest, "method": decider.policy.method, "mode": decider.mode}
        return _json(found | told | {"epsilon": decider.epsilon, "keep": decider.keep})

    async def openapi(self, _: Request) -> Response:
        """The description of the interface."""
        return _json(openapi(self.options.max_batch, self.options.token is not None))

    async def _parsed(self, request: Request, model: type[Any]) -> tuple[list[Any], bool]:
        """The objects in a body, one or a list of them."""
        body = await read_body(request, self.options.max_body, self.options.timeout)
        try:
            content = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise Refusal(400, f"the body is not JSON: {error}") from None
        many = isinstance(content, list)
        items: Sequence[Any] = content if many else [content]
        if not 0 < len(items) <= self.options.max_batch:
            raise Refusal(422, f"a list must hold 1 to {self.options.max_batch} requests, but it has {len(items)}")
        try:
            return [model.model_validate(one) for one in items], many
        except Invalid as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise Refusal(422, f"{where}: {first['msg']}") from None

    async def _decisions(self, decider: Decider, asked: list[Asked]) -> list[Decision]:
        offered = sum(len(decider.catalogue if one.candidates is None else one.candidates) for one in asked)
        if offered * decider.policy.width <= INLINE:
            return [decider.decision(one) for one in asked]
        return await asyncio.to_thread(lambda: [decider.decision(one) for one in asked])

    async def _write(self, rows: list[tuple[str, Row]]) -> dict[str, Row]:
        if not rows:
            return {}
        if self.writer is None:
            raise Refusal(503, "the server is starting or stopping", 1)
        try:
            return await self.writer.write(rows)
        except Busy as busy:
            raise Refusal(503, str(busy), 1) from None

    def _page(self, name: str, kind: str) -> Callable[[Request], Any]:
        headers = {"content-security-policy": CSP, "cache-control": "no-cache", "x-content-type-options": "nosniff"}

        async def page(_: Request) -> Response:
            return Response(self._pages[name], media_type=kind, headers=headers)

        return page

    @asynccontextmanager
    async def _lifespan(self, _: Router) -> AsyncIterator[None]:
        self.writer = Writer(self.store, self.options.max_waiting)
        tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._checkpoint())]
        if self.options.retention_days is not None:
            tasks.append(asyncio.create_task(self._retain(self.options.retention_days)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await self.writer.close()
            self.store.close()

    async def _watch(self) -> None:
        """Take up a new version of the policy once it is loaded; one that cannot be served is left alone."""
        while True:
            await asyncio.sleep(self.options.reload_seconds)
            version = await asyncio.to_thread(self._version)
            if version == self._seen:
                continue
            self._seen = version
            try:
                decider = await asyncio.to_thread(lambda: self._ready(load_policy(self.options.run)))
            except Exception as error:  # whatever is wrong with the new one, the old one serves on
                self.metrics.reloads_failed += 1
                log.warning("the new policy is ignored, %s serves on: %s", self.decider.policy.digest, error)
                continue
            if decider.policy.digest != self.decider.policy.digest:
                log.info("policy %s replaces %s", decider.policy.digest, self.decider.policy.digest)
                self.decider = decider
                self.metrics.reloads += 1

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_EVERY)
            with suppress(Exception):  # the next one makes up for it
                await asyncio.to_thread(self.store.checkpoint)

    async def _retain(self, days: float) -> None:
        while True:
            with suppress(Exception):
                while await asyncio.to_thread(self.store.prune, now() - int(days * 86400 * SECOND)):
                    await asyncio.sleep(0.1)
            await asyncio.sleep(PRUNE_EVERY)

    def _ready(self, policy: ServedPolicy) -> Decider:
        """The decider of a policy, remembered by the store."""
        options = self.options
        decider = Decider(policy, mode=options.mode, epsilon=options.epsilon, keep=options.keep, salt=self.store.salt)
        self.store.remember(policy.digest, policy_facts(decider))
        return decider

    def _version(self) -> Any:
        """What changes when a new policy is saved: the current version and its files' times."""
        path = Path(self.options.run).expanduser()
        try:
            if path.suffix != ".onnx":
                path = current_version(policy_folder(path))
                return path, [(file.name, file.stat().st_mtime_ns) for file in sorted(path.iterdir())]
            return path, path.stat().st_mtime_ns
        except (OSError, OffPolicyError) as error:
            return path, str(error)


def _json(content: Any) -> Response:
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")
