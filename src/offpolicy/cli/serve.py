"""`offpolicy serve`: decide requests over HTTP and record every decision with its probability."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from offpolicy.cli.options import Config, Store, seconds
from offpolicy.errors import OffPolicyError

TOKEN = "OFFPOLICY_TOKEN"


def serve(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Folder of a run or policy, or an ONNX file.", show_default=False),
    ],
    store: Store = "events.db",
    mode: Annotated[
        str, typer.Option("--mode", help="explore: draw from the policy; greedy: its best; shadow: show the baseline.")
    ] = "explore",
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Share of decisions spread over all candidates: each gets at least ε/n.")
    ] = 0.0,
    keep: Annotated[float, typer.Option("--keep", help="Share of decisions that are recorded.")] = 1.0,
    salt: Annotated[
        str | None, typer.Option("--salt", help="Keys the draws of a new store; without it, a random one.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8080,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that share the port and the store.")] = 1,
    token_file: Annotated[
        str | None, typer.Option("--token-file", help=f"File with the token clients must send; else ${TOKEN}.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option("--proxy", help="Address of a reverse proxy whose forwarded headers are believed.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", help="Requests a second from one address; 0: no limit.")] = 0.0,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds a client may take to send a request.")] = 10.0,
    max_body: Annotated[int, typer.Option("--max-body", help="Largest body in bytes.")] = 1_000_000,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Most decisions or rewards in one request.")] = 256,
    max_candidates: Annotated[int, typer.Option("--max-candidates", help="Most candidates of a decision.")] = 10_000,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Rows that may wait to be written before requests are refused.")
    ] = 10_000,
    horizon: Annotated[str, typer.Option("--horizon", help="When rewards count as final on the page: 90s, 1h, 7d.")] = (
        "1h"
    ),
    rule: Annotated[str, typer.Option("--rewards", help="Of several rewards on the page: first, last, sum or max.")] = (
        "first"
    ),
    retention_days: Annotated[
        float | None, typer.Option("--retention-days", help="Delete decisions older than this; without it, none.")
    ] = None,
    reload_seconds: Annotated[
        float, typer.Option("--reload-seconds", help="How often to look for a new version of the policy.")
    ] = 2.0,
    config: Config = None,
) -> None:
    """Serve a policy: POST /decide, /reward and /activate; a page at /, a description at /docs.

    A decision is answered once it is durable in the store, with the exact probability with which it was drawn. A new
    version of the policy is taken up while requests go on. Needs the extra `serve`.
    """
    from offpolicy.serving import ServeOptions
    from offpolicy.serving import serve as run_server

    given: dict[str, Any] = {
        "run": run,
        "store": store,
        "mode": mode,
        "epsilon": epsilon,
        "keep": keep,
        "salt": salt,
        "token": _token(token_file),
        "horizon": seconds("horizon", horizon),
        "rule": rule,
        "retention_days": retention_days,
        "reload_seconds": reload_seconds,
        "rate": rate,
        "timeout": timeout,
        "max_body": max_body,
        "max_batch": max_batch,
        "max_candidates": max_candidates,
        "max_waiting": max_waiting,
        "host": host,
        "port": port,
        "workers": workers,
        "proxy": proxy,
    }
    run_server(ServeOptions.checked(given), lambda said: typer.echo(said))


def _token(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OffPolicyError(f"--token-file: {file} cannot be read: {error}. Check the path.") from None
