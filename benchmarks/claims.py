"""The figures that README, CLAIMS.md and docs quote, recomputed from the committed results.

Run: python benchmarks/claims.py          writes every marked figure anew
     python benchmarks/claims.py --check  names those that differ, and changes nothing

A quoted figure stands between two comments, `<!--claim coverage.value_covered-->166 of 171<!--/claim-->`; a table
likewise, with an empty line at either end. What each name says is a function below, of files in docs/results alone.
"""

import contextlib
import functools
import io
import json
import re
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import coverage
import defaults
import peers
import peers_page
import propensity
from figures import Figure
from offpolicy.atomic import write_atomic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
MARK = re.compile(r"<!--claim (?P<name>[\w.]+)-->(?P<shown>.*?)<!--/claim-->", re.DOTALL)
SHOWN = ("auto", "snips, true propensities", "snips, logistic β̂", "sndr, logistic β̂")
"""Lines of the coverage benchmark in the page's table."""
BY_ID = "taste given by id, 10k rows, K 20"
CLAIMS: dict[str, Callable[[], str]] = {}
"""What each name says now."""


def pages() -> list[Path]:
    """Where figures are quoted."""
    return [ROOT / "README.md", ROOT / "CLAIMS.md", *sorted((ROOT / "docs").glob("*.md"))]


def wrong(text: str) -> list[str]:
    """What is quoted wrongly in a page, in words."""
    found = [
        f"{name} is {shown!r}, but the results say {says(name)!r}" if name in CLAIMS else f"{name} is unknown"
        for name, shown in MARK.findall(text)
        if name not in CLAIMS or shown != says(name)
    ]
    return [*found, "a mark has no end"] if re.search(r"<!--/?claim\b", MARK.sub("", text)) else found


def refreshed(text: str) -> str:
    """The page with every marked figure as the results say."""
    return MARK.sub(lambda mark: f"<!--claim {mark['name']}-->{says(mark['name'])}<!--/claim-->", text)


@functools.cache
def says(name: str) -> str:
    """The figure as it is quoted; a table with empty lines around it."""
    text = CLAIMS[name]()
    return f"\n\n{text.strip()}\n\n" if text.startswith("|") else text


def claim(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register what a name says."""

    def registered(function: Callable[[], str]) -> Callable[[], str]:
        CLAIMS[name] = function
        return function

    return registered


def number(figures: Callable[[], Iterable[Figure]], name: str, form: str) -> None:
    """Register a benchmark's figure under its own name."""
    CLAIMS[name] = lambda: form.format(next(one.value for one in figures() if one.name == name))


@functools.cache
def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a results file."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


# Coverage of the default interval, 28 settings


@functools.cache
def covered_table() -> list[dict[str, Any]]:
    return coverage.summarise(rows("coverage"))


@functools.cache
def value_counts() -> tuple[int, int]:
    """Answered runs without hidden information, and those of them whose interval holds the truth."""
    judged = [
        run for run in rows("coverage") if run["answer"] == "answerable" and not coverage.EVERY[run["setting"]].hidden
    ]
    inside = [run for run in judged if run["intervals"]["auto"][0] <= run["truth"] <= run["intervals"]["auto"][1]]
    return len(inside), len(judged)


@functools.cache
def difference_counts() -> tuple[int, int]:
    judged = [
        one
        for run in rows("coverage")
        if not coverage.EVERY[run["setting"]].hidden
        for one in run["differences"]
        if one["answered"]
    ]
    return sum(one["low"] <= one["truth"] <= one["high"] for one in judged), len(judged)


def _counted(counts: Callable[[], tuple[int, int]]) -> str:
    return "{} of {}".format(*counts())


def _share(counts: Callable[[], tuple[int, int]]) -> str:
    return f"{100 * counts()[0] / counts()[1]:.0f} %"


for what, counts in (("value", value_counts), ("difference", difference_counts)):
    CLAIMS[f"coverage.{what}_covered"] = functools.partial(_counted, counts)
    CLAIMS[f"coverage.{what}_share"] = functools.partial(_share, counts)


@claim("coverage.settings")
def _settings() -> str:
    return coverage.markdown(
        [row | {"methods": {name: row["methods"][name] for name in SHOWN}} for row in covered_table()]
    )


@claim("coverage.reliability")
def _reliability() -> str:
    parts = coverage.reliability(rows("coverage"))
    lines = [f"| {one['claimed']:.2f} | {one['true']:.2f} | {one['n']} |" for one in parts]
    return "\n".join(["| claimed | true | n |", "|---|---|---|", *lines])


def _coverage_figure(name: str, without: str = "") -> Callable[[], str]:
    def value() -> str:
        kept = [row for row in covered_table() if row["setting"] != without]
        return f"{coverage.figures_of(kept)[name]:.2f}"

    return value


for name in coverage.LIMITS:
    CLAIMS[name] = _coverage_figure(name)
for name in ("coverage.worst_answerable", "coverage.worst_difference"):
    CLAIMS[f"{name}_else"] = _coverage_figure(name, BY_ID)


def _greedy_widths(line: str, form: str) -> Callable[[], str]:
    def value() -> str:
        mine = [row["methods"][line]["width_ratio"] for row in covered_table() if row["setting"].startswith("ε-greedy")]
        return f"{min(mine):{form}} to {max(mine):{form}}"

    return value


CLAIMS["coverage.greedy_widths_auto"] = _greedy_widths("auto", ".1f")

# Propensities of ten loggers


@functools.cache
def loggers() -> list[dict[str, Any]]:
    return propensity.summarise(rows("propensity"))


@claim("propensity.loggers")
def _loggers() -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        propensity.show_table(loggers())
    return said.getvalue()


@claim("propensity.trees")
def _trees() -> str:
    return f"{min(row['gap_closed'] for row in loggers() if row['logger'] == 'ε-greedy on a tree'):.2f}"


# Learning with the defaults


@functools.cache
def learned() -> list[Figure]:
    best = json.loads((RESULTS / "defaults_best.json").read_text(encoding="utf-8"))
    return list(defaults.figures(rows("defaults"), best))


for name in ("defaults.mean_share", "defaults.worst_share", "defaults.below_logging", "defaults.coverage"):
    number(learned, name, "{:.2f}")

# Other libraries on the same logs


@functools.cache
def compared() -> list[Figure]:
    return peers.figures(peers.complete(rows("peers")))


for peer in peers.NAMES:
    for what, form in (("coverage", "{:.2f}"), ("coverage_answered", "{:.2f}"), ("rmse", "{:.4f}")):
        number(compared, f"peers.{peer}_{what}", form)
number(compared, "peers.ours_answered", "{:.0%}")
for peer in peers.PEERS:
    for what in ("time", "memory"):
        number(compared, f"peers.{peer}_{what}_over_ours", "{:.2f}")
for title, table in (
    ("overall", peers_page.overall),
    ("settings", peers_page.by_setting),
    ("lines", peers_page.every_line),
):
    CLAIMS[f"peers.{title}"] = functools.partial(lambda table: table(peers.complete(rows("peers"))), table)


@claim("peers.odd")
def _odd() -> str:
    return peers_page.odd(rows("peers_odd"))


# Logs beyond memory


def _scale(figure: str, **facts: Any) -> str:
    """A figure of the runs with these facts."""
    found = (row for row in rows("scale") if row["figure"] == f"scale.{figure}")
    return f"{next(one for one in found if facts.items() <= one.items())['value']:.2f}"


for job in ("evaluate", "train"):
    for what in ("peak_gb", "memory_growth", "time_growth"):
        CLAIMS[f"scale.{job}_{what}"] = functools.partial(_scale, what, job=job)
for engine, million, job in product(("local", "ray"), (2, 10), ("evaluate", "fit", "train", "epoch")):
    facts = {"engine": engine, "rows": million * 10**6}
    CLAIMS[f"scale.{engine}_{job}_{million}m"] = functools.partial(_scale, f"two_workers_{job}", **facts)


def main() -> int:
    """Check the pages or write them."""
    failed = False
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if "--check" in sys.argv:
            for one in wrong(text):
                print(f"{page.relative_to(ROOT)}: {one}")
                failed = True
        elif (fresh := refreshed(text)) != text:
            write_atomic(page, fresh)
            print(page.relative_to(ROOT))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
