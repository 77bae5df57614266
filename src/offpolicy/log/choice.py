"""Which columns of a table are context when nobody says: all that describe the request, and none that came after it.

A column is left out, with the reason in words, where its name or its values say that it is an outcome, a probability,
an id, a time after the decision, a description of the action, or nothing at all. Whoever names it as context gets it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from offpolicy.log.derived import instants
from offpolicy.log.ids import codes_in, distinct_ids
from offpolicy.log.instants import calendar_times
from offpolicy.log.nested import MARK
from offpolicy.log.text import numbers_in

LOOKED_AT = 100_000
"""Rows by which columns are judged; of a longer table every n-th is taken."""
ID_SHARE, ID_ROWS = 0.04, 500
"""Ids with more distinct values than this share of the rows (in tables with as many rows) name rather than describe."""
PERFECT = 0.9
"""Share of the reward's variance explained by a column beyond which it must have come after the reward."""
EACH = 3
"""Rows that each action (or value) must have on average before one is said to follow from the other."""
BINS = 100
FOLLOWED, CHANCE = 0.98, 1e-6
"""Share of the rows with a value of their own that must be rewarded, and how unlikely it must be that all are."""
ROW_NUMBERS = ("", "index", "unnamed: 0", "__index_level_0__", "row", "row_id", "row_number", "event_id", "eventid")
RECORDED, RECORDED_PREFIX = ("request_id", "candidates", "keep_prob"), "decision_"
"""Columns of the record of a served decision, as `offpolicy collect` names them."""
OUTCOMES = [
    "reward",
    "click",
    "clicks",
    "clicked",
    "converted",
    "conversion",
    "conversions",
    "purchase",
    "purchases",
    "purchased",
    "bought",
    "order",
    "ordered",
    "sale",
    "sales",
    "revenue",
    "gmv",
    "profit",
    "margin",
    "returns",
    "returned",
    "refund",
    "refunded",
    "rating",
    "label",
    "outcome",
    "target",
    "dwell",
    "watch",
    "watched",
    "watchtime",
    "completed",
    "completion",
    "liked",
    "like",
    "likes",
    "shared",
    "skipped",
    "bounce",
    "bounced",
    "churned",
    "cost",
    "response",
    "feedback",
]
FILLERS = {
    "is",
    "was",
    "has",
    "did",
    "n",
    "num",
    "total",
    "seconds",
    "sec",
    "ms",
    "time",
    "value",
    "amount",
    "flag",
    "eur",
    "usd",
}
"""Words beside which the name of an outcome still is one."""
PROBABILITIES = ("propensity", "pscore", "propensities", "probability", "prob", "probs", "logprob")
IDS = ("id", "ids", "uuid", "guid", "key", "hash", "token", "cookie")
AFTER = (
    "updated",
    "modified",
    "ingested",
    "processed",
    "loaded",
    "inserted",
    "delivered",
    "shipped",
    "closed",
    "expired",
)


GIVEN_AWAY = "it gives the action away: each of its values was seen with one action only"


@dataclass(frozen=True)
class Choice:
    """The context columns, why each other column is none of them, and what is suspicious about those that are."""

    context: tuple[str, ...]
    left_out: Mapping[str, str]
    suspicious: Mapping[str, str]


@dataclass(frozen=True)
class Known:
    """Columns whose role is known, as the others are compared with them; None where there is none."""

    action: pl.Series | None
    reward: pl.Series | None
    timestamp: pl.Series | None


def choose_context(series: Mapping[str, pl.Series], known: Known, excluded: Iterable[str] = ()) -> Choice:
    """Judge every column that has no role by its name and its values."""
    asked = set(excluded)
    left_out = {name: "as asked" for name in series if name in asked}
    left_out |= {name: why for name in series if name not in asked and (why := unfit(name, series[name], known))}
    rest = {name: values for name, values in series.items() if name not in left_out}
    suspicious = leaks(rest, known)
    # A deterministic logger, too, is given away by what it looks at: that column must stay.
    left_out |= {name: why for name, why in suspicious.items() if why != GIVEN_AWAY}
    kept = tuple(name for name in series if name not in left_out)
    return Choice(kept, left_out, {name: why for name, why in suspicious.items() if name in kept})


def unfit(name: str, values: pl.Series, known: Known) -> str | None:
    """Why a column cannot describe the request, if it cannot."""
    *holders, field = name.split(MARK)
    words = re.findall(r"[^\W_]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", field).lower()) or [""]
    if name.lower().strip() in ROW_NUMBERS:
        return "a row number"
    if name in RECORDED or name.startswith(RECORDED_PREFIX):
        return "the record of a decision"
    if values.null_count() == len(values):
        return "it holds no value"
    if not _readable(values.dtype):
        return f"it holds {values.dtype}, which is no feature"
    if set(map(str.lower, holders)) & set(OUTCOMES):
        return f"it looks like an outcome, as a field of {MARK.join(holders)}"
    if instants(values) is not None:
        if set(words) & {*OUTCOMES, *AFTER} or _is_later(values, known.timestamp):
            return "a time after the decision"
        return None
    if set(words) & set(PROBABILITIES):
        return "it looks like a probability, by its name"
    if set(words) - FILLERS and set(words) - FILLERS <= set(OUTCOMES):
        return "it looks like an outcome, by its name"
    distinct = _distinct(values)
    if distinct is not None and len(values) >= ID_ROWS and distinct > ID_SHARE * len(values):
        instant = None if set(words) & set(IDS) else _as_instants(values)
        if instant is not None:
            return f"times as numbers, such as {instant} UTC; name it with --timestamp if that is when it was decided"
        use = "; name it with --cluster if it is the unit of independence" if distinct < 0.5 * len(values) else ""
        return f"an id: {distinct:,} different values in {len(values):,} rows{use}"
    if words[-1] in IDS and words[0] in (
        "request",
        "session",
        "impression",
        "slate",
        "visit",
        "query",
        "trace",
        "event",
    ):
        return "an id, by its name"
    return None


def leaks(series: Mapping[str, pl.Series], known: Known) -> dict[str, str]:
    """Columns that give the reward or the action away, and those that only describe the action."""
    found: dict[str, str] = {}
    rows = _looked_at(next(iter(series.values()), pl.Series([])))
    action = None if known.action is None else _codes(known.action.gather(rows))
    reward = None if known.reward is None else _numbers(known.reward.gather(rows))
    for name, values in series.items():
        some = values.gather(rows)
        if some.dtype.is_nested() or some.n_unique() < 2:
            continue
        why = _leak(_codes(some), some, action, reward)
        if why is not None:
            found[name] = why
    return found


def _leak(
    codes: npt.NDArray[np.int64], values: pl.Series, action: npt.NDArray[np.int64] | None, reward: pl.Series | None
) -> str | None:
    n_values = int(codes.max()) + 1
    if action is not None and action.max() > 0:
        n_actions = int(action.max()) + 1
        pairs = len(np.unique(codes * n_actions + action))
        if pairs == n_actions and len(codes) >= EACH * n_actions:
            return "it describes the action: each action was seen with one value only (a column for --actions)"
        if pairs == n_values and len(codes) >= EACH * n_values:
            return GIVEN_AWAY
    if reward is not None:
        share = _explained(_binned(codes, values), reward.to_numpy())
        if share > PERFECT:
            return f"it predicts the reward almost perfectly ({share:.0%} of its variance): it came after the reward"
        said = _always_rewarded(codes, values, reward.to_numpy())
        if said is not None:
            return f"{said}: it came after the reward"
    return None


def _always_rewarded(codes: npt.NDArray[np.int64], values: pl.Series, reward: npt.NDArray[np.float64]) -> str | None:
    """Whether the rows in which a column is not what it mostly is are rewarded: a price is 0 unless somebody bought."""
    known = np.isfinite(reward)
    each, first, count = np.unique(codes, return_index=True, return_counts=True)
    most = int(count.argmax())
    other = known & (codes != each[most]) & values.is_not_null().to_numpy()
    if 2 * count[most] < len(codes) or not other.any():
        return None
    rewarded = reward > reward[known].min()
    share, overall = rewarded[other].mean(), rewarded[known].mean()
    if share < FOLLOWED or overall == 0 or other.sum() * np.log(overall) > np.log(CHANCE):
        return None
    usual = "null" if values[int(first[most])] is None else repr(values[int(first[most])])
    return f"{share:.1%} of the rows in which it is not {usual} have a reward, and {overall:.1%} of all"


def _explained(group: npt.NDArray[np.int64], reward: npt.NDArray[np.float64]) -> float:
    """The share of the variance between groups, corrected for their number, over rows whose reward is known."""
    there = np.isfinite(reward)
    group, reward = group[there], reward[there]
    _, group = np.unique(group, return_inverse=True)
    n, k = len(reward), int(group.max(initial=-1)) + 1
    if n <= k + 1 or k < 2 or reward.var() == 0:
        return 0.0
    size = np.bincount(group)
    between = np.bincount(group, reward) ** 2 / size
    within = (reward**2).sum() - between.sum()
    return float(1 - (within / (n - k)) / (((reward - reward.mean()) ** 2).sum() / (n - 1)))


def _binned(codes: npt.NDArray[np.int64], values: pl.Series) -> npt.NDArray[np.int64]:
    """Numbers in bins of about equal size (missing ones in a bin of their own), anything else as it is coded."""
    numeric = values.dtype.is_numeric() or values.dtype.is_temporal()
    if not numeric or int(codes.max()) < BINS:
        return codes
    plain = np.asarray(values.to_physical().cast(pl.Float64).fill_null(np.nan).to_numpy())
    finite = np.isfinite(plain)
    edges = np.unique(np.quantile(plain[finite], np.linspace(0, 1, BINS + 1)))
    return np.where(finite, np.searchsorted(edges, plain, side="right"), -1) + 1


def _looked_at(series: pl.Series) -> pl.Series:
    return pl.Series(np.arange(0, len(series), max(1, -(-len(series) // LOOKED_AT))))


def _codes(values: pl.Series) -> npt.NDArray[np.int64]:
    """Codes 0..n-1 that are equal where the values are."""
    plain = values if values.dtype in (pl.String, pl.Int64) else values.rank("dense").fill_null(0).cast(pl.Int64)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Boolean):
        plain = values.cast(pl.String)
    return codes_in(plain, distinct_ids(plain)).astype(np.int64)


def _numbers(values: pl.Series) -> pl.Series:
    dtype = values.dtype
    plain = numbers_in(values) if dtype == pl.String else values
    usable = plain.dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)
    return plain.cast(pl.Float64, strict=False).fill_null(np.nan) if usable else pl.Series([np.nan] * len(values))


def _as_instants(values: pl.Series) -> str | None:
    """The first of the instants that integers are, going by their size."""
    whole = values.cast(pl.Int64, strict=False).drop_nulls()
    if len(whole) + values.null_count() < len(values):
        return None
    times = calendar_times(whole.to_numpy())
    return None if times is None else str(times[0].astype("datetime64[s]")).replace("T", " ")


def _distinct(values: pl.Series) -> int | None:
    """The number of different ids; None for a column of quantities or lists."""
    dtype = values.dtype
    if dtype == pl.String and values.cast(pl.Float64, strict=False).null_count() == values.null_count():
        whole = values.cast(pl.Int64, strict=False)
        return whole.n_unique() if whole.null_count() == values.null_count() else None
    return values.n_unique() if dtype.is_integer() or dtype in (pl.String, pl.Categorical) else None


def _readable(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List | pl.Array):
        inner = dtype.inner
        return isinstance(inner, pl.DataType) and not inner.is_nested() and _readable(inner)
    return dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)


def _is_later(values: pl.Series, timestamp: pl.Series | None) -> bool:
    """Whether it is never before the timestamp and mostly after it."""
    start = None if timestamp is None else instants(timestamp, utc=True)
    when = instants(values, utc=True)
    if start is None or when is None:
        return False
    late = (when - start).drop_nulls().dt.total_microseconds()
    return len(late) > 0 and bool((late >= 0).all()) and 2 * int((late > 0).sum()) > len(late)
