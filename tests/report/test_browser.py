"""The report in a real browser: headless Chromium, installed where it is missing and can be."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Page, chromium_or_skip, kept_folder
from offpolicy.report.html import write_report
from report_results import HOSTILE, results

pytestmark = pytest.mark.timeout(1200)  # a download of the browser included
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_folder(lambda: tmp_path_factory.mktemp("report-artifacts"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with Page(chromium_or_skip(), folder / "profile") as opened:
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
    page.call("Emulation.setDeviceMetricsOverride", width=694, height=980, deviceScaleFactor=1, mobile=False)  # A4
    assert page.value("getComputedStyle(document.querySelector('.overview thead')).display") == "table-header-group"
    assert page.value(CUT_WORDS) == []
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", media="")
    page.value("delete document.documentElement.dataset.theme")
    pdf = base64.b64decode(page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    (kept / "report.pdf").write_bytes(pdf)
    assert pdf.startswith(b"%PDF")


CUT_WORDS = """
(() => {
  const cut = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, box = node.parentElement;
    if (!box.offsetParent || box.closest("script, style, pre, svg")) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}.,]+/gu)) {
      if (word[0].length > 24) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
      if (tops.size > 1) cut.push(word[0]);
    }
  }
  return cut;
})()
"""
WIDER = """
[...document.querySelectorAll("body *")].filter((e) => e.offsetParent && !e.closest("svg, pre, .defs")
  && (e.getBoundingClientRect().right > innerWidth + 0.5 || e.scrollWidth > e.clientWidth + 1 && e.matches(".scroll")))
  .map((e) => e.tagName + "." + e.className)
"""


@pytest.fixture
def phone(page: Page) -> Iterator[Page]:
    page.value("scrollTo(0, 0)")
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    yield page
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)


def test_a_phone_shows_the_winners_bar_and_value_and_cuts_nothing(phone: Page, kept: Path) -> None:
    assert phone.value("innerWidth") == 390
    assert phone.value("document.documentElement.scrollWidth") == 390
    phone.screenshot(kept / "report-phone.png", whole=True)
    for selector in (".overview tbody tr .strip .inner", ".overview tbody tr .strip .value", ".overview tbody tr b"):
        box = phone.value(
            f"(({{left, right, width}}) => [left, right, width])"
            f"(document.querySelector('{selector}').getBoundingClientRect())"
        )
        assert box[0] >= 0, selector
        assert box[1] <= 390, selector
        assert box[2] > 4, selector
    assert phone.value("document.querySelector('.overview tbody tr b').innerText") == "0.447"
    assert phone.value("document.querySelector('.overview tbody tr th').innerText.startsWith('uips')")
    phone.value("document.querySelectorAll('details').forEach((d) => d.open = true)")
    assert phone.value(CUT_WORDS) == []
    assert phone.value(WIDER) == []
    phone.value("document.querySelectorAll('details').forEach((d) => d.open = false)")


def test_a_desk_cuts_nothing_either(page: Page) -> None:
    assert page.value("innerWidth") == 1280
    assert page.value(CUT_WORDS) == []
    assert page.value(WIDER) == []


def test_passed_checks_are_folded_and_failed_ones_are_not(page: Page) -> None:
    shown = "[...document.querySelectorAll('#policy-{} .checks tr')].filter((r) => r.checkVisibility()).length"
    folded = page.value("document.querySelector('#policy-0 details.folded summary').innerText")
    assert folded == "All 4 passed"
    assert page.value(shown.format(0)) == 0
    page.value("document.getElementById('tab-policy-1').click()")
    assert page.value(shown.format(1)) == 1
    page.value("document.getElementById('tab-policy-0').click()")


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
