"""The site: built strict and offline, opened wide and narrow in headless Chromium, and searched from disk."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import pictures
from browser import Page, chromium_or_skip, kept_folder

ROOT = Path(__file__).parents[2]
PAGES = ("index", "quickstart", "concepts", "evaluation", "api")
SIZES = {"wide": (1280, 800, 1, False), "phone": (390, 844, 2, True)}
pytestmark = pytest.mark.timeout(1200)  # a download of the browser included


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    settings = str(ROOT / "website" / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", settings]
    done = subprocess.run(
        [*command, "--site-dir", str(folder)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_folder(lambda: tmp_path_factory.mktemp("site-artifacts"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(chromium_or_skip(), tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


class Loaded(HTMLParser):
    """The addresses that a page loads by itself: scripts, styles, pictures, frames."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video", "embed", "object"):
            self.addresses += [given[name] for name in ("src", "srcset", "data") if name in given]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(given["href"])


def from_elsewhere(page: str) -> list[str]:
    """What a page or a style sheet would load from the network."""
    loaded = Loaded(page).addresses + re.findall(r"(?:url\(|@import )['\"]?([^'\")]+)", page)
    return [address for address in loaded if re.match(r"(?:https?:)?//", address)]


def test_an_address_elsewhere_is_found() -> None:
    page = (
        "<a href='https://x.y'></a><script src='//x.y/z.js'></script><style>b{background:url(http://x.y/a.png)}</style>"
    )
    assert from_elsewhere(page) == ["//x.y/z.js", "http://x.y/a.png"]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    files = [path for kind in ("html", "css") for path in site.rglob(f"*.{kind}")]
    assert len(files) > 30
    found = {path.name: from_elsewhere(path.read_text(encoding="utf-8")) for path in files}
    assert {name: addresses for name, addresses in found.items() if addresses} == {}


def test_every_local_link_leads_somewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"#:?]+)(?:#[^"]*)?"', text):
            assert page.name == "404.html" or (page.parent / target).exists(), f"{page.name} leads to {target}"


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    import offpolicy

    text = (site / "api.html").read_text(encoding="utf-8")
    for name in set(offpolicy.__all__) - {"ESTIMATORS", "OFFICIAL", "__version__"}:
        assert re.search(rf'<h3 id="[\w.]+\.{name}"', text), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_right(browser: Page, site: Path, kept: Path, name: str, size: str) -> None:
    width, height, scale, mobile = SIZES[size]
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
    )
    browser.events.clear()
    browser.open(site / f"{name}.html")
    assert browser.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.value("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    assert browser.screenshot(kept / f"site-{name}-{size}.png").stat().st_size > 20_000
    assert browser.complaints() == []
    asked = browser.requests()
    assert asked
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []


def test_search_works_from_disk(browser: Page, site: Path, kept: Path) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    browser.events.clear()
    browser.open(site / "index.html")
    browser.value("document.querySelector('[data-md-component=search-query]').focus()")
    browser.call("Input.insertText", text="guardrail")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key="l")  # what search listens to
    found: list[str] = []
    for _ in range(80):
        found = json.loads(
            browser.value(
                "JSON.stringify([...document.querySelectorAll('.md-search-result__link')].map((a) => a.pathname))"
            )
        )
        if found:
            break
        time.sleep(0.25)
    assert "rewards.html" in {Path(address).name for address in found}
    browser.screenshot(kept / "site-search.png")
    assert browser.complaints() == []


def test_the_example_report_is_a_report(browser: Page, site: Path) -> None:
    browser.events.clear()
    browser.open(site / "example-report.html")
    assert browser.value("document.querySelectorAll('svg.chart').length") > 5
    assert browser.complaints() == []


@pytest.mark.parametrize("name", pictures.PICTURES_OF)
def test_pictures_are_those_of_the_committed_results(name: str) -> None:
    drawn = pictures.PICTURES_OF[name]().standalone()
    assert (pictures.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == drawn
