"""The page of a server: an interval that may be looked at any time, and what a person sees in a real browser."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Page, chromium_or_skip, kept_folder
from offpolicy.serving import Decider, EventStore, Join
from offpolicy.serving.live import ConfidenceSequence, LiveStatus
from offpolicy.serving.records import decision_row
from serving_world import a_context, server_here

HOSTILE = "<img src=x onerror=alert(1)>"


def test_the_interval_holds_at_every_look() -> None:
    random = np.random.default_rng(0)
    misses, widths = 0, []
    for _ in range(200):
        sequence, truth = ConfidenceSequence(bound=1.25, miss=0.05), 0.3
        escaped = False
        for size in (1, 2, 5, 20, 100, 500, 1000):
            sequence.add(np.where(random.random(size) < truth / 1.25, 1.25, 0.0))
            low, high = sequence.interval
            escaped |= not low <= truth <= high
        misses += escaped
        widths.append(high - low)
    assert misses <= 18  # 10 expected of 200 at most; 18 is three standard errors more
    assert np.mean(widths) < 0.11  # about 1.7 times the width of an interval for one look at 1,628 numbers


def test_numbers_in_one_piece_or_many_are_the_same() -> None:
    numbers = np.random.default_rng(1).random(300)
    whole, pieces = ConfidenceSequence(), ConfidenceSequence()
    whole.add(numbers)
    for part in np.split(numbers, [1, 2, 50, 51, 200]):
        pieces.add(part)
    assert pieces.mean == pytest.approx(whole.mean)
    assert pieces._won / pieces._bets == pytest.approx(whole._won / whole._bets)
    assert pieces._spent == pytest.approx(whole._spent)
    assert pieces.interval[0] >= whole.interval[0] - 1e-12  # it may keep what an earlier look has shown


def test_the_value_without_exploration_comes_from_the_record(tmp_path: Path, policy: Path) -> None:
    """The truth is known here: rewards depend on the action alone."""
    worth = {f"item-{i}": 0.1 + 0.15 * i for i in range(6)}
    with EventStore(str(tmp_path / "e.db")) as events:
        decider = Decider.load(policy, salt=events.salt, epsilon=0.5)
        random = np.random.default_rng(0)
        made = [decider.decide(f"r{i}", a_context(i)) for i in range(3000)]
        rows = [decision_row(one, i, 1.0) for i, one in enumerate(made)]
        paid = [
            {"request_id": one.request.request_id, "event_id": "", "value": 1.0, "received_at": 10_000}
            for one in made
            if random.random() < worth[str(one.action)]
        ]
        events.append({"decisions": rows, "rewards": paid})
        status = LiveStatus(events, Join(1.0)).get(decider)
        alone = Decider(decider.policy)
        own = [alone._offer(one.request, [])[1] for one in made[:150]]  # contexts repeat after 150
        truth = np.mean([sum(p * worth[str(a)] for p, a in zip(prob, alone.catalogue, strict=True)) for prob in own])
        policy_value, served = status["value"]["policy"], status["value"]["served"]
        assert (policy_value["count"], served["count"]) == (3000, 3000)
        assert policy_value["low"] <= truth <= policy_value["high"]
        assert policy_value["mean"] == pytest.approx(truth, abs=0.03)
        assert served["mean"] == pytest.approx(len(paid) / 3000)
        assert policy_value["high"] - policy_value["low"] < 0.2


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_folder(lambda: tmp_path_factory.mktemp("serving-artifacts"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Iterator[tuple[Page, Any]]:
    browser = chromium_or_skip()
    folder = tmp_path_factory.mktemp("live")
    options = {
        "run": str(policy),
        "store": str(folder / "e.db"),
        "epsilon": 0.1,
        "horizon": 0.5,
        "token": "s3cret-token",
    }
    with server_here(**options) as (client, _):
        random = np.random.default_rng(0)
        for start in range(0, 600, 100):
            asked = [{"request_id": f"visit-{i}", "context": a_context(i)} for i in range(start, start + 100)]
            client.post("/decide", asked)
            client.post(
                "/reward",
                [{"request_id": f"visit-{i}", "reward": 1} for i in range(start, start + 100) if random.random() < 0.3],
            )
        time.sleep(0.6)
        client.post("/decide", {"request_id": HOSTILE, "context": {"country": "zz"}, "override": HOSTILE})
        with Page(browser, folder / "profile") as page:
            page.call("Network.setBypassServiceWorker", bypass=True)
            yield page, client


def seen(page: Page, script: str, wanted: Any) -> Any:
    """What a script says once it says what is wanted; a busy machine may take a while."""
    found = None
    for _ in range(100):
        found = page.value(script)
        if found == wanted:
            break
        time.sleep(0.1)
    return found


def test_a_person_sees_traffic_exploration_value_and_the_last_decisions(opened: Any, kept: Path) -> None:
    page, client = opened
    home = f"http://127.0.0.1:{client.port}/"
    page.call("Page.navigate", url=home)
    assert seen(page, "document.getElementById('state')?.innerText", "locked") == "locked"
    page.value("document.getElementById('token').value = 's3cret-token'")
    page.value("document.querySelector('#ask button').click()")
    assert seen(page, "document.getElementById('state').innerText", "serving") == "serving"
    assert page.value("document.getElementById('total').innerText") == "601 in the store"
    served, alone = page.value("[...document.querySelectorAll('.worth b')].map(b => Number(b.innerText))")
    assert 0.2 < served < 0.4
    assert 0.2 < alone < 0.45
    assert page.value("document.querySelectorAll('#last tr').length") == 12
    assert page.value("document.querySelector('#last td:nth-child(3)').innerText") == HOSTILE
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.querySelectorAll('#bars rect').length") == 60
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(kept / "serving-wide.png")
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    assert page.value("document.documentElement.scrollWidth") <= 390
    page.screenshot(kept / "serving-phone.png")
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    page.call("Page.navigate", url=f"{home}docs")
    assert seen(page, "document.querySelectorAll('article').length", 8) == 8
    page.screenshot(kept / "serving-docs.png")
    asked = page.requests()
    assert asked
    assert [url for url in asked if not url.startswith((home, "data:", "about:"))] == []
    unexpected = [one for one in page.complaints() if "401" not in str(one)]  # the first look, before the token
    assert unexpected == []
