"""The data card and how a run was made, as plain names and values."""

import json
from typing import Any

from offpolicy.drawing import UNKNOWN, duration, label, plain
from offpolicy.results import Results

MOST_FACTS = 200
LONGEST_CONFIG = 20_000


def fact(value: Any) -> str:
    """One value in words."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: UNKNOWN}[value]
    if isinstance(value, int | float):
        return plain(value)
    if isinstance(value, list):
        return label(" to ".join(fact(v) for v in value) if len(value) == 2 else ", ".join(map(str, value)), 300)
    return label(json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict) else value, 300)


def facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values; what holds more than one value is left to others."""
    kept = [(k, v) for k, v in values.items() if not isinstance(v, dict)]
    return [(label(k, 60).replace("_", " "), fact(v)) for k, v in kept[:MOST_FACTS]]


def columns(log: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every column: its name, how it was read, and what it describes."""
    roles = {name: role for role in ("context", "action") for name in _mapping(log, f"{role}_features")}
    kinds = _mapping(log, "context_features") | _mapping(log, "action_features") | _mapping(log, "columns")
    return [(label(n, 60), label(k, 60), roles.get(n, "")) for n, k in list(kinds.items())[:MOST_FACTS]]


def _mapping(log: dict[str, Any], key: str) -> dict[str, Any]:
    mapping = log.get(key)
    return mapping if isinstance(mapping, dict) else {}


def run_card(results: Results) -> dict[str, Any]:
    """Command, configuration, seed and versions."""
    run = results.run
    config = json.dumps(run.config, indent=2, ensure_ascii=False, default=str) if run.config else ""
    if len(config) > LONGEST_CONFIG:
        config = config[:LONGEST_CONFIG] + "\n… (the rest is in results.json)"
    known = [("seed", str(run.seed) if run.seed is not None else ""), ("took", duration(run.seconds))]
    known += [(label(k, 40), label(v, 60)) for k, v in list(run.versions.items())[:50]]
    kept = [(k, v) for k, v in known if v not in ("", UNKNOWN)]
    notes = [label(note, 500) for note in run.notes[:MOST_FACTS]]
    return {"command": label(run.command, 4000), "config": config, "facts": kept, "notes": notes}
