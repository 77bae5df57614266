"""Times in the calendar: what the integers of a log's timestamps say, and dates as users write them."""

from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from offpolicy.errors import ParameterError

Instants = npt.NDArray[np.datetime64]

UNITS = ((1, 1_000_000), (1_000, 1_000), (1_000_000, 1), (1_000_000_000, None))
"""Ticks in a second, and the microseconds of a tick (None: less than one)."""
EARLIEST, LATEST = 631_152_000, 4_102_444_800
"""Seconds from 1970 to 1990 and to 2100: integers between them, in some unit, are dates."""


def calendar_times(timestamp: npt.NDArray[np.int64]) -> Instants | None:
    """Seconds, milli-, micro- or nanoseconds since 1970, told apart by their size; None for any other integers."""
    low, high = int(timestamp.min()), int(timestamp.max())
    for ticks, micro in UNITS:
        if EARLIEST * ticks <= low and high <= LATEST * ticks:
            values = timestamp // 1_000 if micro is None else timestamp * micro
            return values.astype("datetime64[us]")
    return None


def instant(text: str, option: str) -> np.datetime64:
    """A date or a time as a user writes it, in UTC unless it says otherwise."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ParameterError(f"{option} takes a date or a time such as 2026-10-01, but it is {text!r}.") from None
    plain = when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(plain, "us")
