"""Figures that README, CLAIMS.md and docs quote are what the committed results say; one changed by hand is found."""

import re
import shlex
from pathlib import Path

import pytest

from claims import CLAIMS, MARK, ROOT, pages, refreshed, says, wrong

QUOTED = [
    pytest.param(page, mark, id=f"{page.stem}-{mark['name']}-{place}")
    for page in pages()
    for place, mark in enumerate(MARK.finditer(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_what_is_quoted_is_what_the_results_say(page: Path) -> None:
    assert wrong(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("page", "mark"), QUOTED)
def test_a_figure_changed_by_hand_is_found(page: Path, mark: re.Match[str]) -> None:
    text = page.read_text(encoding="utf-8")
    digits = [found.start() + mark.start("shown") for found in re.finditer(r"\d", mark["shown"])]
    assert digits
    for place in (digits[0], digits[-1]):
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        assert mark["name"] in [one.split()[0] for one in wrong(changed)]
        assert refreshed(changed) == refreshed(text)


@pytest.mark.parametrize(
    "text", ["<!--claim no.such-->1<!--/claim-->", "<!--claim coverage.value_covered-->1 of 2", "1<!--/claim-->"]
)
def test_a_broken_mark_is_found(text: str) -> None:
    assert len(wrong(text)) == 1


def test_every_claim_is_quoted_in_claims_or_docs() -> None:
    quoted = {mark["name"] for page in pages() for mark in MARK.finditer(page.read_text(encoding="utf-8"))}
    assert quoted <= set(CLAIMS)
    assert {"coverage.settings", "propensity.loggers", "peers.overall", "defaults.mean_share"} <= quoted


def test_every_receipt_names_files_and_commands_that_exist() -> None:
    text = (ROOT / "CLAIMS.md").read_text(encoding="utf-8")
    receipts = [line.split(" | ") for line in text.splitlines() if "<!--claim" in line]
    assert len(receipts) > 10
    for *_, source, command, date in receipts:
        (file,) = re.findall(r"\]\(([^)]+)\)", source)
        assert (ROOT / file).is_file()
        python, script, *_ = shlex.split(command.strip("`"))
        assert python == "python"
        assert (ROOT / script).is_file()
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2} \|", date)
    assert "does not say that it is not there" in text
    assert says("coverage.value_covered") in text
