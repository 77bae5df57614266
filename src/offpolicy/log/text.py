"""Typing of values that arrive as text: booleans, integers, numbers, ids whose spelling matters, written-out lists."""

import polars as pl

from offpolicy.errors import Fix, LogError
from offpolicy.log.features import Kind
from offpolicy.log.origin import Origin

MARKS = "|;,"
FLAGS = ("true", "false")
WORDS = {"true": 1.0, "t": 1.0, "yes": 1.0, "y": 1.0, "false": 0.0, "f": 0.0, "no": 0.0, "n": 0.0}
"""How exports of databases and frames write a flag where a number is wanted."""
MOSTLY = 0.5  # from this share of numbers on, a value that is no number is taken for a mistake


def typed_text(column: str, text: pl.Series, kind: Kind | None, origin: Origin) -> pl.Series:
    """Integers where every value is a plainly written one; else numbers or booleans; else the text as it stands.

    "007" is not plainly written, so a column that holds it keeps its spelling. A column of mostly numbers with
    something else between them is an error unless it is declared categorical. True and false are booleans, as they are
    in a Parquet file of the same log.
    """
    if origin.typed or text.dtype != pl.String:
        return text
    if text.null_count() < len(text) and are_flags(text):
        return flags(text)
    whole = text.cast(pl.Int64, strict=False)
    if (whole.cast(pl.String).eq_missing(text)).all():
        return whole
    if kind == "categorical":
        return text
    number = text.str.strip_chars().cast(pl.Float64, strict=False)
    odd = number.is_null() & text.is_not_null()
    if odd.any():
        check_not_mixed(column, text, odd, origin)
        return text
    return text if has_spelled_ids(text) else number


def are_flags(text: pl.Series) -> bool:
    """Whether every value is true or false, however capitalised; the first one decides for most columns."""
    first = text.drop_nulls().head(1).str.to_lowercase()
    return first.is_in(FLAGS).all() and text.drop_nulls().str.to_lowercase().is_in(FLAGS).all()


def flags(text: pl.Series) -> pl.Series:
    """Text that holds true and false as booleans."""
    return text.str.to_lowercase() == "true"


def numbers_in(text: pl.Series) -> pl.Series:
    """Numbers written as text, or a column of flags in words as 1 and 0; null where a value is none."""
    bare = text.str.strip_chars()
    number = bare.cast(pl.Float64, strict=False)
    if number.null_count() < len(text):
        return number
    return bare.str.to_lowercase().replace_strict(WORDS, default=None, return_dtype=pl.Float64)


def check_not_mixed(column: str, text: pl.Series, odd: pl.Series, origin: Origin) -> None:
    """Refuse a column in which most values are numbers and some (`odd`) are not."""
    present = len(text) - text.null_count()
    n_odd = int(odd.sum())
    if not n_odd or present - n_odd < MOSTLY * present:
        return
    raise mixed_text(column, text, odd, origin)


def mixed_text(column: str, text: pl.Series, odd: pl.Series, origin: Origin) -> LogError:
    """The error of a column of numbers with something else between them."""
    row = odd.arg_max() or 0
    fix = Fix("kind", f"{column}=categorical", "if these are ids, or fix the value")
    return origin.bad_value(column, row, text[row], "mixes numbers with other text", fix=fix)


def has_spelled_ids(text: pl.Series) -> bool:
    """Whether some value is an id rather than a quantity: "007", or an integer that no float would hold exactly."""
    return bool(text.str.contains(r"^-?(0[0-9]|[0-9]{16,}$)").any())


def split_text(text: pl.Series, mark: str | None = None) -> pl.Series:
    """Lists written as text: "[1, 5, 9]", "1 5 9", "a|b|c" or "a;b".

    One separator holds for the whole column: the first of | ; , that occurs in it, otherwise white space.
    `mark` says which, "" standing for white space.
    """
    bare = text.str.strip_chars(" \t[](){}")
    if mark is None:
        found = marks_in(text)
        mark = next((one for one in MARKS if one in found), "")
    if not mark:
        return bare.str.extract_all(r"\S+").list.eval(pl.element().str.strip_chars("'\""))
    items = bare.str.split(mark).list.eval(pl.element().str.strip_chars(" \t'\""))
    return items.list.eval(pl.element().filter(pl.element() != ""))


def marks_in(text: pl.Series) -> set[str]:
    """The separators that occur in lists written as text."""
    bare = text.str.strip_chars(" \t[](){}")
    return {mark for mark in MARKS if bare.str.contains(mark, literal=True).any()}
