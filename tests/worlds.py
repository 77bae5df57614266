"""Small random worlds for the tests, dense enough for the slow references."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import reference
from offpolicy.estimators import ESTIMATORS, INPUTS
from offpolicy.evaluation.inputs import weight_inputs
from offpolicy.log import LoggedData
from tiny_world import TinyWorld


@dataclass(frozen=True)
class SmallLog:
    """A log of a tiny world, its inputs for every weight, and the same as plain arrays for the references."""

    log: LoggedData
    inputs: dict[str, Tensor]
    arrays: reference.World


def small_log(seed: int, rows: int = 12, top_p: float = 2.0) -> SmallLog:
    world = TinyWorld.draw(seed)
    random = np.random.default_rng(seed)
    every, prob = world.outcomes()
    pick = random.choice(every.n_rows, size=rows, p=prob.numpy() / prob.sum().item())
    contexts, action = every.context_index[pick], every.action[pick]
    # Rewards in general position: ties would let two thresholds of IPS-UN win at once.
    log = LoggedData.from_arrays(
        contexts=every.contexts,
        context_index=contexts,
        action=action,
        reward=random.uniform(size=rows),
        actions=every.n_actions,
        logging_prob=every.logging_prob[pick] if every.logging_prob is not None else None,
    )
    target, logging = world.policies()
    uncertainty = torch.from_numpy(random.uniform(0, 1, size=rows))
    groups = torch.tensor([0, 1, 0, 2])
    inputs = weight_inputs(INPUTS, log, target, logging, uncertainty=uncertainty, top_p=top_p, groups=groups)
    # What a classifier would say: any odds will do here.
    inputs["log_balanced_ratio"] = inputs["log_ratio"] + torch.from_numpy(random.normal(size=rows))
    arrays: dict[str, Any] = {
        "pi": world.target.numpy()[contexts],
        "beta": world.logging.numpy()[contexts],
        "action": action,
        "reward": log.reward,
        "uncertainty": uncertainty.numpy(),
        "context": contexts,
        "recorded": log.logging_prob,
        "groups": groups.numpy(),
        "odds": inputs["log_balanced_ratio"].exp().numpy(),
    }
    inputs["sample_size"] = torch.tensor(float(rows))
    return SmallLog(log, inputs, arrays)


def defaults(name: str) -> dict[str, Any]:
    """The row's default hyper-parameters, with a top-p small enough to bite in a tiny world."""
    hyper = {key: p.default for key, p in ESTIMATORS[name].hyper.items()}
    return hyper | ({"top_p": 2.0} if "top_p" in hyper else {})
