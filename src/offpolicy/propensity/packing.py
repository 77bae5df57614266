"""One fitted model of β̂ as plain values and tensors, no pickle; and fits that a killed run need not repeat."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from offpolicy.atomic import write_atomic
from offpolicy.errors import OffPolicyError
from offpolicy.json_writer import json_text
from offpolicy.log import ActionTable, LoggedData
from offpolicy.models import FittedColumn, IdColumn, build_scorer, column_from_json
from offpolicy.policies import (
    MixturePolicy,
    NewIds,
    Policy,
    PopularityPolicy,
    RandomTopK,
    RecordedPolicy,
    ScorerPolicy,
    TreesPolicy,
    UniformPolicy,
    WithBackoff,
)
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.families import FAMILIES
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.time_view import TimedPolicy, TimeView

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


class CannotSaveError(Exception):
    """A policy of the user's own."""


def fit_family(
    name: str, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
) -> tuple[FittedModel, FitOutcome]:
    """Fit a family, or take the fit that an earlier run kept for these very rows and settings."""
    if config.keep is None:
        return FAMILIES[name].fit(log, held_out, chosen, config)
    facts = (name, log.fingerprint, held_out and held_out.fingerprint, chosen, replace(config, keep=None))
    path = config.keep / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            kept = json.loads((file.metadata() or {}).get("offpolicy", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        return unpacked_model(kept["model"], tensors, log.actions), unpacked_outcome(kept["outcome"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, OffPolicyError):
        pass  # there is none, or none that can be read
    model, outcome = FAMILIES[name].fit(log, held_out, chosen, config)
    own: Tensors = {}
    try:
        about = {"model": packed_model(model, "model", own), "outcome": asdict(outcome)}
    except CannotSaveError:
        return model, outcome
    content = {key: values.detach().contiguous().clone() for key, values in own.items()}
    config.keep.mkdir(parents=True, exist_ok=True)
    write_atomic(path, save(content, metadata={"offpolicy": json_text(about, "fit")}))
    return model, outcome


def unpacked_outcome(facts: Mapping[str, Any]) -> FitOutcome:
    """The inverse of `asdict`."""
    return FitOutcome(**{**facts, "steps": tuple(facts["steps"])})


def packed_model(model: FittedModel, name: str, tensors: Tensors) -> Facts:
    """Plain values of a model; its tensors are added to `tensors` under names that begin with `name`."""
    if model.view is not None:
        tensors[f"{name}/edges"] = torch.from_numpy(np.array(model.view.edges))
        return {"kind": "timed", "name": name, "model": packed_model(model.members[0], f"{name}.timed", tensors)}
    if model.members:
        policy = model.policy
        assert isinstance(policy, MixturePolicy)
        return {
            "kind": "ensemble",
            "mixture": _packed_mixture(policy),
            "members": [packed_model(one, f"{name}.{i}", tensors) for i, one in enumerate(model.members)],
        }
    return {"kind": "model", "ridge": model.ridge, "policy": _packed_policy(model.policy, name, tensors)}


def _packed_mixture(policy: MixturePolicy) -> Facts:
    facts: Facts = {"weights": policy.weights.tolist()}
    if policy.new_ids is not None:
        facts["new_ids"] = [column.to_json() for column in policy.new_ids.columns]
        facts["new_weights"] = policy.new_ids.weights.tolist()
    return facts


def _packed_policy(policy: Policy, name: str, tensors: Tensors) -> Facts:
    match policy:
        case WithBackoff():
            tensors[f"{name}/unseen"] = policy.unseen.to(torch.uint8)
            return {
                "kind": "backoff",
                "name": name,
                "mass": policy.mass,
                "base": _packed_policy(policy.base, name, tensors),
            }
        case MixturePolicy():
            parts = [_packed_policy(one, f"{name}.part{i}", tensors) for i, one in enumerate(policy.members)]
            return {"kind": "mixture", "mixture": _packed_mixture(policy), "parts": parts}
        case ScorerPolicy() | RandomTopK():
            tensors[f"{name}/excluded"] = torch.isneginf(policy.bias).to(torch.uint8)
            for key, values in policy.scorer.state_dict().items():
                tensors[f"{name}/scorer/{key}"] = values
            facts: Facts = {"kind": "softmax", "name": name, "scorer": policy.scorer.specification()}
            return facts | {"kind": "top_k", "k": policy.k} if isinstance(policy, RandomTopK) else facts
        case TreesPolicy():
            tensors[f"{name}/trees"] = torch.frombuffer(bytearray(policy.text().encode()), dtype=torch.uint8)
            tensors[f"{name}/classes"] = policy.classes
            return {"kind": "trees", "name": name, "columns": [column.to_json() for column in policy.columns]}
        case PopularityPolicy():
            tensors[f"{name}/log_frequency"] = policy.log_frequency
            return {"kind": "popularity", "name": name}
        case UniformPolicy():
            return {"kind": "uniform"}
        case RecordedPolicy():
            return {"kind": "recorded"}
    raise CannotSaveError


def unpacked_model(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], actions: ActionTable) -> FittedModel:
    """The inverse of `packed_model`."""
    if facts["kind"] == "timed":
        view = TimeView(tensors[f"{facts['name']}/edges"].numpy())
        model = unpacked_model(facts["model"], tensors, actions)
        return FittedModel(TimedPolicy(model.policy, view), members=(model,), view=view)
    if facts["kind"] == "ensemble":
        members = tuple(unpacked_model(one, tensors, actions) for one in facts["members"])
        return FittedModel(_mixture(facts["mixture"], [one.policy for one in members]), members=members)
    policy = _unpacked_policy(facts["policy"], tensors, actions)
    bare = FittedModel(policy, ridge=facts["ridge"])
    softmax = bare.softmax
    return bare if softmax is None else FittedModel(policy, softmax.scorer, facts["ridge"])


def _mixture(facts: Mapping[str, Any], parts: list[Policy]) -> MixturePolicy:
    new = None
    if "new_ids" in facts:
        columns: list[FittedColumn] = [column_from_json(one) for one in facts["new_ids"]]
        ids = tuple(column for column in columns if isinstance(column, IdColumn))
        new = NewIds(ids, torch.tensor(facts["new_weights"], dtype=torch.float64))
    return MixturePolicy(parts, torch.tensor(facts["weights"], dtype=torch.float64), new)


def _unpacked_policy(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], actions: ActionTable) -> Policy:
    kind, name = facts["kind"], facts.get("name")
    if kind == "backoff":
        base = _unpacked_policy(facts["base"], tensors, actions)
        return WithBackoff(base, tensors[f"{name}/unseen"].bool(), facts["mass"])
    if kind == "mixture":
        return _mixture(facts["mixture"], [_unpacked_policy(one, tensors, actions) for one in facts["parts"]])
    if kind in ("softmax", "top_k"):
        scorer = build_scorer(facts["scorer"])
        start = f"{name}/scorer/"
        scorer.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
        excluded = tensors[f"{name}/excluded"].bool()
        if kind == "top_k":
            return RandomTopK(scorer, facts["k"], actions, excluded)
        return ScorerPolicy(scorer, actions, excluded)
    if kind == "trees":
        columns = tuple(column_from_json(one) for one in facts["columns"])
        text = tensors[f"{name}/trees"].numpy().tobytes().decode()
        return TreesPolicy.from_text(text, columns, tensors[f"{name}/classes"], actions)
    if kind == "popularity":
        return PopularityPolicy(actions, tensors[f"{name}/log_frequency"])
    return UniformPolicy(actions) if kind == "uniform" else RecordedPolicy(actions)
