"""How a decision is written down and read back."""

import json
from typing import Any

from pydantic_core import to_json

from offpolicy.serving.decider import SCHEME, Decider, Decision, Request
from offpolicy.serving.store import Row


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
