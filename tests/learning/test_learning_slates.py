"""Learning from slates: the gradient of RIPS along a request, and policies that earn more."""

from typing import Any

import numpy as np
import pytest
import torch

from offpolicy import learn_policy
from offpolicy.learning import prepare_training
from offpolicy.log import LoggedData
from offpolicy.models.epochs import ContextBatches
from slate_worlds import SlateWorld


def direct(world: SlateWorld, log: LoggedData, scorer: Any, kind: str, top_k: int = 1) -> Any:
    """The mean over rows of the weighted rewards, written out request by request.

    With a top-K correction it is the mean of r·(ratio of "among K draws" to β), 1 − (1 − π)^K in the place of π.
    """
    weights, bias = scorer.actions()
    scores = (scorer.states(log.contexts) @ weights.T + bias)[log.context_index.astype(np.int64)]
    x = torch.from_numpy(np.array(log.contexts["x"].values)).to(scores.dtype)  # type: ignore[union-attr]
    logging = (x @ world.logging.weights.to(scores.dtype).T + world.logging.bias.to(scores.dtype))[
        log.context_index.astype(np.int64)
    ]
    total, length = scores.new_zeros(()), world.length
    for start in range(0, log.n_rows, length):
        product: Any = 1.0
        for row in range(start, start + length):
            left = [a for a in range(log.n_actions) if a not in log.action[start:row]]
            own = left.index(int(log.action[row]))
            chance = 1 - (1 - scores[row, left].softmax(0)[own]) ** top_k
            ratio = chance / logging[row, left].softmax(0)[own]
            product = product * ratio if kind == "rips" else ratio
            total = total + product * float(log.reward[row])
    return total / log.n_rows


@pytest.mark.parametrize(("kind", "top_k"), [("rips", 1), ("iips", 1), ("iips", 3)])
def test_the_gradient_is_that_of_the_value_along_the_request(kind: str, top_k: int) -> None:
    world = SlateWorld.make("cascade", 2, n_actions=5, length=3, d=2)
    log = world.log(30, 0)
    trainer = prepare_training(log, kind, logging_policy=world.logging, epochs=1, initial_spread=0.3, top_k=top_k)
    scorer: Any = trainer.scorer
    scorer.double()
    objective = trainer._objective(0)
    objective.rows.fixed = {
        name: values.double() if values.is_floating_point() else values for name, values in objective.rows.fixed.items()
    }
    objective.events_a_batch = float(log.n_rows)
    parameters = [p for p in scorer.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = None
    for batch in ContextBatches(log, log.n_contexts).epoch():
        value: Any = objective.of(scorer, batch)
        value.backward()
    ours = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    theirs = torch.autograd.grad(direct(world, log, scorer, kind, top_k), parameters, allow_unused=True)
    assert max(float(g.abs().max()) for g in theirs if g is not None) > 1e-3
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, torch.zeros_like(own) if other is None else other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["iips", "rips"])
def test_a_learned_policy_earns_more_than_logging(method: str) -> None:
    world = SlateWorld.make("independent", 1)
    log = world.log(3000, 0)
    learned = learn_policy(log, method, logging_policy="linear", epochs=20, learning_rate=0.02, weight_cap=10.0)
    random = np.random.default_rng(5)
    x = random.normal(size=(4000, 3))
    contexts = {"x": x.astype(np.float32), "position": np.zeros(4000, int)}
    fresh = LoggedData.from_arrays(contexts, random.integers(0, 10, 4000), np.ones(4000), actions=world.logging.actions)
    prob = learned.log_probs(fresh.contexts)[fresh.context_index].exp().numpy()
    slate = np.argsort(-(np.log(prob) + random.gumbel(size=prob.shape)), 1)[:, :4]
    assert world.chances(x, slate).mean() > world.value(world.logging, 20_000) + 0.02
