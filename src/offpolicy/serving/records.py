"""How a decision is written down and read back."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from offpolicy.serving.decider import SCHEME, Decider, Decision, Request
from offpolicy.serving.store import EventStore, Row, now


def decision_row(decision: Decision, decided_at: int, keep_prob: float) -> dict[str, Any]:
    """A row of the table of decisions."""
    request = decision.request
    return {
        "request_id": request.request_id,
        "decided_at": decided_at,
        "policy": decision.policy,
        "mode": decision.mode,
        "source": decision.source,
        "context": _json(dict(request.context)),
        "candidates": None if request.candidates is None else _json(list(request.candidates)),
        "candidates_digest": decision.candidates_digest,
        "k": request.k,
        "action": _json(decision.action),
        "actions": _json(decision.actions),
        "probability": decision.probability,
        "probabilities": _json(decision.probabilities),
        "policy_actions": _json(decision.policy_actions),
        "policy_probability": decision.policy_probability,
        "explored": int(decision.explored),
        "deferred": int(request.deferred),
        "epsilon": decision.epsilon,
        "keep_prob": keep_prob,
        "scheme": SCHEME,
        "notes": "; ".join(decision.notes) or None,
    }


def record(store: EventStore, decider: Decider, decisions: Iterable[Decision], *, at: int | None = None) -> None:
    """Write decisions made in this process to a store, durably; those outside the kept share are left out.

    `at` is when they were made, in microseconds since 1970; now by default.
    """
    at = now() if at is None else at
    kept = [one for one in decisions if decider.kept(one.request.request_id)]
    store.remember(decider.policy.digest, policy_facts(decider))
    store.append({"decisions": [decision_row(one, at, decider.keep) for one in kept]})


def record_rewards(
    store: EventStore, rewards: Mapping[str, float], event_id: str = "", *, at: int | None = None
) -> None:
    """Write rewards by request, durably; a second one with the same event id is ignored. `at` as in `record`."""
    at = now() if at is None else at
    rows = [
        {"request_id": request_id, "event_id": event_id, "value": float(value), "received_at": at}
        for request_id, value in rewards.items()
    ]
    store.append({"rewards": rows})


def answer(decision: Decision) -> dict[str, Any]:
    """What the client is told about a decision."""
    return {
        "request_id": decision.request.request_id,
        "action": decision.action,
        "actions": decision.actions,
        "probability": decision.probability,
        "probabilities": decision.probabilities,
        "policy": decision.policy,
        "mode": decision.mode,
        "source": decision.source,
        "explored": decision.explored,
        "notes": "; ".join(decision.notes) or None,
        "repeated": False,
    }


def recorded_answer(row: Row) -> dict[str, Any]:
    """What the client is told when the request was decided before: what was recorded then."""
    plain = ("request_id", "probability", "policy", "mode", "source", "notes")
    lists = {name: json.loads(row[name]) for name in ("action", "actions", "probabilities")}
    return {name: row[name] for name in plain} | lists | {"explored": bool(row["explored"]), "repeated": True}


def request_of(row: Row) -> Request:
    """The request of a recorded decision, as the policy saw it."""
    return Request(
        request_id=row["request_id"],
        context=json.loads(row["context"]),
        candidates=None if row["candidates"] is None else json.loads(row["candidates"]),
        k=row["k"],
    )


def policy_facts(decider: Decider) -> str:
    """What the store remembers about a policy, as JSON."""
    policy = decider.policy
    return _json(
        {
            "method": policy.method,
            "columns": policy.columns,
            "roles": policy.roles,
            "reward_range": policy.reward_range,
            "means": policy.means,
            "catalogue": decider.catalogue,
            "catalogue_digest": decider.catalogue_digest,
        }
    )


def _json(value: Any) -> str:
    """JSON in which a number that is not finite is null, as the decider took it."""
    return to_json(value, inf_nan_mode="null", fallback=_plain).decode()


def _plain(value: Any) -> Any:
    """Arrays and numbers of NumPy as plain ones; anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
