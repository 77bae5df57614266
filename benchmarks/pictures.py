"""The pictures of the documentation, drawn from committed results: docs/pictures/*.svg.

Run: python benchmarks/pictures.py
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from coverage import summarise
from offpolicy.drawing import Panel, Strip, decade_ticks, panel, plain
from offpolicy.results import Chart, parse_results
from offpolicy.results.figures import HATCH

DOCS = Path(__file__).parents[1] / "docs"
RESULTS, PICTURES = DOCS / "results", DOCS / "pictures"
OURS, THEIRS = "auto", "snips, logistic β̂"
LEVEL = 0.95
WIDTH, ROW = 460, 48


def report() -> Chart:
    """The values of the demo, as its report shows them: each policy's name and numbers above its interval."""
    found = _demo().evaluation
    rows = [(name, one.value, one.interval) for name, one in found.policies.items()]
    rows.append(("what runs today", found.logging.value, found.logging.interval))
    strip = Strip.over([end for _, _, ends in rows for end in (ends.low, ends.high)], found.logging.value, WIDTH)
    parts = [HATCH]
    for place, (name, value, ends) in enumerate(rows):
        y, ours = place * ROW, ends is not found.logging.interval
        bar = strip.draw(name, value, (ends.low, ends.high), getattr(ends, "sampling", None), "" if ours else "grey")
        said = f"{value:.2f} ({ends.low:.2f} to {ends.high:.2f})"
        parts += [_words(8, y + 14, name), _words(WIDTH - 8, y + 14, said, "end"), _moved(0, y + 12, bar)]
    parts.append(_moved(0, len(rows) * ROW, strip.scale()))
    return _picture("Values of the demo's policies with their intervals", len(rows) * ROW + 22, parts)


def interval() -> Chart:
    """The interval of the demo's best policy, its parts named."""
    found = _demo().evaluation
    one = found.policies[found.best or next(iter(found.policies))]
    ends = one.interval
    strip = Strip.over([ends.low, ends.high, found.logging.value], found.logging.value, WIDTH)
    at, middle = strip.axis.at, (ends.low + ends.high) / 2
    parts = [
        HATCH,
        _words(at(middle), 16, "sampling error: few rows", "middle"),
        _moved(0, 22, strip.draw("interval", one.value, (ends.low, ends.high), ends.sampling)),
        _words(at(ends.high), 70, "hatched: propensities were estimated", "end"),
        _words(at(found.logging.value), 70, "what runs today"),
        _moved(0, 78, strip.scale()),
    ]
    return _picture("The two parts of an interval", 102, parts)


def coverage() -> Chart:
    """Coverage in every setting that is answered and hides nothing: ours beside SNIPS with a logistic regression."""
    runs = _lines(RESULTS / "coverage.jsonl")
    table = [row for row in summarise(runs) if row["answerable"] and not row["hidden"]]
    title = f"Coverage of 95 % intervals in {len(table)} settings"
    drawn = panel(title, (0.0, 1.02), (0.0, 2.0), ("share of intervals that hold the true value", ""), (None, ()))
    drawn.rule(x=LEVEL, text="promised", kind="rule today")
    for place, (name, kind, words) in enumerate(
        ((OURS, "s0", "auto, the default"), (THEIRS, "s1", "SNIPS, propensities by logistic regression"))
    ):
        base = 1.15 - place
        seen: dict[float, int] = {}
        for row in table:
            share = round(row["methods"][name]["coverage"], 2)
            seen[share] = seen.get(share, 0) + 1
            drawn.dot(share, base + 0.055 * (seen[share] - 1), kind, f"{row['setting']}: {share:.2f}", 2.6)
        drawn.parts.append(_words(drawn.x.start + 4, drawn.y.at(base) - 8, words))
    return Chart(title, drawn.svg(), "")


def cost() -> Chart:
    """Seconds and memory of one evaluation by the rows of the log, and by its actions."""
    rows = _lines(RESULTS / "growth.jsonl")
    actions = {row["rows"] for row in rows if sum(one["rows"] == row["rows"] for one in rows) > 1}
    by_rows = [row for row in rows if row["rows"] not in actions]
    by_actions = [row for row in rows if row["rows"] in actions]
    parts = []
    for place, (mine, what, other) in enumerate(((by_rows, "rows", "actions"), (by_actions, "actions", "rows"))):
        drawn = _growth(mine, what, f"{what}, at {mine[0][other]:,} {other}")
        parts.append(_moved(0, place * 276, drawn.svg()))
    return _picture("Seconds and memory of one evaluation", 538, parts)


def _growth(rows: Sequence[dict[str, Any]], what: str, x_label: str) -> Panel:
    seconds = [(math.log10(row[what]), math.log10(row["value"])) for row in rows]
    memory = [(math.log10(row[what]), math.log10(max(row["extra_mb"], 1))) for row in rows]
    x, y = (seconds[0][0] - 0.1, seconds[-1][0] + 0.1), (-1.0, 3.3)
    ticks = ([(math.log10(row[what]), plain(row[what])) for row in rows], decade_ticks(*y))
    drawn = panel(f"By {what}", x, y, (x_label, ""), ticks)
    for points, kind, words, below in (
        (seconds, "s0", "seconds of one core", 18),
        (memory, "s1", "MB above the log", -9),
    ):
        drawn.line(points, kind)
        for at in points:
            drawn.dot(*at, kind)
        drawn.parts.append(_words(drawn.x.end, drawn.y.at(points[-1][1]) + below, words, "end"))
    return drawn


def _picture(title: str, height: int, parts: Sequence[Markup]) -> Chart:
    opening = '<svg viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{title}">{parts}</svg>'
    return Chart(title, Markup(opening).format(w=WIDTH, h=height, title=title, parts=Markup("").join(parts)), "")


def _words(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text class="note" x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _moved(x: float, y: float, part: Markup) -> Markup:
    return Markup('<g transform="translate({} {})">{}</g>').format(x, y, part)


def _demo() -> Any:
    return parse_results(json.loads((RESULTS / "demo.json").read_text(encoding="utf-8")), "docs/results/demo.json")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


PICTURES_OF = {"report": report, "interval": interval, "coverage": coverage, "cost": cost}
"""Every picture by the name of its file."""


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in PICTURES_OF.items():
        draw().save(PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main()
