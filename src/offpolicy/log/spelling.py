"""How CSV files spell numbers, dates and missing values: 1.234,56 and 12 €, 31.12.2025, NA; columns made plain.

What a column holds is a matter of all its values: it is rewritten only where every one of them follows one spelling,
and whoever asks is told. Ids are never rewritten; words for missing values among whole ones are null all the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

NOTHING = ("", "na", "n/a", "#n/a", "null", "none", "nil", "nat", "-", "--", "?", "\\n")
"""Words for a missing value, in a column whose other values are numbers or dates."""
UNITS = r"[€$£¥₹%]|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|BRL|CAD|AUD"
FIRST = 200  # values that refute most spellings before all are looked at
IDS = "id"
"""The kind of columns that hold ids by their role."""
WHOLE = r"^-?[0-9]+$"
GROUPS = r"['’ \u00a0\u202f]"
CLOCK = r"(?:[ T]+([0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?))?$"
NUMBERS = {
    "plain": r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$",
    "point": rf"^[+-]?[0-9]{{1,3}}(?:(?:,|{GROUPS})[0-9]{{3}})*(?:\.[0-9]+)?$|^[+-]?[0-9]+(?:\.[0-9]+)?$",
    "comma": rf"^[+-]?[0-9]{{1,3}}(?:(?:\.|{GROUPS})[0-9]{{3}})*(?:,[0-9]+)?$|^[+-]?[0-9]+(?:,[0-9]+)?$",
}
DATES = {
    "day first": (rf"^([0-9]{{1,2}})[./-]([0-9]{{1,2}})[./-]([0-9]{{4}}){CLOCK}", (3, 2, 1)),
    "month first": (rf"^([0-9]{{1,2}})[/-]([0-9]{{1,2}})[/-]([0-9]{{4}}){CLOCK}", (3, 1, 2)),
    "year first": (rf"^([0-9]{{4}})[./]([0-9]{{1,2}})[./]([0-9]{{1,2}}){CLOCK}", (1, 2, 3)),
}


@dataclass
class Spelling:
    """The spellings that all values of a column follow, as far as they were seen."""

    mark: str
    """What separates the fields: where it is a comma it is no decimal mark, and where a semicolon that is why."""
    ids: bool = False
    alive: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=set)
    present: bool = False
    marked: bool = False
    """Whether some value has a decimal mark or thousands in a way that ids have not."""
    unitless: bool = False

    def __post_init__(self) -> None:
        """Begin with every spelling that the file may have."""
        excluded = {",": "comma", ";": "point"}.get(self.mark)
        self.alive = ["plain"] if self.ids else [one for one in (*NUMBERS, *DATES) if one != excluded]

    def see(self, text: pl.Series) -> None:
        """Take in some of the values."""
        for some in (text.head(FIRST), text):
            if not self.alive or some.dtype != pl.String:
                return
            self._see(some.drop_nulls())

    def _see(self, text: pl.Series) -> None:
        whole = text.str.contains(WHOLE)
        if whole.any():
            self.present, self.unitless = True, True
            self.alive = [one for one in self.alive if one in NUMBERS]
        odd = text.filter(~whole).unique()
        bare = odd.str.strip_chars()
        word = bare.str.to_lowercase().is_in(NOTHING)
        self.words |= set(bare.filter(word))
        bare = bare.filter(~word)
        if not len(bare):
            return
        self.present = True
        if self.ids:
            self.alive = []
            return
        number, unit = _without_unit(bare)
        self.units |= set(unit.drop_nulls())
        self.unitless |= unit.null_count() > 0
        self.marked |= bool(number.str.contains(rf"[0-9],[0-9]|{GROUPS}[0-9]{{3}}\.[0-9]").any())
        self.alive = [
            one for one in self.alive if (_are_dates(bare, one) if one in DATES else _are_numbers(number, one))
        ]

    @property
    def style(self) -> str | None:
        """The spelling to rewrite; None where the column is plain, or follows none."""
        if not self.present or len(self.units) > 1 or (self.units == {"%"} and self.unitless):
            return None
        if "plain" in self.alive:
            return "plain" if self.words or self.units else None
        return self.alive[0] if len(self.alive) == 1 and (self.alive[0] in DATES or self.marked or self.units) else None

    def plain(self, text: pl.Series) -> pl.Series:
        """Values of the column, rewritten."""
        style = self.style
        if style is None or text.dtype != pl.String:
            return text
        bare = text.str.strip_chars()
        there = ~bare.str.to_lowercase().is_in(NOTHING)
        if style in DATES:
            made = _iso(bare, style)
        elif style == "plain" and not self.units:
            made = bare
        else:
            made = _quantity(_without_unit(bare)[0], style)
        return pl.select(pl.when(there).then(made).alias(text.name)).to_series()

    @property
    def note(self) -> str | None:
        """How the column was read, in words, where it was rewritten; or why a column of dates was not."""
        if self.present and self.alive == ["day first", "month first"]:
            return "dates in which day and month cannot be told apart, left as text (write them like 2026-01-31)"
        if self.present and self.alive == ["point", "comma"] and self.marked:
            return "numbers in which commas may be decimal or between thousands, left as text (write them like 1234.5)"
        style = self.style
        if style is None:
            return None
        unit = "".join(f" in {unit}" for unit in self.units)
        said = [f"read as {_AS.get(style, f'dates with the {style}')}{unit}"] if style != "plain" or unit else []
        said += [f"{', '.join(map(repr, sorted(self.words)))} read as missing"] if self.words else []
        return "; ".join(said)


_AS = {"plain": "numbers", "comma": "numbers with a decimal comma", "point": "numbers with commas between thousands"}


def _without_unit(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Numbers and the units beside them; null where there is none."""
    unit = text.str.extract(rf"({UNITS})")
    if unit.null_count() == len(text):
        return text, unit
    before = text.str.replace(rf"^([+-]?)\s*(?:{UNITS})\s*", "$1")
    return before.str.replace(rf"\s*(?:{UNITS})$", ""), unit


def _are_numbers(text: pl.Series, style: str) -> bool:
    return bool(text.str.contains(NUMBERS[style]).all())


def _are_dates(text: pl.Series, style: str) -> bool:
    if not text.str.contains(DATES[style][0]).all():
        return False
    return _iso(text, style).str.head(10).str.to_date(strict=False).null_count() == 0


def _iso(text: pl.Series, style: str) -> pl.Series:
    pattern, (year, month, day) = DATES[style]
    date = [text.str.extract(pattern, group) for group in (year, month, day)]
    clock = text.str.extract(pattern, 4)
    padded = pl.select(pl.when(clock.str.count_matches(":") == 1).then(clock + ":00").otherwise(clock)).to_series()
    padded = (" " + padded.str.replace(r"^([0-9]):", "0$1:")).fill_null("")
    return date[0] + "-" + date[1].str.zfill(2) + "-" + date[2].str.zfill(2) + padded


def _quantity(text: pl.Series, style: str) -> pl.Series:
    """Numbers as programs write them, with a point in each: what is counted in groups or euros is no id."""
    plain = text.str.replace_all(rf"\.|{GROUPS}" if style == "comma" else rf",|{GROUPS}", "")
    plain = plain.str.replace(",", ".", literal=True)
    return pl.select(pl.when(plain.str.contains(r"[.eE]")).then(plain).otherwise(plain + ".0")).to_series()


def spellings(columns: Iterable[str], mark: str, kinds: Mapping[str, str]) -> dict[str, Spelling]:
    """An empty spelling for every column that may be rewritten: none whose kind was declared, but for numbers."""
    own = {name: kinds.get(name, "numeric") for name in columns}
    return {name: Spelling(mark, ids=kind == IDS) for name, kind in own.items() if kind in ("numeric", IDS)}


def with_ids(kinds: Mapping[str, str], ids: Iterable[str | None], lists: Iterable[str | None]) -> dict[str, str]:
    """The declared kinds, with those of columns that hold ids or lists by their role."""
    roles = dict.fromkeys(filter(None, ids), IDS) | dict.fromkeys(filter(None, lists), "bag")
    return roles | dict(kinds)


def plainly(frame: pl.DataFrame, mark: str, kinds: Mapping[str, str]) -> tuple[pl.DataFrame, dict[str, str]]:
    """All rows of a CSV file written plainly, and how columns were read that were not."""
    found = spellings(frame.columns, mark, kinds)
    for name, one in found.items():
        one.see(frame[name])
    return rewritten(frame, found), notes_on(found)


def rewritten(frame: pl.DataFrame, found: Mapping[str, Spelling]) -> pl.DataFrame:
    """The columns of a frame written plainly."""
    return frame.with_columns([one.plain(frame[name]) for name, one in found.items() if name in frame.columns])


def notes_on(found: Mapping[str, Spelling]) -> dict[str, str]:
    """How columns were read, where they were not plain."""
    return {name: note for name, one in found.items() if (note := one.note) is not None}
