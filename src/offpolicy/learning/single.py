"""One method, one policy: config → nuisances → objective → head → trainer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch import Tensor

from offpolicy.drawing import facts_html
from offpolicy.engine import engine_of
from offpolicy.estimators import Hyper
from offpolicy.learning.checkpoints import Epoch
from offpolicy.learning.config import LearnerConfig
from offpolicy.learning.methods import MethodSpec
from offpolicy.learning.over_shards import shard_trainer
from offpolicy.learning.prepare import prepare_training
from offpolicy.learning.trainer import Trainer
from offpolicy.log import ActionTable, FeatureTable, LoggedData
from offpolicy.models import GroupedScorer, Scorer
from offpolicy.policies import ScorerPolicy, logged_log_prob
from offpolicy.results import Choice


@dataclass(frozen=True, repr=False)
class LearnedPolicy:
    """A policy learned from a log, and how it was learned."""

    policy: ScorerPolicy = field(repr=False)
    scorer: Scorer = field(repr=False)
    method: str
    label: str
    """What reports print for the method."""
    hyper: Mapping[str, Hyper]
    config: LearnerConfig = field(repr=False)
    history: list[Epoch] = field(repr=False)
    """One record per epoch."""
    best_epoch: int
    """The epoch whose weights these are, from 0; without a metric, the last; −1 is the start."""
    best_metric: float | None
    metric: str | None
    """The metric that chose the epoch."""
    logging: ScorerPolicy | None = field(default=None, repr=False)
    """β̂ as it ended, where it was estimated in alternation."""
    seconds: float = 0.0
    """That learning took, nuisances that were not there yet included."""
    note: str = ""
    """What to know about how it was learned; else empty."""
    choice: Choice | None = None
    """Where the method was chosen: among which candidates, and whether the policy is better than logging."""

    def __repr__(self) -> str:
        """In one line, whatever was chosen among."""
        among = f", chosen among {len(self.choice.candidates)}: {self.choice.recommendation}" if self.choice else ""
        return f"LearnedPolicy({self.label}, {len(self.actions)} actions{among})"

    def _repr_html_(self) -> str:
        """For notebooks: how it was learned."""
        facts = {"method": self.label, "hyper_parameters": dict(self.hyper), "actions": len(self.actions)}
        facts |= {"found": self.choice.sentence} if self.choice else {}
        chosen = {"epochs": len(self.history), "best_epoch": self.best_epoch, str(self.metric): self.best_metric}
        return facts_html("A learned policy", facts | (chosen if self.metric else {"epochs": len(self.history)}))

    @property
    def actions(self) -> ActionTable:
        """The actions it chooses among."""
        return self.policy.actions

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.policy.n_actions

    def aligned(self, actions: ActionTable) -> "LearnedPolicy":
        """The same policy over another table that holds all its actions."""
        return replace(self, policy=self.policy.aligned(actions))

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(·|x), (contexts, actions)."""
        return self.policy.log_probs(contexts)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log π of the candidates, (contexts, width)."""
        return self.policy.log_probs_among(contexts)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of logged rows, float64, actions matched by id."""
        return logged_log_prob(self.policy, log)


def learn_single(log: LoggedData, method: str | MethodSpec, **given: Any) -> LearnedPolicy:
    """Learn with one method; `given` as in `learn_policy`."""
    start = perf_counter()
    engine = given.pop("engine", None)
    if engine is not None and log.n_shards == 1:
        log = log.sharded()
    note = ""
    if log.n_shards > 1:
        with engine_of(engine) as working:
            over_shards = shard_trainer(log, method, engine=working, **given)
            over_shards.run_over(working)
        trainer: Trainer = over_shards
        note = over_shards.note
    else:
        trainer = prepare_training(log, method, **given)
        trainer.run()
    spec, alternation, scorer = trainer.objective.spec, trainer.alternation, trainer.scorer
    if isinstance(scorer, GroupedScorer):
        scorer = scorer.merged()
    return LearnedPolicy(
        ScorerPolicy(scorer, log.actions),
        scorer,
        spec.name,
        spec.label or spec.name,
        spec.values,
        trainer.config,
        trainer.history,
        trainer.best.epoch,
        trainer.best.metric,
        None if trainer.monitor is None else trainer.monitor.name,
        None if alternation is None else ScorerPolicy(alternation.scorer, log.actions),
        seconds=round(perf_counter() - start, 3),
        note=note,
    )
