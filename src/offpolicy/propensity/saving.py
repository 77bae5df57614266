"""β̂ as plain values and tensors, so that it is fitted once and loaded again; no pickle."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.propensity.config import FitConfig
from offpolicy.propensity.ensemble import Member
from offpolicy.propensity.families import family_of
from offpolicy.propensity.fit import CandidateFit, LoggingPolicy, refitted
from offpolicy.propensity.model import FittedModel
from offpolicy.propensity.packing import (
    CannotSaveError,
    Facts,
    Tensors,
    packed_model,
    unpacked_model,
    unpacked_outcome,
)
from offpolicy.results import Quality


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
            "whole": packed_model(beta.whole, "whole", tensors),
            "candidates": [
                {
                    "name": one.name,
                    "quality": one.quality.to_json(),
                    "chosen": asdict(one.chosen),
                    "weight": one.weight,
                    "model": packed_model(one.model, f"candidate.{i}", tensors),
                }
                for i, one in enumerate(beta.candidates)
            ],
        }
    except CannotSaveError:
        return None
    return facts, tensors


def unpacked(facts: Mapping[str, Any], tensors: Mapping[str, Tensor], log: LoggedData, seed: int) -> LoggingPolicy:
    """The logging policy of a log, as it was fitted to it."""
    whole = unpacked_model(facts["whole"], tensors, log.actions)
    candidates = tuple(
        CandidateFit(
            one["name"],
            unpacked_model(one["model"], tensors, log.actions),
            unpacked_outcome(one["chosen"]),
            Quality(**one["quality"]),
            one["weight"],
        )
        for one in facts["candidates"]
    )
    chosen, config = unpacked_outcome(facts["chosen"]), FitConfig(seed=seed)
    members = tuple(Member(**{**one, "outcome": unpacked_outcome(one["outcome"])}) for one in facts["members"])

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
