"""From the event store back to a log: decisions joined with their rewards, propensities and candidates included."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import polars as pl
import sqlalchemy as sa

from offpolicy.atomic import atomic_file
from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import OffPolicyError
from offpolicy.serving.store import EventStore, Row, activations, decisions, now, policies, rewards

Rule: TypeAlias = Literal["first", "last", "sum", "max"]
RULES: tuple[Rule, ...] = ("first", "last", "sum", "max")
PAGE = 5_000
SECOND = 1_000_000
EXTRAS = ("policy", "mode", "source", "explored", "epsilon", "scheme", "notes", "candidates_digest")
"""Columns of the record that are no role of a log; each is called `decision_…` in the file."""


@dataclass(frozen=True)
class Join:
    """Which rewards belong to a decision."""

    horizon: float = 3600.0
    """Seconds after the decision (or its activation) in which rewards count."""
    rule: Rule = "first"
    """Of several rewards of a request: the first or the last received, the largest, or their sum."""
    default: float = 0.0
    """The reward of a decision that got none within the horizon."""

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("horizon", self.horizon, Range(0.0, 1e10))
        check_choice("rule", self.rule, RULES)

    @staticmethod
    def checked(horizon: float, rule: str, default: float = 0.0) -> "Join":
        """A join by the name of its rule."""
        return Join(horizon, cast("Rule", rule), default)

    def value(self, received: Sequence[tuple[int, float]], start: int) -> float:
        """The reward of a decision from all rewards (time, value) of its request."""
        end = start + int(self.horizon * SECOND)
        counted = [value for at, value in sorted(received) if at <= end]
        if not counted:
            return self.default
        return {"first": counted[0], "last": counted[-1], "sum": sum(counted), "max": max(counted)}[self.rule]


@dataclass(frozen=True)
class Joined:
    """A recorded decision with what followed."""

    row: Row
    start: int | None
    """When it was shown; None while a deferred one is not activated."""
    pending: bool
    """Whether rewards can still come."""
    reward: float | None
    """None while pending or not shown."""


@dataclass
class Collected:
    """What was written, and what was left out and why."""

    rows: int = 0
    pending: int = 0
    not_shown: int = 0
    deterministic: int = 0
    without_propensity: int = 0
    nothing_decided: int = 0
    mean_reward: float | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """The roles of the columns: name by role."""


def joined(
    store: EventStore, join: Join, *, since: int = 0, after: tuple[int, str] | None = None, at: int | None = None
) -> Iterator[list[Joined]]:
    """All decisions from a time on (µs), or `after` one (time and id), in order, page by page, with their rewards."""
    at = now() if at is None else at
    where, when = decisions.c.request_id, decisions.c.decided_at
    while True:
        query = decisions.select().order_by(when, where).limit(PAGE).where(when >= since)
        if after is not None:
            query = query.where((when > after[0]) | ((when == after[0]) & (where > after[1])))
        with store.reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            ids = [row["request_id"] for row in rows]
            received = _by_request(connection, rewards, ids, ("received_at", "value"))
            shown = _by_request(connection, activations, [r["request_id"] for r in rows if r["deferred"]])
        if not rows:
            return
        after = rows[-1]["decided_at"], rows[-1]["request_id"]
        yield [_joined(row, join, received, shown, at) for row in rows]


def collect(
    store: EventStore,
    out: str | Path,
    *,
    join: Join | None = None,
    since: int = 0,
    everything: bool = False,
    keep_pending: bool = False,
    force: bool = False,
    at: int | None = None,
) -> Collected:
    """Write the log of a store to a Parquet file, atomically, with the columns of the log that was learned from.

    Only decisions that were drawn with a known probability are written, unless `everything` is asked for; decisions
    within the horizon are left out, rewarded or not, unless `keep_pending` (then without reward and marked). `force`
    replaces a file. `at` is the time (µs) by which the horizon is judged, now by default.
    """
    if Path(out).suffix != ".parquet":
        raise OffPolicyError(f"{out} must end in .parquet: other formats cannot hold lists of candidates. Rename it.")
    if Path(out).expanduser().exists() and not force:
        raise OffPolicyError(f"{out} exists and is not replaced. Choose another name, or give --force.")
    found = Collected()
    roles, means = _served(store)
    frames: list[pl.DataFrame] = []
    total, rewarded = 0.0, 0
    for page in joined(store, join or Join(), since=since, at=at):
        kept = [one for one in page if _belongs(one, found, everything, keep_pending)]
        if kept:
            frames.append(_frame(kept, roles))
            found.rows += len(kept)
            total += sum(one.reward or 0.0 for one in kept)
            rewarded += sum(one.reward is not None for one in kept)
    if not frames:
        raise OffPolicyError(_nothing(store, found))
    frame = _filled(pl.concat(frames, how="diagonal_relaxed"), means)
    with atomic_file(out) as temporary:
        frame.write_parquet(temporary)
    found.mean_reward = total / rewarded if rewarded else None
    found.columns = roles
    return found


def _by_request(
    connection: sa.Connection, table: sa.Table, ids: Sequence[str], columns: Sequence[str] = ("activated_at",)
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for i in range(0, len(ids), 500):
        query = sa.select(table.c.request_id, *(table.c[name] for name in columns))
        for request_id, *values in connection.execute(query.where(table.c.request_id.in_(ids[i : i + 500]))):
            found.setdefault(request_id, []).append(tuple(values))
    return found


def _joined(row: Row, join: Join, received: Mapping[str, Any], shown: Mapping[str, Any], at: int) -> Joined:
    start = row["decided_at"]
    if row["deferred"]:
        activated = shown.get(row["request_id"])
        if activated is None:
            return Joined(row, None, False, None)
        start = activated[0][0]
    if at < start + int(join.horizon * SECOND):
        return Joined(row, start, True, None)
    return Joined(row, start, False, join.value(received.get(row["request_id"], ()), start))


def _belongs(one: Joined, found: Collected, everything: bool, keep_pending: bool) -> bool:
    """Whether a decision is written; if not, it is counted."""
    row = one.row
    if row["source"] == "none":
        found.nothing_decided += 1
        return False
    if one.start is None:
        found.not_shown += 1
        return False
    if one.pending:
        found.pending += 1
        if not keep_pending:
            return False
    if everything:
        return True
    if row["source"] == "override" or (row["mode"] == "greedy" and row["source"] == "policy"):
        found.deterministic += 1
        return False
    if row["probability"] is None:
        found.without_propensity += 1
        return False
    return True


def _served(store: EventStore) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Names of the roles and means of numbers, from the policy that was first served last."""
    with store.reading() as connection:
        query = sa.select(policies.c.facts).order_by(policies.c.served_at.desc()).limit(1)
        facts = json.loads(connection.scalar(query) or "{}")
    known = facts.get("roles") or {}
    roles = {role: known.get(role) or role for role in ("action", "reward", "timestamp")}
    if known.get("cluster"):
        roles["cluster"] = known["cluster"]
    return roles | {"propensity": "propensity"}, facts.get("means") or {}


def _frame(page: Sequence[Joined], roles: Mapping[str, str]) -> pl.DataFrame:
    rows = [one.row for one in page]
    record: dict[str, Any] = {
        "request_id": [row["request_id"] for row in rows],
        roles["timestamp"]: pl.Series([one.start for one in page], dtype=pl.Datetime("us")),
        roles["action"]: _ids([json.loads(row["action"]) for row in rows]),
        roles["reward"]: pl.Series([one.reward for one in page], dtype=pl.Float64),
        roles["propensity"]: pl.Series([row["probability"] for row in rows], dtype=pl.Float64),
        "candidates": _ids([None if row["candidates"] is None else json.loads(row["candidates"]) for row in rows]),
        "keep_prob": pl.Series([row["keep_prob"] for row in rows], dtype=pl.Float64),
        "decision_pending": [one.pending for one in page],
        "decision_actions": _ids([json.loads(row["actions"]) for row in rows]),
        "decision_probabilities": pl.Series(
            [json.loads(row["probabilities"]) for row in rows], dtype=pl.List(pl.Float64)
        ),
        "decision_policy_probability": pl.Series([row["policy_probability"] for row in rows], dtype=pl.Float64),
    }
    record |= {f"decision_{name}": [row[name] for row in rows] for name in EXTRAS}
    contexts = [json.loads(row["context"]) for row in rows]
    names = dict.fromkeys(name for context in contexts for name in context)
    for name in names:
        values = pl.Series([context.get(name) for context in contexts], strict=False)
        record[f"context_{name}" if name in record else name] = values
    if "cluster" in roles and roles["cluster"] not in record:  # nobody sent it: each request is its own
        record[roles["cluster"]] = record["request_id"]
    return pl.DataFrame(record)


def _ids(values: list[Any]) -> pl.Series:
    return pl.Series(values, strict=False)


def _filled(frame: pl.DataFrame, means: Mapping[str, list[float]]) -> pl.DataFrame:
    """Missing numbers as the policy took them: as the means of the log it was learned from."""
    for name, mean in means.items():
        if name in frame.columns and frame[name].null_count():
            value = mean[0] if len(mean) == 1 and not isinstance(frame.schema[name], pl.List) else mean
            frame = frame.with_columns(pl.col(name).fill_null(pl.lit(value)))
    return frame


def _nothing(store: EventStore, found: Collected) -> str:
    left_out = {
        "are within the horizon (wait, or shorten --horizon)": found.pending,
        "were deferred and never activated": found.not_shown,
        "were not drawn by chance (--all writes them)": found.deterministic,
        "have no known probability (--all writes them)": found.without_propensity,
        "had nothing to show": found.nothing_decided,
    }
    counted = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
    return f"{store.safe_url} holds no decision to write: {counted or 'it is empty from that time on'}."
