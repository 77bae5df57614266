"""Every code block of README and docs runs, page by page, in a folder with small files like those the pages name.

A ```text block under `<!-- printed -->` is also compared with what the page's blocks have printed so far.
"""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest

from first_look import write_shop_log
from small_log import run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNS = {"python", "console"}
"""Languages whose blocks run; ```toml is a file named in its first line, ```text is for the eye alone."""

FENCE = re.compile(
    r"(?P<printed>^<!-- printed -->\n)?^```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block and where it starts."""

    language: str
    code: str
    line: int
    printed: bool = False


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["code"], text[: found.start("language")].count("\n") + 1, bool(found["printed"]))
        for found in FENCE.finditer(text)
    ]


def words(text: str) -> list[str]:
    """The words of a text, without the lines that are drawn around tables."""
    return re.sub(r"[\u2500-\u257f]", " ", text).split()


def same(shown: str, said: str) -> bool:
    """Whether two words agree; numbers may differ by 3 %, as they do between machines."""
    if shown == said:
        return True
    try:
        one, other = float(shown), float(said)
    except ValueError:
        return False
    return abs(one - other) <= max(0.03 * abs(other), 0.0005)


def missing_lines(shown: str, said: str) -> list[str]:
    """The lines of a block that were not printed, however the output was broken into lines; `...` stands for any."""
    printed = words(said)
    lost = []
    for line in shown.splitlines():
        wanted = words(line) or ["..."]
        starts = [place for place, word in enumerate(printed) if word == wanted[0]]
        agrees = (all(map(same, wanted, [*printed[p : p + len(wanted)], ""])) for p in starts)
        if wanted != ["..."] and not any(agrees):
            lost.append(line)
    return lost


def some_rows(rows: int = 400) -> pl.DataFrame:
    """Impressions of five items to forty users, logged by a policy that depends on the user's country."""
    random = np.random.default_rng(0)
    user = random.integers(0, 40, rows)
    country = user % 3
    score = np.stack([1.0 * (country == item % 3) + 0.2 * item for item in range(5)], 1)
    prob = np.exp(score) / np.exp(score).sum(1, keepdims=True)
    item = (prob.cumsum(1) < random.random(rows)[:, None]).sum(1)
    tags = ["rock", "jazz", "folk", "soul"]
    return pl.DataFrame(
        {
            "user": [f"u{u}" for u in user],
            "country": [("at", "fr", "jp")[c] for c in country],
            "history": [tags[: u % 4] for u in user.tolist()],
            "item": [f"item-{a}" for a in item],
            "clicked": (random.random(rows) < 0.2 + 0.4 * (item == (country + 1) % 5)).astype(np.int64),
            "probability": prob[np.arange(rows), item],
        }
    )


def write_orders(frame: pl.DataFrame, folder: Path) -> None:
    """The same impressions with what followed them, when, and a candidate's lists for every request."""
    random = np.random.default_rng(1)
    paid = np.where(frame["clicked"] == 1, random.lognormal(2, 0.5, len(frame)).round(2), 0.0)
    orders = frame.with_columns(
        request=pl.Series([f"r{n}" for n in range(len(frame))]),
        time=pl.Series(np.datetime64("2026-09-01", "us") + np.arange(len(frame)) * np.timedelta64(7200 * 10**6, "us")),
        revenue=pl.Series(paid),
        returned=pl.Series((random.random(len(frame)) < 0.1).astype(int)),
    )
    orders.write_parquet(folder / "orders.parquet")
    lists = [["item-1", "item-2"], ["item-2", "item-3"], ["item-3", "item-1"]]
    best = [lists[("at", "fr", "jp").index(country)] for country in orders["country"]]
    pl.DataFrame({"request": orders["request"], "items": best}).write_parquet(folder / "lists.parquet")
    own = "import numpy as np\n\n\ndef spread(contexts, actions):\n"
    own += "    return np.full((contexts.n_rows, len(actions)), 1 / len(actions))\n"
    (folder / "own.py").write_text(own, encoding="utf-8")


def write_files(folder: Path) -> None:
    """The files that the pages name: a shop's CSV, Parquet with and without propensities, and contexts to decide."""
    frame = some_rows()
    plain = frame.drop("probability")
    plain.drop("history").write_parquet(folder / "impressions.parquet")
    for month, part in enumerate((plain.head(200), plain.tail(200))):
        part.write_parquet(folder / f"impressions-2024-0{month + 1}.parquet")
    frame.drop("history").write_parquet(folder / "recorded.parquet")
    write_orders(plain.drop("history"), folder)
    shop = pl.DataFrame(
        {
            **{f"user_feature_{n}": [f"f{(int(user[1:]) >> n) % 2}" for user in frame["user"]] for n in range(4)},
            "position": [n % 3 + 1 for n in range(len(frame))],
            "item_id": frame["item"].str.slice(5).cast(pl.Int64),
            "click": frame["clicked"],
        }
    )
    shop.write_csv(folder / "impressions.csv")
    write_shop_log(folder / "shop.parquet", rows=1_500, items=12)
    pl.read_parquet(folder / "shop.parquet").head(40).drop("item_id", "click").write_parquet(
        folder / "requests.parquet"
    )
    asked = pl.DataFrame({"request_id": [f"r{n}" for n in range(30)]})
    asked.hstack(shop.drop("item_id", "click").head(30)).write_csv(folder / "contexts.csv")
    asked.hstack(frame.select("user", "country").head(30)).write_parquet(folder / "contexts.parquet")


def commands(block: Block) -> list[list[str]]:
    """The words of each command; lines without a prompt are a continuation."""
    text = block.code.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip()]
    assert all(line.startswith("$ offpolicy ") for line in lines), f"line {block.line}: output goes into ```text"
    return [shlex.split(line.removeprefix("$ offpolicy "), comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_are_marked_by_what_they_are(page: Path) -> None:
    wrong = [block.line for block in blocks(page) if block.language not in RUNS | {"toml", "text"}]
    assert not wrong, f"{page.name}, lines {wrong}: mark blocks as python, console, toml or text"
    fences = re.findall(r"^```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))


def test_the_main_pages_have_blocks_that_run() -> None:
    running = {page.stem for page in PAGES if any(block.language in RUNS for block in blocks(page))}
    assert running >= {"README", "quickstart", "no_propensities", "report", "propensities", "evaluation", "learning"}


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language in RUNS for b in blocks(p))], ids=lambda p: p.stem)
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    said = io.StringIO()
    for block in blocks(page):
        if block.language == "toml":
            tomllib.loads(block.code)
            (tmp_path / block.code.splitlines()[0].removeprefix("# ")).write_text(block.code, encoding="utf-8")
        if block.language == "console":
            for command in commands(block):
                found = run(*command)
                assert found.code == 0, f"{page.name}, line {block.line}: offpolicy {' '.join(command)}\n{found.err}"
                said.write(found.out)
        if block.language == "python":
            with contextlib.redirect_stdout(said):
                exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
        if block.printed:
            lost = missing_lines(block.code, said.getvalue())
            assert not lost, f"{page.name}, line {block.line}: not printed: {lost}\n{said.getvalue()}"


def test_a_line_that_was_not_printed_is_found() -> None:
    said = "┃ policy  ┃ value ┃\n│ uniform │ 0.161 │\nRely on the\nestimate."
    assert missing_lines("policy value\nuniform 0.160\n...\nRely on the estimate.", said) == []
    assert missing_lines("uniform  0.151\nRely on the values.", said) == ["uniform  0.151", "Rely on the values."]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
