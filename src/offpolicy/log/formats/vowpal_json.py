"""DSJSON, the log of the Decision Service and Personalizer: a JSON object a line."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from offpolicy.log.formats.vowpal_rows import Candidate, Decision, Row, add_name, bad, number
from offpolicy.log.origin import shown

LATE = "lines with rewards that were reported apart from their event"
UNLEARNED = "events marked _skipLearn, which are not to be learned from"
SLATES = "events with several slots (CCB or slates), which are not single decisions"
CHECKPOINTS = "checkpoint lines"
UNLABELLED = "events without a cost"
TOLERANCE = 1e-6


def dsjson_decisions(path: Path, lines: Iterable[str], skipped: Counter[str]) -> Iterator[Decision]:
    """Every labelled decision; what else there is is counted."""
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        event = _event(path, line, text)
        if event is None or "checkpoint_info" in event:
            skipped[CHECKPOINTS] += 1
        elif "c" not in event:
            skipped[LATE if "RewardValue" in event else UNLABELLED] += 1
        elif "_outcomes" in event or (isinstance(event["c"], dict) and "_slots" in event["c"]):
            skipped[SLATES] += 1
        elif event.get("_skipLearn", False):
            skipped[UNLEARNED] += 1
        elif "_label_cost" not in event:
            skipped[UNLABELLED] += 1
        else:
            yield _decision(path, line, event)


def _event(path: Path, line: int, text: str) -> dict[str, Any] | None:
    """The object of a line; None for a line in brackets that is no JSON, which a checkpoint leaves."""
    try:
        event = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        if text.lstrip().startswith("[") and "checkpoint" in text.lower():
            return None
        bad(path, line, f"is not JSON: {shown(text.strip())}")
    if not isinstance(event, dict):
        bad(path, line, "is not a JSON object")
    return event


def _decision(path: Path, line: int, event: Mapping[str, Any]) -> Decision:
    context = event["c"]
    if not isinstance(context, dict):
        bad(path, line, "must hold an object as 'c', the context")
    listed = context.get("_multi", [])
    if not isinstance(listed, list):
        bad(path, line, "must hold a list as 'c._multi', the actions")
    place = _chosen(path, line, event, len(listed))
    shared: Row = {}
    flatten(context, "", shared)
    dropped = number(path, line, "pdrop", event.get("pdrop", 0.0))
    if not 0 <= dropped < 1:
        bad(path, line, f"must hold a share below 1 as pdrop, but it holds {dropped:g}")
    stamp = event.get("Timestamp")
    return Decision(
        line,
        shared,
        [_candidate(one) for one in listed] if listed else None,
        place,
        -number(path, line, "_label_cost", event["_label_cost"]),
        _propensity(path, line, event, place, dropped),
        stamp if isinstance(stamp, str) else None,
        1 - dropped,
        str(place + 1),
    )


def _chosen(path: Path, line: int, event: Mapping[str, Any], n_listed: int) -> int:
    place = event.get("_labelIndex")
    if place is None:
        ranking = event.get("a", event.get("_a", []))
        chosen = event.get("_label_Action", ranking[0] if isinstance(ranking, list) and ranking else None)
        place = chosen - 1 if isinstance(chosen, int) else None
    if not isinstance(place, int) or place < 0 or (n_listed and place >= n_listed):
        bad(path, line, "must say which action was taken by _labelIndex (from 0) or _label_Action (from 1)")
    return place


def _propensity(path: Path, line: int, event: Mapping[str, Any], place: int, dropped: float) -> float | None:
    """The probability of the action before any event was dropped.

    `_label_probability` is that times the share of events that were kept, unless p of the action says otherwise.
    """
    ranking, probs = event.get("a", event.get("_a", [])), event.get("p", event.get("_p", []))
    told = None
    if isinstance(ranking, list) and isinstance(probs, list) and place + 1 in ranking[: len(probs)]:
        told = probs[ranking.index(place + 1)]
    prob = event.get("_label_probability")
    if prob is None and told is None:
        return None
    if prob is None or (dropped and told is not None):
        return number(path, line, "p of the action taken", told)
    found = number(path, line, "_label_probability", prob)
    return found / (1 - dropped) if found <= (1 - dropped) * (1 + TOLERANCE) else found


def _candidate(action: Any) -> Candidate:
    features: Row = {}
    if not isinstance(action, dict):
        return Candidate(None, features)
    inner = action.get("i")
    named = [action.get("_tag"), inner.get("id") if isinstance(inner, dict) else None, action.get("id")]
    name = next((str(one) for one in named if isinstance(one, str | int) and not isinstance(one, bool)), None)
    own = {key: value for key, value in action.items() if key != "id" or name is None}
    if isinstance(inner, dict):  # the id in words, and a constant
        own["i"] = {key: value for key, value in inner.items() if key not in ("id", "constant")}
    flatten(own, "", features)
    return Candidate(name, features)


def flatten(value: Any, name: str, row: Row) -> None:
    """Numbers and lists of names, by the path that leads to them; what begins with _ is no feature."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not str(key).startswith("_"):
                flatten(inner, f"{name}.{key}" if name else str(key), row)
    elif isinstance(value, list):
        if value and all(isinstance(one, int | float) and not isinstance(one, bool) for one in value):
            row |= {f"{name}.{place}": float(one) for place, one in enumerate(value) if abs(one) < 1e300}
        else:
            for one in value:
                flatten(one, name, row)
    elif isinstance(value, str | bool):
        add_name(row, name, str(value).lower() if isinstance(value, bool) else value)
    elif isinstance(value, int | float) and abs(value) < 1e300:
        held = row.get(name)
        if held is None:
            row[name] = float(value)
        else:
            add_name(row, name, f"{float(value):g}")
