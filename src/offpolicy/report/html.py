"""The report of a run: one HTML file made from the results file alone, which opens offline and loads nothing."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from offpolicy.atomic import write_atomic
from offpolicy.drawing import chart_style
from offpolicy.json_writer import json_text
from offpolicy.report.sections import sections
from offpolicy.results import parse_results, read_results

GENERATOR = '<meta name="generator" content="offpolicy">'
"""Stands in the head of every report."""
ASSETS = Path(__file__).parent
LARGEST_DATA = 1_500_000
"""Results longer than this are not carried along inside the page; the file beside it has them."""


def write_report(results: Mapping[str, Any] | str | Path, out: str | Path) -> Path:
    """Write the report of a results file, of a folder that holds one, or of its content; returns the path.

    The page is written atomically.
    """
    if isinstance(results, Mapping):
        page = render_report(results)
    else:
        page = _rendered(read_results(Path(results)), str(results))
    out = Path(out)
    write_atomic(out, page)
    return out


def is_report(path: Path) -> bool:
    """Whether a report may be written there: nothing is, or an earlier report."""
    if not path.exists():
        return True
    return path.is_file() and GENERATOR in path.read_text(encoding="utf-8", errors="replace")[:2000]


def render_report(results: Mapping[str, Any]) -> str:
    """The page for the content of a results file."""
    return _rendered(dict(results), "The results file")


def _rendered(plain: Any, where: str) -> str:
    parsed = parse_results(plain, where)
    script, page_style = ((ASSETS / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    style = chart_style() + page_style
    page = (
        _environment()
        .get_template("page.html")
        .render(
            **sections(parsed),
            script=Markup(script),  # our own file, not the user's text
            style=Markup(style),
            policy=f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
            "base-uri 'none'; form-action 'none'",
            embedded=_embedded(plain),
        )
    )
    return page.lstrip()


@cache
def _environment() -> Environment:
    """Escapes everything that is not marked as markup, and refuses names the sections do not give."""
    loader = FileSystemLoader(ASSETS)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _digest(text: str) -> str:
    """The only script and the only style the browser may run, so that nothing smuggled into the page can."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(plain: Any) -> Markup:
    """The results as JSON that cannot end its script element."""
    text = json_text(plain, "results")
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text if len(text) <= LARGEST_DATA else "null")
