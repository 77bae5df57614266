"""Vowpal Wabbit's logs, DSJSON and `cb` text, as one table: a row a decision, with its candidates where it has some.

`reward` is −cost. Features of a decision become columns named `namespace.feature`: numbers (0 where a row lacks them,
as Vowpal Wabbit reads it), text, or bags of names where a row may hold several. An action is called by its tag or id
where it has one, else by its features, else by its place in the list. What is the same wherever an action is on offer
describes the action; what varies describes the candidate.
"""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import polars as pl

from offpolicy.errors import LogError
from offpolicy.log.formats.vowpal_json import dsjson_decisions
from offpolicy.log.formats.vowpal_rows import Decision, Row, described
from offpolicy.log.formats.vowpal_text import text_decisions

VowpalFormat: TypeAlias = Literal["dsjson", "cb"]

SUFFIXES: dict[str, VowpalFormat] = {".dsjson": "dsjson", ".vw": "cb", ".cb": "cb"}
ROLES = ("action", "reward", "propensity", "timestamp", "candidates", "keep_prob")
MOST_COLUMNS = 5_000
LABEL = re.compile(r"\d+:[^:\s|]+:[^:\s|]+")
DSJSON_KEYS = (b'"_label_cost"', b'"_labelIndex"', b'"_label_probability"')
OFFERED_TWICE = 2
"""Candidates without a name are called by their features where these recur so often on average, else by their place."""


@dataclass(frozen=True)
class VowpalLog:
    """The decisions of some files as a table."""

    frame: pl.DataFrame
    """A row a decision: action, reward, propensity, timestamp, candidates, keep_prob (where there are), features."""
    parts: tuple[int, ...]
    """How many of the rows each file holds."""
    candidate_features: tuple[str, ...] = ()
    """Columns of lists, one value for each candidate."""
    actions: pl.DataFrame | None = None
    """All actions by their id and their own features; None where there are no candidates."""
    notes: tuple[str, ...] = ()
    """What was skipped, and how often."""

    @property
    def context(self) -> tuple[str, ...]:
        """The columns that describe the decision."""
        return tuple(name for name in self.frame.columns if name not in (*ROLES, *self.candidate_features))

    @property
    def roles(self) -> dict[str, str]:
        """The columns of other roles, by role."""
        return {name: name for name in ROLES if name in self.frame.columns}


def vowpal_format(path: Path, head: bytes) -> VowpalFormat | None:
    """Which of the two formats a file has, by its suffix or its first bytes; None for anything else."""
    suffixes = path.suffixes[:-1] if path.suffix == ".gz" else path.suffixes
    by_name = SUFFIXES.get(suffixes[-1].lower()) if suffixes else None
    if by_name is not None:
        return by_name
    start = head.lstrip()
    if start.startswith(b"{"):
        return "dsjson" if any(key in start for key in DSJSON_KEYS) else None
    first = start.splitlines()[0].decode(errors="replace") if start else ""
    label = first.partition("|")[0].split()
    labelled = any(LABEL.fullmatch(token) for token in label) or label[:1] == ["shared"]
    return "cb" if "|" in first and labelled else None


def vowpal_frame(path: Path, form: VowpalFormat) -> pl.DataFrame:
    """All decisions of a file, one row each."""
    return vowpal_log([path], form).frame


def vowpal_log(paths: Sequence[Path], form: VowpalFormat) -> VowpalLog:
    """All decisions of some files."""
    stamps = []
    for path in paths:
        try:
            stamp = path.stat()
        except OSError as error:
            raise LogError(f"{path} cannot be read ({error}). Fix or rewrite the file.") from None
        stamps.append((stamp.st_mtime_ns, stamp.st_size))
    return _parsed(tuple(paths), form, tuple(stamps))


@lru_cache(maxsize=1)  # the names of the columns and then the columns are asked for
def _parsed(paths: tuple[Path, ...], form: VowpalFormat, stamps: tuple[tuple[int, int], ...]) -> VowpalLog:
    decisions: list[Decision] = []
    parts: list[int] = []
    skipped: Counter[str] = Counter()
    for path in paths:
        before = len(decisions)
        try:
            with _opened(path) as lines:
                read = dsjson_decisions if form == "dsjson" else text_decisions
                decisions += read(path, lines, skipped)
        except (OSError, EOFError, zlib.error) as error:
            raise LogError(f"{path} cannot be read ({error}). Fix or rewrite the file.") from None
        parts.append(len(decisions) - before)
    notes = tuple(f"skipped: {count:,} {what}" for what, count in skipped.items())
    named = str(paths[0]) if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
    if not decisions:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise LogError(
            f"{named} holds no labelled decision{why}. A log needs rows with an action, a cost and a probability."
        )
    return _Columns(named, decisions).log(tuple(parts), notes)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


@dataclass
class _Columns:
    """Decisions on their way to columns."""

    path: str
    decisions: Sequence[Decision]
    ids: list[list[str]] = field(init=False)
    """The name of every candidate of every decision."""

    def __post_init__(self) -> None:
        with_sets = [one.candidates is not None for one in self.decisions]
        if any(with_sets) and not all(with_sets):
            lines = self.decisions[with_sets.index(False)].line
            raise LogError(
                f"{self.path}: line {lines} lists no candidates, but others do. Put those lines into another file."
            )
        self.ids = self._named() if all(with_sets) else [[one.action] for one in self.decisions]

    def _named(self) -> list[list[str]]:
        """Tags and ids; else features, if they recur; else places. Names that occur twice in a set get a number."""
        unnamed = [described(one.features) for d in self.decisions for one in d.candidates or () if one.name is None]
        by_features = len(unnamed) >= OFFERED_TWICE * len(set(unnamed)) or len(unnamed) <= MOST_COLUMNS
        names = []
        for decision in self.decisions:
            own: list[str] = []
            seen: Counter[str] = Counter()
            for place, one in enumerate(decision.candidates or ()):
                name = one.name
                if name is None:
                    name = (described(one.features) if by_features else "") or str(place + 1)
                seen[name] += 1
                own.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
            names.append(own)
        return names

    def log(self, parts: tuple[int, ...], notes: tuple[str, ...]) -> VowpalLog:
        decisions = self.decisions
        chosen = [
            ids[0 if one.candidates is None else one.chosen] for ids, one in zip(self.ids, decisions, strict=True)
        ]
        whole = all(_is_whole(one) for ids in self.ids for one in ids)
        columns = [pl.Series("action", [int(i) for i in chosen] if whole else chosen)]
        columns.append(pl.Series("reward", [one.reward + 0.0 for one in decisions], pl.Float64))
        probs = [one.propensity for one in decisions]
        if any(prob is not None for prob in probs):
            columns.append(pl.Series("propensity", probs, pl.Float64))
        if all(one.timestamp is not None for one in decisions):
            columns.append(_instants([one.timestamp or "" for one in decisions]))
        if any(one.keep_prob != 1 for one in decisions):
            columns.append(pl.Series("keep_prob", [one.keep_prob for one in decisions], pl.Float64))
        columns += self._shared()
        if decisions[0].candidates is None:
            return VowpalLog(pl.DataFrame(columns), parts, notes=notes)
        lists = [[int(i) for i in ids] if whole else ids for ids in self.ids]
        columns.append(pl.Series("candidates", lists))
        varying, actions = self._of_candidates({series.name for series in columns}, whole)
        frame = pl.DataFrame([*columns, *varying])
        return VowpalLog(frame, parts, tuple(series.name for series in varying), actions, notes)

    def _shared(self) -> list[pl.Series]:
        rows = [apart_from_roles(one.shared) for one in self.decisions]
        names = list(dict.fromkeys(name for row in rows for name in row))
        self._check_number(names)
        if not names:
            return [pl.Series("constant", [1.0] * len(rows))]
        return [_feature(name, [row.get(name) for row in rows]) for name in names]

    def _of_candidates(self, taken: set[str], whole: bool) -> tuple[list[pl.Series], pl.DataFrame]:
        """Columns of lists for what varies, and the actions with what is the same wherever they are on offer."""
        rows = [[apart_from_roles(one.features) for one in d.candidates or ()] for d in self.decisions]
        names = list(dict.fromkeys(name for row in rows for one in row for name in one))
        self._check_number(names)
        ids = sorted({one for own in self.ids for one in own}, key=int if whole else str)
        table = [pl.Series("action", [int(i) for i in ids] if whole else ids)]
        varying = []
        for name in names:
            values = [[one.get(name) for one in row] for row in rows]
            known: dict[str, Any] = {}
            pairs = ((i, v) for own, row in zip(self.ids, values, strict=True) for i, v in zip(own, row, strict=True))
            if all(known.setdefault(i, v) == v for i, v in pairs):
                table.append(_feature(name, [known[i] for i in ids]))
                continue
            flat = _feature(name if name not in taken else f"candidate.{name}", [v for row in values for v in row])
            varying.append(_in_lists(flat, [len(row) for row in rows]))
        return varying, pl.DataFrame(table)

    def _check_number(self, names: Sequence[str]) -> None:
        if len(names) > MOST_COLUMNS:
            raise LogError(
                f"{self.path} holds {len(names)} different features with values of their own, more than "
                f"{MOST_COLUMNS}. Write features without values as names, which become one bag, or convert the file to "
                "Parquet."
            )


def _is_whole(name: str) -> bool:
    return name.isdecimal() and name.isascii() and str(int(name)) == name and len(name) < 19


def _in_lists(flat: pl.Series, sizes: Sequence[int]) -> pl.Series:
    owner = [place for place, size in enumerate(sizes) for _ in range(size)]
    frame = pl.DataFrame([pl.Series("owner", owner), flat.alias("value")])
    return frame.group_by("owner", maintain_order=True).agg("value")["value"].alias(flat.name)


def apart_from_roles(row: Row) -> Row:
    """Features that are called like a role, under another name."""
    return {f"context.{name}" if name in ROLES else name: value for name, value in row.items()}


def _instants(values: list[str]) -> pl.Series:
    text = pl.Series("timestamp", values, pl.String)
    parsed = text.str.to_datetime(time_unit="us", time_zone="UTC", strict=False, ambiguous="earliest")
    return text if parsed.null_count() else parsed.dt.replace_time_zone(None)


def _feature(name: str, values: list[Any]) -> pl.Series:
    """Numbers where all are, else text where no row has two names, else bags."""
    if all(value is None or isinstance(value, float) for value in values):
        return pl.Series(name, [0.0 if value is None else value for value in values], pl.Float64)
    lists = [[] if v is None else [f"{v:g}"] if isinstance(v, float) else v for v in values]
    if all(len(names) <= 1 for names in lists):
        return pl.Series(name, [names[0] if names else None for names in lists], pl.String)
    return pl.Series(name, lists, pl.List(pl.String))
