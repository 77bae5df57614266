"""β̂ as plain values and tensors, so that it is fitted once and loaded again; no pickle."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from offpolicy.propensity.ensemble import Member
from offpolicy.propensity.families import family_of
from offpolicy.propensity.fit import CandidateFit, LoggingPolicy, refitted
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.time_view import TimedPolicy, TimeView
from offpolicy.results import Quality

Tensors = dict[str, Tensor]
Facts = dict[str, Any]


class _CannotSaveError(Exception):
    """A policy of the user's own."""


def packed(beta: LoggingPolicy) -> tuple[Facts, Tensors] | None:
    """What `unpacked` needs beside the log; None for models that cannot be saved (classifiers, counts, folds)."""
    if beta.folds:
        return None
    tensors: Tensors = {"row_log_prob": beta.row_log_prob}
    try:
        facts = {
            "model": beta.model,
            "normaliser": beta.normaliser,
            "quality": beta.quality.to_json(),
            "chosen": asdict(beta.chosen),
            "members": [asdict(one) for one in beta.members],
            "whole": _packed_model(beta.whole, "whole", tensors),
            "candidates": [
                {
                    "name": one.name,
                    "quality": one.quality.to_json(),
                    "chosen": asdict(one.chosen),
                    "weight": one.weight,
                    "model": _packed_model(one.model, f"candidate.{i}", tensors),
                }
                for i, one in enumerate(beta.candidates)
            ],
        }
    except _CannotSaveError:
        return None
    return facts, tensors


def unpacked(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], log: LoggedData, seed: int) -> LoggingPolicy:
    """The logging policy of a log, as it was fitted to it."""
    whole = _unpacked_model(facts["whole"], tensors, log.actions)
    candidates = tuple(
        CandidateFit(
            one["name"],
            _unpacked_model(one["model"], tensors, log.actions),
            _outcome(one["chosen"]),
            Quality(**one["quality"]),
            one["weight"],
        )
        for one in facts["candidates"]
    )
    chosen, config = _outcome(facts["chosen"]), FitConfig(seed=seed)
    members = tuple(Member(**{**one, "outcome": _outcome(one["outcome"])}) for one in facts["members"])

    def again(other: LoggedData) -> FittedModel:
        if members:
            return refitted(members, whole.view, other, config)
        return family_of(facts["model"]).fit(other, None, chosen, config)[0]

    return LoggingPolicy(
        facts["model"],
        log,
        whole,
        Quality(**facts["quality"]),
        tensors["row_log_prob"],
        normaliser=facts["normaliser"],
        chosen=chosen,
        members=members,
        candidates=candidates,
        refit=again,
    )


def _outcome(facts: Mapping[str, Any]) -> FitOutcome:
    return FitOutcome(**{**facts, "steps": tuple(facts["steps"])})


def _packed_model(model: FittedModel, name: str, tensors: Tensors) -> Facts:
    if model.view is not None:
        tensors[f"{name}/edges"] = torch.from_numpy(np.array(model.view.edges))
        return {"kind": "timed", "name": name, "model": _packed_model(model.members[0], f"{name}.timed", tensors)}
    if model.members:
        policy = model.policy
        assert isinstance(policy, MixturePolicy)
        return {
            "kind": "ensemble",
            "mixture": _packed_mixture(policy),
            "members": [_packed_model(one, f"{name}.{i}", tensors) for i, one in enumerate(model.members)],
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
    raise _CannotSaveError


def _unpacked_model(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], actions: ActionTable) -> FittedModel:
    if facts["kind"] == "timed":
        view = TimeView(tensors[f"{facts['name']}/edges"].numpy())
        model = _unpacked_model(facts["model"], tensors, actions)
        return FittedModel(TimedPolicy(model.policy, view), members=(model,), view=view)
    if facts["kind"] == "ensemble":
        members = tuple(_unpacked_model(one, tensors, actions) for one in facts["members"])
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
