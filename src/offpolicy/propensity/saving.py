"""β̂ as plain values and tensors, so that it is fitted once and loaded again; no pickle."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from offpolicy.log import ActionTable, LoggedData
from offpolicy.models import build_scorer
from offpolicy.policies import Policy, PopularityPolicy, RecordedPolicy, ScorerPolicy, UniformPolicy, WithBackoff
from offpolicy.propensity.fit import CandidateFit, FittedModel, LoggingPolicy, fitter
from offpolicy.propensity.likelihood import FitConfig, FitOutcome
from offpolicy.results import Quality

Tensors = dict[str, Tensor]


def packed(beta: LoggingPolicy) -> tuple[dict[str, Any], Tensors] | None:
    """What `unpacked` needs beside the log; None for models that cannot be saved (classifiers, counts, folds)."""
    fits = [("whole", beta.whole), *((f"candidate.{i}", one.model) for i, one in enumerate(beta.candidates))]
    models = {name: _packed_model(model, name) for name, model in fits}
    if beta.folds or any(one is None for one in models.values()):
        return None
    tensors: Tensors = {"row_log_prob": beta.row_log_prob}
    described: dict[str, Any] = {}
    for name, one in models.items():
        assert one is not None
        described[name], own = one
        tensors |= own
    facts = {
        "model": beta.model,
        "normaliser": beta.normaliser,
        "quality": beta.quality.to_json(),
        "chosen": asdict(beta.chosen),
        "candidates": [
            {"name": one.name, "quality": one.quality.to_json(), "chosen": asdict(one.chosen)}
            for one in beta.candidates
        ],
        "models": described,
    }
    return facts, tensors


def unpacked(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], log: LoggedData, seed: int) -> LoggingPolicy:
    """The logging policy of a log, as it was fitted to it."""
    models = {name: _unpacked_model(one, tensors, name, log.actions) for name, one in facts["models"].items()}
    candidates = tuple(
        CandidateFit(one["name"], models[f"candidate.{i}"], _outcome(one["chosen"]), Quality(**one["quality"]))
        for i, one in enumerate(facts["candidates"])
    )
    chosen = _outcome(facts["chosen"])
    _, fit = fitter(facts["model"], FitConfig(seed=seed), None)
    return LoggingPolicy(
        facts["model"],
        log,
        models["whole"],
        Quality(**facts["quality"]),
        tensors["row_log_prob"],
        normaliser=facts["normaliser"],
        chosen=chosen,
        candidates=candidates,
        refit=lambda other: fit(other, None, chosen)[0],
    )


def _outcome(facts: Mapping[str, Any]) -> FitOutcome:
    return FitOutcome(**{**facts, "steps": tuple(facts["steps"])})


def _packed_model(model: FittedModel, name: str) -> tuple[dict[str, Any], Tensors] | None:
    policy, facts, tensors = model.policy, dict[str, Any](ridge=model.ridge), Tensors()
    if isinstance(policy, WithBackoff):
        facts["backoff"] = policy.mass
        tensors[f"{name}/unseen"] = policy.unseen.to(torch.uint8)
        policy = policy.base
    if isinstance(policy, ScorerPolicy):
        facts |= {"kind": "softmax", "scorer": policy.scorer.specification()}
        tensors[f"{name}/excluded"] = torch.isneginf(policy.bias).to(torch.uint8)
        tensors |= {f"{name}/scorer/{key}": values for key, values in policy.scorer.state_dict().items()}
    elif isinstance(policy, PopularityPolicy):
        facts["kind"] = "popularity"
        tensors[f"{name}/frequency"] = policy.log_frequency.exp()
    elif isinstance(policy, UniformPolicy | RecordedPolicy):
        facts["kind"] = "uniform" if isinstance(policy, UniformPolicy) else "recorded"
    else:
        return None
    return facts, tensors


def _unpacked_model(
    facts: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str, actions: ActionTable
) -> FittedModel:
    scorer, policy = None, _plain(facts["kind"], tensors, name, actions)
    if policy is None:
        scorer = build_scorer(facts["scorer"])
        start = f"{name}/scorer/"
        scorer.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
        policy = ScorerPolicy(scorer, actions, tensors[f"{name}/excluded"].bool())
    if "backoff" in facts:
        policy = WithBackoff(policy, tensors[f"{name}/unseen"].bool(), facts["backoff"])
    return FittedModel(policy, scorer, facts["ridge"])


def _plain(kind: str, tensors: Mapping[str, Tensor], name: str, actions: ActionTable) -> Policy | None:
    if kind == "popularity":
        return PopularityPolicy(actions, tensors[f"{name}/frequency"].log())
    if kind == "uniform":
        return UniformPolicy(actions)
    return RecordedPolicy(actions) if kind == "recorded" else None
