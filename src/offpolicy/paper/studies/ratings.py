"""Learning from ratings that users chose to give, tested on ratings of random items: Coat, Yahoo! R3 and KuaiRec.

Two towers learn as in the released code: softmaxes over the items of a batch of 256 rows, β̂ and U re-estimated in
every epoch on the policy's own user states, the weight min(ρ, cap) in the first epoch. Each seed redraws the users to
validate on, β̂, U, q̂ and π; with `redraw = "policy"` the users stay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from offpolicy.checks import check_choice
from offpolicy.datasets import CandidateLists, RankingData, load_coat, load_kuairec, load_yahoo_r3
from offpolicy.evaluation import RankingSums, rank_lists
from offpolicy.learning import LearnerConfig, Trainer, prepare_training
from offpolicy.paper.studies.lines import FOUND_ELSEWHERE, LINES, Entry, space_of, uninformed
from offpolicy.paper.studies.study import Candidate, Row, Settings, known, searched
from offpolicy.policies import Policy, ScorerPolicy
from offpolicy.propensity import FitConfig, LoggingPolicy, fit_logging_policy
from offpolicy.rewards import CrossFittedRewards, RewardFitConfig, fit_reward_model
from offpolicy.seeding import torch_generator
from offpolicy.tuning import Outcome, Report

LEARNING_RATES = (1e-3, 1e-2)
"""On validation users of tuning seeds CE, BIPS-Cap and UIPS did best at 2e-3, after 6 epochs as after 10."""
LOGGED_ROWS = 256
"""In a batch; the released code fills its batches of 512 up with items that were not shown, which weigh nothing."""
LARGEST_WEIGHT = 1e4
"""Of every line without a cap of its own: ratios within a batch reach 1e30, and no training survives that."""
KEPT_SEED = 0


@dataclass(frozen=True)
class Source:
    """A data set: how it is read and split, where its rankings end, and its towers and first-epoch cap."""

    load: Callable[[str | None], RankingData]
    validation: float
    """Share of users to validate on."""
    places: int
    first_epoch_cap: float
    by_positives: bool = False
    """Only users with a positive on both sides, split alike among users of each number of positives."""
    towers: Mapping[str, Any] | None = None


SOURCES: Mapping[str, Source] = {
    "coat": Source(load_coat, 50 / 290, 5, 1.0),
    "yahoo": Source(load_yahoo_r3, 0.05, 5, 0.05, by_positives=True, towers={"items": {"plain": True}}),
    "kuairec": Source(
        load_kuairec,
        0.15,
        50,
        100.0,
        towers={
            "user": {"columns": {"history": 128}, "linear": {"history": 128}},
            "items": {"id_dim": 64, "feature_dim": 64, "plain": True},
        },
    ),
}
"""Coat's 50 users are those the released code means to take; the 14 of the paper choose at random."""


@dataclass(frozen=True)
class Ratings:
    """The study; its fields are what a recipe may set."""

    dataset: str = "coat"
    """"coat", "yahoo" or "kuairec"."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: "all", or "policy" as in the paper."""
    epochs: int = 6
    in_batch: bool = True
    """Whether softmaxes are over the items of a batch, as in the released code, or exact, over all items."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("dataset", self.dataset, tuple(SOURCES))
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """Every method that needs no recorded propensities, and the controls."""
        taken = (line for line in LINES.items() if line[1].method.name != "ips_gt" and not line[1].portfolio)
        return {name: line.label for name, line in taken}

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """Search by the NDCG of validation users."""
        entry = self._entry(line)
        if not entry.searched:
            return [{"settings": {}, **FOUND_ELSEWHERE}]

        def objective(settings: Mapping[str, Any], report: Report) -> Outcome:
            trainer = self._train(entry, settings, seed, report)
            assert trainer.best.metric is not None
            return Outcome(trainer.best.metric)

        space = space_of(entry, LEARNING_RATES, self._read().train.n_actions)
        return searched(objective, space, line, trials, seed, storage)

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """NDCG of validation users after early stopping on them."""
        metric = self._train(self._entry(line), settings, seed).best.metric
        assert metric is not None
        return metric

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """P, R and NDCG over every test user's own items."""
        trainer = self._train(self._entry(line), settings, seed)
        test = self._split(seed)[1]
        policy = ScorerPolicy(trainer.scorer, trainer.log.actions)
        return [rank_lists(policy, test, RankingSums(self._source.places)).means]

    def logging(self, seed: int) -> LoggingPolicy:
        """β̂ with towers of its own, over all items."""
        return _logging(self.dataset, self.data, KEPT_SEED if self.redraw == "policy" else seed)

    @property
    def _source(self) -> Source:
        return SOURCES[self.dataset]

    def _entry(self, line: str) -> Entry:
        known(line, self.labels())
        return LINES[line]

    def _read(self) -> RankingData:
        return _read(self.dataset, self.data)

    def _split(self, seed: int) -> tuple[CandidateLists, CandidateLists]:
        source = self._source
        drawn = KEPT_SEED if self.redraw == "policy" else seed
        return self._read().split(source.validation, drawn, by_positives=source.by_positives)

    def _train(self, line: Entry, settings: Settings, seed: int, report: Report | None = None) -> Trainer:
        """A training stopped on validation users; each epoch's metric is reported."""
        log, (validation, _) = self._read().train, self._split(seed)
        epoch = 0

        def score(policy: Policy) -> float:
            nonlocal epoch
            found = rank_lists(policy, validation, RankingSums(self._source.places)).ndcg
            if report is not None:
                report(epoch, found)
            epoch += 1
            return found

        changes: dict[str, Any] = {"seed": seed, **settings}
        if line.method.uses_reward_model:
            changes["reward_model"] = _rewards(self.dataset, self.data, seed)
        if _chooses_before_learning(line):
            changes |= {"schedule": "pretrained", "in_batch": False, "first_epoch_cap": None}
            changes["logging_policy"] = self.logging(seed)
        trainer = prepare_training(log, line.method, config=self._config(line), validation=score, **changes)
        if line.uncertainty != "own":
            assert trainer.alternation is not None
            trainer.alternation.change_uncertainty = lambda u, at: uninformed(
                line.uncertainty, u, log, torch_generator(seed, "permuted U", at)
            )
        trainer.run()
        return trainer

    def _config(self, line: Entry) -> LearnerConfig:
        return LearnerConfig(
            scorer="two_tower",
            scorer_options=self._source.towers or {},
            schedule="alternate",
            epochs=self.epochs,
            patience=3,
            batch_rows=LOGGED_ROWS,
            in_batch=self.in_batch,
            first_epoch_cap=self._source.first_epoch_cap,
            weight_cap=None if "cap" in line.method.hyper else LARGEST_WEIGHT,
            show_progress=False,
        )


def _chooses_before_learning(line: Entry) -> bool:
    """Whether the method picks rows or actions by β̂ once, so that β̂ cannot alternate with π."""
    return line.method.selection is not None or "log_target_top" in line.method.inputs


@lru_cache(maxsize=1)
def _read(dataset: str, data: str | None) -> RankingData:
    source = SOURCES[dataset]
    found = source.load(data)
    return found.with_positives() if source.by_positives else found


@lru_cache(maxsize=2)
def _rewards(dataset: str, data: str | None, seed: int) -> CrossFittedRewards:
    config = RewardFitConfig(epochs=20, seed=seed, show_progress=False)
    return fit_reward_model(_read(dataset, data).train, "two_tower", config=config)


@lru_cache(maxsize=2)
def _logging(dataset: str, data: str | None, seed: int) -> LoggingPolicy:
    config = FitConfig(epochs=20, seed=seed, show_progress=False)
    return fit_logging_policy(_read(dataset, data).train, "two_tower", config=config, seed=seed)
