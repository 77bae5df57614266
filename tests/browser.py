"""Headless Chromium spoken to over its DevTools pipe, with everything it logs and asks for kept."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--proxy-server=127.0.0.1:9",  # nobody listens there: whatever asked for the network would fail
)


def chromium() -> str | None:
    """The browser's path, where there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def install_chromium() -> str:
    """Install Debian's chromium where that is possible; returns why not, or nothing."""
    if os.getuid() != 0 or not shutil.which("apt-get"):
        return "there is no Chromium, and installing it takes root and apt-get; install the package chromium"
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        said = f"there is no Chromium, and {' '.join(command)}"
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=500)
        except subprocess.TimeoutExpired:
            return f"{said} took too long"
        if run.returncode:
            return f"{said} failed: {run.stderr[-300:]}"
    return "" if chromium() else "apt-get installed chromium, but it is not on the path"


def chromium_or_skip() -> str:
    """The browser's path, installed where it can be; without one the test is skipped."""
    reason = "" if chromium() else install_chromium()
    path = chromium()
    if path is None:
        pytest.skip(reason)
    return path


def kept_folder(otherwise: Callable[[], Path]) -> Path:
    """Where screenshots stay: OFFPOLICY_ARTIFACTS, or another folder."""
    chosen = os.environ.get("OFFPOLICY_ARTIFACTS")
    folder = Path(chosen) if chosen else otherwise()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pipe() -> tuple[int, int]:
    """A pipe away from the numbers 3 and 4, which the browser expects to be its own."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Page:
    """One open page."""

    def __init__(self, browser: str, profile: Path, width: int = 1280, height: int = 800) -> None:
        """Start the browser with an empty page of that size."""
        ours_in, theirs_out = _pipe()
        theirs_in, ours_out = _pipe()
        self._in, self._out = ours_in, ours_out
        self._process = os.posix_spawn(
            browser,
            [browser, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's answer; events that arrive before it are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, script: str) -> Any:
        """What an expression evaluates to."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, selector: str) -> None:
        """Move the mouse over the middle of an element."""
        box = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{box}.scrollIntoView({{block: 'center'}})")
        x, y = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box}.getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """Keep what is seen, or the whole length of the page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def requests(self) -> list[str]:
        """The addresses it asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[Any]:
        """Errors and warnings of scripts, of the console and of the browser."""
        said = [
            e["params"] for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        ]
        entries = [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        return said + [entry for entry in entries if entry["level"] in ("error", "warning")]

    def _next(self, patience: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0], (
                "the browser does not answer"
            )
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
