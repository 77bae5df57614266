"""Draw every recorded decision again and say where a record and the draw differ."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from offpolicy.serving.decider import SCHEME, Decider
from offpolicy.serving.join import Join, joined
from offpolicy.serving.policy import ServedPolicy
from offpolicy.serving.records import request_of
from offpolicy.serving.store import EventStore, Row

CLOSE = 1e-9
"""Largest relative difference of a probability drawn again, on another machine perhaps."""


@dataclass
class Replayed:
    """How the records of a store compare with draws made again."""

    decisions: int = 0
    confirmed: int = 0
    different: int = 0
    other_policies: dict[str, int] = field(default_factory=dict)
    """Decisions by policies that were not given, by digest."""
    first_difference: dict[str, Any] | None = None

    @property
    def agrees(self) -> bool:
        """Whether every decision that could be drawn again came out as recorded."""
        return not self.different

    def to_json(self) -> dict[str, Any]:
        """Its fields, and whether it agrees."""
        return {"agrees": self.agrees} | asdict(self)


def replay(store: EventStore, policies: Iterable[ServedPolicy], *, since: int = 0) -> Replayed:
    """Decide every recorded request again with the policy that decided it."""
    known = {policy.digest: policy for policy in policies}
    deciders: dict[Any, Decider] = {}
    found = Replayed()
    for page in joined(store, Join(), since=since):
        for row in (one.row for one in page):
            found.decisions += 1
            if row["policy"] not in known:
                found.other_policies[row["policy"]] = found.other_policies.get(row["policy"], 0) + 1
                continue
            setting = (row["policy"], row["mode"], row["epsilon"])
            if setting not in deciders:
                deciders[setting] = Decider(
                    known[row["policy"]], mode=row["mode"], epsilon=row["epsilon"], salt=store.salt
                )
            difference = _difference(row, deciders[setting])
            if difference is None:
                found.confirmed += 1
                continue
            found.different += 1
            if found.first_difference is None:
                found.first_difference = {"request_id": row["request_id"], "decided_at": row["decided_at"]} | difference
    return found


def _difference(row: Row, decider: Decider) -> dict[str, Any] | None:
    """The first field that a draw made again contradicts, as recorded and as drawn."""
    if row["scheme"] != SCHEME:
        return {"field": "scheme", "recorded": row["scheme"], "drawn": SCHEME}
    again = decider.decision(request_of(row))
    compared: dict[str, tuple[Any, Any]] = {
        "policy_actions": (json.loads(row["policy_actions"]), list(again.policy_actions)),
        "candidates_digest": (row["candidates_digest"], again.candidates_digest),
        "policy_probability": (row["policy_probability"], again.policy_probability),
        "explored": (bool(row["explored"]), again.explored),
    }
    if row["source"] == "policy":
        compared["actions"] = json.loads(row["actions"]), list(again.actions)
        compared["probability"] = row["probability"], again.probability
        compared["probabilities"] = json.loads(row["probabilities"]), list(again.probabilities)
    if row["source"] == "override":
        compared["probability"] = row["probability"], 1.0
    for name, (recorded, drawn) in compared.items():
        if not _same(recorded, drawn):
            return {"field": name, "recorded": recorded, "drawn": drawn}
    return None


def _same(recorded: Any, drawn: Any) -> bool:
    if isinstance(recorded, list) and isinstance(drawn, list):
        return len(recorded) == len(drawn) and all(map(_same, recorded, drawn))
    if isinstance(recorded, float) and isinstance(drawn, float):
        return math.isclose(recorded, drawn, rel_tol=CLOSE, abs_tol=1e-300)
    return type(recorded) is type(drawn) and bool(recorded == drawn)
