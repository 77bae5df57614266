"""Learning among candidates: the gradient of the masked objective, and policies better than the logger."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from offpolicy import learn_policy
from offpolicy.artifacts import load_policy, save_policy
from offpolicy.datasets.request_worlds import RequestWorld
from offpolicy.learning import METHODS
from offpolicy.learning.prepare import prepare_training
from offpolicy.log import FeatureTable, read_log
from offpolicy.policies import choice_log_probs, logged_log_prob

WORLD = RequestWorld.make("retrieved", 1, n_actions=15)
LOG = WORLD.log(300, 2)
SHARED = ("ce", "bips_cap", "snips", "minvar", "uips", "dm", "dr", "uips_dr", "adaptive", "prune", "poem")


@pytest.mark.parametrize("method", SHARED)
def test_learned_policies_choose_among_candidates(method: str) -> None:
    assert method in METHODS
    learned = learn_policy(
        LOG, method, logging_policy=WORLD.logging if method != "uips" and method != "uips_dr" else None, epochs=4
    )
    probs = choice_log_probs(learned, LOG.contexts).double().exp()
    torch.testing.assert_close(probs.sum(1), torch.ones(LOG.n_contexts, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_a_learned_policy_beats_the_logger() -> None:
    learned = learn_policy(WORLD.log(4000, 3), "dm", epochs=15)
    assert WORLD.value(learned, 20_000) > WORLD.value(WORLD.logging, 20_000) + 0.04


@pytest.mark.parametrize("method", ["bips_cap", "dm", "dr"])
def test_the_objective_is_that_of_the_masked_softmax(method: str) -> None:
    """Value and gradient of a whole batch against autograd over masked logits of all actions."""
    trainer = prepare_training(LOG, method, logging_policy=WORLD.logging, initial_spread=0.5, batch_contexts=10**6)
    objective, scorer = trainer.objective, trainer.scorer
    batch = next(iter(trainer.batches.epoch()))
    found = objective.of(scorer, batch)
    weights, bias = scorer.actions()
    wanted = torch.autograd.grad(found, [weights, bias])
    offered = torch.zeros(len(batch.numbers), LOG.n_actions, dtype=torch.bool)
    sets = batch.contexts.candidates
    assert sets is not None
    offered[torch.from_numpy(sets.owner), torch.from_numpy(sets.codes.astype(np.int64))] = True
    logits = (batch.states(scorer) @ weights.T + bias).masked_fill(~offered, -torch.inf)
    log_prob = logits.log_softmax(1)
    rows = log_prob[batch.row_context, batch.row_action]
    reward = objective.rows.fixed["reward"][batch.rows]
    total = torch.zeros(())
    if method != "dm":
        ratio = (
            (rows.detach() - objective.rows.fixed["log_logging"][batch.rows])
            .exp()
            .clamp(max=objective.spec.values.get("cap", np.inf))
        )
        gain = reward - (objective.rows.fixed["imputed"][batch.rows] if method == "dr" else 0.0)
        total = total + (ratio * gain * rows).sum()
    if method != "bips_cap":
        values = objective.rewards(batch)(slice(0, len(batch.numbers)))
        every = torch.zeros(len(batch.numbers), LOG.n_actions)
        cells = torch.from_numpy(sets.padded())
        every.scatter_(1, cells.clamp(min=0), values.where(cells >= 0, 0.0))
        counts = torch.bincount(batch.row_context, minlength=len(batch.numbers)).float()
        total = total + ((log_prob.exp() * every).sum(1) * counts).sum()
    divisor = objective.events_a_batch if objective.spec.per_row else objective.events(batch)
    expected = torch.autograd.grad(total / divisor, [weights, bias])
    for mine, other in zip(wanted, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-6)


def shop(n: int, seed: int) -> pl.DataFrame:
    """Cheap things are shown and bought."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        offered = random.choice(8, int(random.integers(1, 6)), replace=False)
        price = random.random(len(offered)).round(3)
        share = np.exp(-price)
        place = int(random.choice(len(offered), p=share / share.sum()))
        bought = random.random() < 0.9 - 0.8 * price[place]
        rows.append(
            (float(random.normal()), f"i{offered[place]}", float(bought), [f"i{o}" for o in offered], price.tolist())
        )
    return pl.DataFrame(rows, schema=["x", "item", "buy", "offered", "price"], orient="row")


def test_features_of_candidates_are_learned_saved_and_served(tmp_path: Path) -> None:
    roles = {
        "context": ["x"],
        "action": "item",
        "reward": "buy",
        "candidates": "offered",
        "candidate_features": ["price"],
    }
    log = read_log(shop(2500, 0), **roles)  # type: ignore[arg-type]
    learned = learn_policy(log, "dm", epochs=30)
    save_policy(learned, log, tmp_path / "policy")
    saved = load_policy(tmp_path / "policy")
    torch.testing.assert_close(choice_log_probs(saved, log.contexts), choice_log_probs(learned, log.contexts))
    torch.testing.assert_close(logged_log_prob(saved, log), logged_log_prob(learned, log))
    fresh = shop(200, 1)
    served = saved.recommend(fresh, k=1, candidates="offered")
    picked = [
        dict(zip(o, p, strict=True))[a]
        for o, p, a in zip(fresh["offered"], fresh["price"], served["action"], strict=True)
    ]
    prices = [np.array(one) for one in fresh["price"].to_list()]
    least, mean = np.mean([one.min() for one in prices]), np.mean([one.mean() for one in prices])
    assert np.mean(picked) < 0.3 * mean + 0.7 * least
    drawn = saved.recommend(fresh, k=5, mode="sample", seed=0, candidates="offered")
    sizes = drawn.group_by("row", maintain_order=True).len()["len"].to_list()
    assert sizes == [min(5, len(o)) for o in fresh["offered"]]
    unknown = fresh.head(2).with_columns(
        pl.Series("offered", [["new"], ["i1", "new"]]), pl.Series("price", [[0.1], [0.9, 0.1]])
    )
    table = saved.recommend(unknown, k=3, candidates="offered")
    assert table["action"].to_list() == [None, "i1"]
    assert table["note"].to_list() == ["none of its candidates is known", None]
    assert table["probability"].to_list() == [None, 1.0]
    with pytest.raises(Exception, match="looks at features of candidates"):
        saved.recommend(fresh, k=1)


def test_a_whole_catalogue_on_offer_is_no_candidates() -> None:
    from offpolicy.log import Candidates

    every = Candidates.of_lists([list(range(15))] * LOG.n_contexts, LOG.actions.vocabulary)
    plain = replace(LOG, contexts=FeatureTable(dict(LOG.contexts)))
    whole = replace(LOG, contexts=FeatureTable(dict(LOG.contexts), every))
    options = {"logging_policy": "uniform", "epochs": 3}
    one, other = (learn_policy(log, "bips_cap", **options) for log in (plain, whole))  # type: ignore[arg-type]
    torch.testing.assert_close(logged_log_prob(one, plain), logged_log_prob(other, whole), rtol=1e-3, atol=1e-3)
