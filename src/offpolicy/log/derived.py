"""Columns made of other columns: the parts of a date, and whether a value is missing.

A derived column is called by its source and its part, as in `signup:weekday`, so that whoever holds the source, a log
or a file of contexts to be served, can make it again: nothing else has to be remembered. A column of that very name
in the file itself wins.
"""

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

MARK = ":"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LOOKS_LIKE_DATE = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
OFFSET = r":\d\d(?:\.\d+)?([+-])(\d\d):?(\d\d)$"
LOOKED_AT = 200  # values of a text column that are tried before all are
LARGEST = 1e100  # exporters write larger numbers where there is none; their squares could not be computed
MICROSECONDS_A_DAY = 86_400_000_000


def derived(source: str, part: str) -> str:
    """The name of a derived column."""
    return f"{source}{MARK}{part}"


def source_of(column: str) -> str:
    """The column that a derived column is made of; any other column itself."""
    source, mark, part = column.rpartition(MARK)
    return source if mark and source and part in PARTS else column


def sources(columns: Iterable[str], known: Iterable[str]) -> list[str]:
    """The columns to read so that these can be had, once each: themselves where known, else what they are made of."""
    names = set(known)
    return list(dict.fromkeys(name if name in names else source_of(name) for name in columns))


def with_derived(columns: Sequence[str], series: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
    """These columns, the derived ones made of their sources."""
    made = {}
    for name in columns:
        source = source_of(name)
        made[name] = series[name] if name in series else PARTS[name[len(source) + 1 :]](series[source]).alias(name)
    return made


def instants(series: pl.Series, *, utc: bool = False) -> pl.Series | None:
    """Dates and times as `Datetime("us")`, also those written as text; None where it holds none.

    They are those of the clock on the wall, as weekdays and hours are, or with `utc` those that can be compared.
    """
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        there = series.dt.convert_time_zone("UTC") if utc else series
        return there.dt.replace_time_zone(None).cast(pl.Datetime("us"))
    if dtype == pl.Datetime or dtype == pl.Date:
        return series.cast(pl.Datetime("us"))
    if dtype != pl.String:
        return None
    some = series.drop_nulls().head(LOOKED_AT)
    if not len(some) or not some.str.contains(LOOKS_LIKE_DATE).all():
        return None
    plain = series.str.replace("T", " ", literal=True).str.replace(r"(Z|[+-]\d\d:?\d\d)$", "")
    padded = pl.select(pl.when(plain.str.len_chars() == 10).then(plain + " 00:00:00").otherwise(plain)).to_series()
    parsed = padded.str.to_datetime(time_unit="us", strict=False)
    if parsed.null_count() > series.null_count():
        return None
    return parsed - _offset(series) if utc else parsed


def _offset(text: pl.Series) -> pl.Series:
    """How far the clocks of times written as text are ahead of UTC."""
    hours, minutes = (text.str.extract(OFFSET, group).cast(pl.Int64).fill_null(0) for group in (2, 3))
    ahead = pl.select(pl.when(text.str.extract(OFFSET, 1) == "-").then(-1).otherwise(1)).to_series()
    return (ahead * (60 * hours + minutes) * 60_000_000).cast(pl.Duration("us"))


def parts_of(series: pl.Series) -> tuple[str, ...]:
    """The parts that stand for a column of dates (weekday, days), of dates with times (hour too) or of times of day."""
    if series.dtype == pl.Time:
        return ("hour",)
    times = instants(series)
    if times is None:
        return ()
    midnight = bool((times.to_physical() % MICROSECONDS_A_DAY == 0).all())
    return ("weekday", "days") if midnight else ("weekday", "hour", "days")


def _weekday(series: pl.Series) -> pl.Series:
    names = pl.Series(WEEKDAYS)
    return names.gather(_instants(series).dt.weekday().cast(pl.Int64) - 1)


def _hour(series: pl.Series) -> pl.Series:
    hour = series.dt.hour() if series.dtype == pl.Time else _instants(series).dt.hour()
    return hour.cast(pl.String).str.zfill(2) + "h"


def _days(series: pl.Series) -> pl.Series:
    return (_instants(series).to_physical() // MICROSECONDS_A_DAY).cast(pl.Float64)


def _missing(series: pl.Series) -> pl.Series:
    absent = missing(series)
    return pl.select(pl.when(absent).then(pl.lit("missing")).otherwise(pl.lit("present"))).to_series()


def _instants(series: pl.Series) -> pl.Series:
    times = instants(series)
    return pl.repeat(None, len(series), dtype=pl.Datetime("us"), eager=True) if times is None else times


def missing(series: pl.Series) -> pl.Series:
    """Where a value is missing: null, a number that is not finite or beyond ±1e100, or a vector that holds either."""
    dtype = series.dtype
    if isinstance(dtype, pl.Array) and _is_float(dtype.inner):
        flat = missing(series.explode()).to_numpy().reshape(len(series), dtype.shape[0])
        return pl.Series(flat.any(axis=1))
    absent = series.is_null()
    if dtype.is_float():
        return absent | ~(series.cast(pl.Float64).abs() <= LARGEST).fill_null(False)
    if dtype == pl.String:
        return absent | series.str.to_lowercase().is_in(["nan", "inf", "-inf"]).fill_null(False)
    return absent


def _is_float(dtype: object) -> bool:
    return isinstance(dtype, pl.DataType) and dtype.is_float()


PARTS = {"weekday": _weekday, "hour": _hour, "days": _days, "missing": _missing}
