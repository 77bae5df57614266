"""Where learning starts: what kind of scorer is learned, and whether its first scores are those of q̂."""

import copy
from typing import Any

import torch

from offpolicy.errors import ParameterError
from offpolicy.evaluation import action_groups, learned_groups
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.objective import Objective
from offpolicy.log import LoggedData
from offpolicy.models import (
    GroupedScorer,
    LinearScorer,
    Scorer,
    candidate_logits,
    has_many_ids,
    linear_scorer,
    offered_in,
    set_actions,
    sharpen,
    spectral_scorer,
    two_tower_scorer,
    with_candidate_features,
)
from offpolicy.policies import Policy
from offpolicy.rewards import CrossFittedRewards, RewardModel, choice_rewards
from offpolicy.seeding import torch_generator

GREEDY = 0.003
"""Share of q̂ that the policy at which learning starts may lose to the greedy one."""
GREEDY_CONTEXTS, GREEDY_NUMBERS, SHARPEST = 2_000, 10_000_000, 2.0**12
"""Most contexts, and most contexts × actions, on which that share is measured; and the most by which it may sharpen."""


def scorer_of(log: LoggedData, config: LearnerConfig) -> Any:
    """What kind of scorer is learned: as configured, or as the contexts ask for."""
    if config.scorer != "auto":
        return config.scorer
    return "spectral" if has_many_ids(log.contexts) else "linear"


def make_scorer(log: LoggedData, config: LearnerConfig) -> Scorer:
    """A fresh scorer for a log, as configured."""
    options: dict[str, Any] = dict(config.scorer_options)
    if config.scorer == "spectral":
        return with_candidate_features(spectral_scorer(log, **options), log)
    if callable(config.scorer):
        return with_candidate_features(config.scorer(log), log)
    if config.scorer == "two_tower":
        return with_candidate_features(two_tower_scorer(log, **({"seed": config.seed} | options)), log)
    scorer = linear_scorer(log, **options)
    if config.initial_spread > 0:
        _scatter(scorer, config)
    return with_candidate_features(scorer, log)


@torch.no_grad()
def _scatter(scorer: LinearScorer, config: LearnerConfig) -> None:
    random = torch_generator(config.seed, "learning", "initial")
    scorer.weights.normal_(0.0, config.initial_spread, generator=random)


def model_of(log: LoggedData, config: LearnerConfig, given: Policy | str | None) -> Any:
    """The model of a β̂ to fit: the one that is named, or one like the policy's; None where a policy is given."""
    if given is not None:
        return given if isinstance(given, str) else None
    own = scorer_of(log, config)
    return "auto" if own == "spectral" else own


def grouped_scorer(scorer: Scorer, log: LoggedData, whole: Objective, config: LearnerConfig, starts: bool) -> Scorer:
    """The greedy policy of q̂ with free scores a group; the objective weighs by groups from here on."""
    if not starts or log.candidates is not None or whole.reward_model is None:
        raise ParameterError(
            "'potec' learns which group of actions to show, on top of a q̂ of the policy's own kind and over the whole "
            "catalogue. Use scorer='linear' or 'spectral' and no reward_model; for logs with candidates, 'uips_dr'."
        )
    learned = config.action_groups is None
    groups = (
        learned_groups(log, whole.reward_model, config.seed) if learned else action_groups(config.action_groups, log)
    )
    whole.rows.groups = groups
    return GroupedScorer(scorer, groups)


def starts_from_rewards(model: RewardModel | None, scorer: Scorer, config: LearnerConfig, spec: MethodSpec) -> bool:
    """Whether learning starts at the greedy policy of q̂: where it is asked for, and q̂ has the policy's shape."""
    wanted = config.start == "rewards" or (config.start == "auto" and config.epochs is None) or spec.by_group
    if not wanted or not isinstance(model, CrossFittedRewards):
        return False
    own = model.whole.scorer
    return type(own) is type(scorer) and own.dim == scorer.dim and hasattr(own, "sharpen")


@torch.no_grad()
def greedy_scorer(model: CrossFittedRewards, log: LoggedData) -> Scorer:
    """The scores of q̂, no sharper than it takes to lose next to nothing against its greedy policy."""
    scorer = copy.deepcopy(model.whole.scorer)
    most = max(1, min(GREEDY_CONTEXTS, GREEDY_NUMBERS // log.width))
    some = log.contexts.take(slice(0, min(log.n_contexts, most)))
    weights, bias = scorer.actions()
    scores, rewards = torch.addmm(bias, scorer.states(some), weights.T), choice_rewards(model, some)
    if some.candidates is not None:
        scores = candidate_logits(scorer.states(some), weights, bias, offered_in(some.candidates, scorer))
    factor, best = 1.0, float(rewards.amax(1).mean())
    while factor < SHARPEST and float(((factor * scores).softmax(1) * rewards).sum(1).mean()) < (1 - GREEDY) * best:
        factor *= 2
    sharpen(scorer, factor)
    set_actions(scorer, scorer.actions()[0], scorer.actions()[1] - scorer.actions()[1].mean())
    return scorer
