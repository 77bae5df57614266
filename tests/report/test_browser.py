"""The report in a real browser: headless Chromium, installed where it is missing and can be."""

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Page, chromium, install_chromium
from offpolicy.report.html import write_report
from report_results import HOSTILE, results

pytestmark = pytest.mark.timeout(1200)  # a download of the browser included
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots stay: OFFPOLICY_ARTIFACTS, or pytest's folder."""
    chosen = os.environ.get("OFFPOLICY_ARTIFACTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("report-artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    reason = "" if chromium() else install_chromium()
    browser = chromium()
    if browser is None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("browser")
    with Page(browser, folder / "profile") as opened:
        opened.open(write_report(results(), folder / "report.html"))
        yield opened


def test_the_first_screen_holds_verdict_values_and_what_flips_them(page: Page, kept: Path) -> None:
    assert page.value("[innerWidth, innerHeight]") == [1280, 800]
    for selector in ("#verdict h1", "#verdict .badge", "#verdict .lead", "#verdict .so", ".overview tr.today"):
        bottom = page.value(f"document.querySelector('{selector}').getBoundingClientRect().bottom")
        assert 0 < bottom <= 800, selector
    assert "does better than the logging policy" in page.value("document.querySelector('h1').innerText")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    assert page.screenshot(kept / "report-light.png").stat().st_size > 20_000
    page.screenshot(kept / "report-whole.png", whole=True)


def tip_over(page: Page, selector: str, wanted: str, tries: int = 40) -> str:
    """What the tooltip says over a mark; a busy machine may take a while to show it."""
    tip = ""
    for _ in range(tries):
        page.point(selector)
        tip = str(page.value("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"))
        if wanted in tip:
            break
        time.sleep(0.25)
    return tip


def test_charts_have_marks_and_tell_their_numbers(page: Page) -> None:
    counts = page.value(
        "[...document.querySelectorAll('svg.chart')].map(c => c.querySelectorAll('.bar, .dot, .line').length)"
    )
    assert len(counts) == 14
    assert min(counts) >= 3
    assert "rows" in tip_over(page, "#policy-0 svg.chart .mark:nth-last-of-type(12)", "rows")
    wanted = "from estimated propensities"
    assert wanted in tip_over(page, ".overview .strip .mark", wanted)
    sizes = page.value(
        "['.inner', '.outer'].map(s => document.querySelector('.overview ' + s).getBoundingClientRect().width)"
    )
    assert 0 < sizes[0] < sizes[1]


def test_tabs_show_one_policy_and_the_toggle_changes_the_theme(page: Page, kept: Path) -> None:
    shown = "[...document.querySelectorAll('.policy')].map(p => p.offsetHeight > 0)"
    assert page.value(shown) == [True, False, False]
    page.value("document.getElementById('tab-policy-2').click()")
    assert page.value(shown) == [False, False, True]
    page.value("document.getElementById('tab-policy-0').click()")
    light = page.value(BACKGROUND)
    page.value("document.getElementById('theme').click()")
    dark = page.value(BACKGROUND)
    page.value("scrollTo(0, 0)")
    page.screenshot(kept / "report-dark.png")
    page.value("document.getElementById('theme').click()")
    assert page.value(BACKGROUND) == light != dark
    page.value("delete document.documentElement.dataset.theme")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.value(BACKGROUND) == dark
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    assert page.value(BACKGROUND) == light


def test_it_prints_every_policy_on_light_paper(page: Page, kept: Path) -> None:
    page.value("document.documentElement.dataset.theme = 'dark'")
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value(BACKGROUND) == "rgb(255, 255, 255)"
    assert page.value("[...document.querySelectorAll('.policy')].every(p => p.offsetHeight > 0)")
    assert page.value("document.getElementById('theme').offsetHeight") == 0
    page.call("Emulation.setEmulatedMedia", media="")
    page.value("delete document.documentElement.dataset.theme")
    pdf = base64.b64decode(page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    (kept / "report.pdf").write_bytes(pdf)
    assert pdf.startswith(b"%PDF")


def test_an_action_named_like_a_script_stays_text(page: Page) -> None:
    cells = page.value("[...document.querySelectorAll('.risky tbody th')].map(c => c.innerText)")
    assert HOSTILE in cells
    assert page.value("document.scripts.length") == 2
    assert not [e for e in page.events if e["method"] == "Page.javascriptDialogOpening"]


def test_nothing_is_asked_of_the_network_and_nothing_is_complained_of(page: Page) -> None:
    requests = page.requests()
    assert requests
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in requests) == 1
    assert page.complaints() == []
