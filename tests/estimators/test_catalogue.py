from pathlib import Path

from offpolicy.estimators.catalogue import catalogue


def test_the_documentation_page_is_the_registry() -> None:
    page = Path(__file__).parents[2] / "docs" / "estimators.md"
    assert page.read_text(encoding="utf-8") == catalogue(), "run `make docs`"
