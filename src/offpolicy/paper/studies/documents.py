"""Learning to label documents from a log of drawn labels: the paper's synthetic table, at one temperature.

A document is x = W·words and β*(a|x) = softmax((x·θ + b)/τ), fitted to labels as in the paper. A policy learns from 100
drawn actions per training document, stops on validation documents, and ranks all labels of test documents. Each seed
redraws the split, the embedding, the log, β̂, U and q̂; with `redraw = "policy"` they stay and only π varies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offpolicy.checks import check_choice
from offpolicy.evaluation import Ranking, rank_all
from offpolicy.learning import LearnedPolicy, LearnerConfig, learn_policy, monitor_of
from offpolicy.paper.studies.document_worlds import (
    ROWS_PER_CONTEXT,
    WIKI10_SHAPED,
    DocumentProblem,
    document_problem,
)
from offpolicy.paper.studies.lines import FOUND_ELSEWHERE, LINES, Entry, space_of
from offpolicy.paper.studies.study import Candidate, Row, Settings, known, searched
from offpolicy.tuning import Outcome, Problem, Report

METRIC = "NDCG@5"
RARE, FREQUENT = "rare labels", "frequent labels"
"""Halves of the test documents, cut at the median of the mean log frequency, in the log, of their labels."""
LEARNER = LearnerConfig(epochs=8, batch_contexts=128, patience=4, initial_spread=0.01, show_progress=False)
TRIAL = replace(LEARNER, patience=2)
"""Trials of a search have less patience than final runs: there are many more of them."""
THOROUGH = replace(LEARNER, epochs=16)
"""The patience of trials and final runs alike, where time does not matter."""
LEARNING_RATES = (2e-3, 2e-2)
"""As the batch size, chosen on validation documents of the tuning seed by CE, BIPS-Cap, Shrinkage, UIPS and IPS-GT:
with batches of 256 none of them is done after 8 epochs, the last two least; batches of 64 gain less than they cost."""
GROUPS = 50
"""The test documents, which are the same for all lines and seeds, by number modulo this: for tests over documents."""
KEPT_SEED = 0
"""The draw of everything but π where only π varies."""

RELEASED_RATE, RELEASED_ROWS = 1e-5, 512
RELEASED: Mapping[float, Mapping[str, float]] = {
    0.5: {"lam": 20.0, "eta1": 2.0, "gamma": 25.0, "eta2": 1000.0},
    1.0: {"lam": 50.0, "eta1": 1.0, "gamma": 10.0, "eta2": 10_000.0},
    2.0: {"lam": 50.0, "eta1": 0.1, "gamma": 20.0, "eta2": 1000.0},
}
"""UIPS on Wiki10 in the released scripts, by temperature; all of them step by 1e-5 on 512 rows."""
RELEASED_EPOCHS, SHAPED_BATCH = 2, 256


@dataclass(frozen=True)
class Documents:
    """The study; its fields are what a recipe may set."""

    tau: float = 0.5
    """Temperature of the logging policy."""
    world: str = "delicious"
    """An XMC data set by the name of its folder, or "wiki10_shaped"."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: "all", or "policy" as in the paper."""
    thorough: bool = False
    """Whether trainings may be twice as long, and no trial of a search is pruned."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """Every method, and the controls."""
        return {name: line.label for name, line in LINES.items()}

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """Search by NDCG@5 of validation documents; the Wiki10-shaped world takes the released settings as they are."""
        entry = known(line, LINES)
        if self.world == WIKI10_SHAPED:
            return [{"settings": self._released(entry), **FOUND_ELSEWHERE}]
        if not entry.searched:
            return [{"settings": {}, **FOUND_ELSEWHERE}]
        drawn = self.problem(seed)
        monitor = monitor_of(drawn.validation, METRIC)
        assert monitor is not None
        problem = Problem(drawn.estimates.log, monitor.score, drawn.estimates.given(entry))
        config = THOROUGH if self.thorough else TRIAL

        def objective(settings: Mapping[str, Any], report: Report) -> Outcome:
            return problem.trial(entry.method, config, {**settings, "seed": seed}, report)

        space = space_of(entry, LEARNING_RATES, drawn.estimates.log.n_actions)
        return searched(objective, space, line, trials, seed, storage, prune=not self.thorough)

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """NDCG@5 of validation documents after early stopping on them; 0 where released settings leave no choice."""
        entry = known(line, LINES)
        if self.world == WIKI10_SHAPED:
            return 0.0
        learned = self.learn(entry, settings, seed)
        assert learned.best_metric is not None
        return learned.best_metric

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """P@5, R@5 and NDCG@5 over all labels of test documents, and of each half with the mean U of its labels."""
        found = self.ranking(line, settings, seed)
        each = found.by_user
        groups = {
            name: [round(float(values[one::GROUPS].mean()), 6) for one in range(min(GROUPS, len(values)))]
            for name, values in each.items()
        }
        whole = {**found.means, "clusters": groups}
        if self.world == WIKI10_SHAPED:  # drawn to be large, its labels have no halves of interest
            return [whole]
        drawn = self.problem(seed)
        halves = {RARE: drawn.rare, FREQUENT: ~drawn.rare}
        return [
            whole,
            *(
                {"subset": name, **{metric: float(values[half].mean()) for metric, values in each.items()}}
                | {"U": float(drawn.test_uncertainty[half].mean())}
                for name, half in halves.items()
            ),
        ]

    def ranking(self, line: str, settings: Settings, seed: int) -> Ranking:
        """All labels of test documents, ranked by a policy of one line."""
        learned = self.learn(known(line, LINES), settings, seed)
        return rank_all(learned.policy, *self.problem(seed).test)

    def problem(self, seed: int) -> DocumentProblem:
        """The draw of a seed."""
        return document_problem(self.world, self.data, self.tau, KEPT_SEED if self.redraw == "policy" else seed)

    def learn(self, line: Entry, settings: Settings, seed: int) -> LearnedPolicy:
        """A policy of one line, stopped on validation documents; the portfolio looks at nothing but the log."""
        drawn = self.problem(seed)
        if line.portfolio:
            return learn_policy(drawn.estimates.log, seed=seed, show_progress=False)
        changes: dict[str, Any] = {**settings, "seed": seed}
        given = drawn.estimates.given(line)
        return learn_policy(
            drawn.estimates.log,
            line.method,
            config=self._config,
            validation=drawn.validation,
            metric=METRIC,
            **given,
            **changes,
        )

    @property
    def _config(self) -> LearnerConfig:
        if self.world == WIKI10_SHAPED:
            return replace(LEARNER, batch_contexts=SHAPED_BATCH)
        return THOROUGH if self.thorough else LEARNER

    def _released(self, line: Entry) -> dict[str, Any]:
        """The released settings: a step takes more rows than theirs, and is longer in proportion."""
        rows = SHAPED_BATCH * ROWS_PER_CONTEXT
        settings: dict[str, Any] = {"learning_rate": RELEASED_RATE * rows / RELEASED_ROWS, "epochs": RELEASED_EPOCHS}
        own = RELEASED.get(self.tau, RELEASED[0.5])
        return settings | {name: value for name, value in own.items() if name in line.method.hyper}
