"""Run a server: one process, or several workers on one store."""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from offpolicy.errors import OffPolicyError
from offpolicy.serving.api import ServeOptions
from offpolicy.serving.limits import App, PatientProtocol
from offpolicy.serving.server import Service

SETTINGS = "OFFPOLICY_SERVE_OPTIONS"
"""The environment variable by which workers get their options."""


def server_app(options: ServeOptions) -> App:
    """The ASGI application of a server, to be run by uvicorn or mounted in another."""
    return Service(options).app()


def from_environment() -> App:
    """The application of one of several workers."""
    _prepare_process()
    return server_app(ServeOptions.model_validate_json(os.environ[SETTINGS]))


def serve(options: ServeOptions, announce: Callable[[str], None] = print) -> None:
    """Serve until a signal says stop; requests in flight are answered first."""
    if options.token is None and options.host not in ("127.0.0.1", "::1", "localhost"):
        raise OffPolicyError(
            f"Without a token only this machine may ask, but --host is {options.host}. Set OFFPOLICY_TOKEN or give "
            "--token-file."
        )
    _prepare_process()
    PatientProtocol.patience = options.timeout
    settings: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "http": PatientProtocol,
        "loop": "asyncio",
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "limit_concurrency": 2 * options.max_waiting,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 10,
        "proxy_headers": options.proxy is not None,
        "forwarded_allow_ips": options.proxy,
    }
    if options.workers > 1:
        Service(options).store.close()  # what cannot be served is said once, here
        os.environ[SETTINGS] = options.model_dump_json()
        announce(f"serving {options.run} at http://{options.host}:{options.port} with {options.workers} workers")
        uvicorn.run("offpolicy.serving.run:from_environment", factory=True, workers=options.workers, **settings)
        return
    service = Service(options)
    server = uvicorn.Server(uvicorn.Config(service.app(), **settings))
    socket = server.config.bind_socket()
    socket.listen(2048)  # who reads the line below may ask at once
    host, port = socket.getsockname()[:2]
    announce(
        f"serving policy {service.decider.policy.digest} at http://{host}:{port} ({options.mode}, ε = "
        f"{options.epsilon:g}, store {service.store.safe_url})"
    )
    server.run(sockets=[socket])


def _prepare_process() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    sys.setswitchinterval(0.001)  # the writer's thread gets its turn soon
