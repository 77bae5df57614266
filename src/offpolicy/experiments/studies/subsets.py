"""Documents with rare and with frequent labels apart: where does a method gain, and is U higher where labels are rare?

Test documents are halved at the median of the mean log frequency, in the log, of their labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offpolicy.evaluation.ranking import Ranking
from offpolicy.experiments.studies.document_worlds import DocumentProblem
from offpolicy.experiments.studies.documents import Documents
from offpolicy.experiments.studies.study import Candidate, Row, Settings
from offpolicy.log import LoggedData
from offpolicy.uncertainty.rows import uncertainty_of

RARE, FREQUENT = "rare labels", "frequent labels"
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Subsets:
    """The study; its fields are what a recipe may set."""

    tau: float = 0.5
    """Temperature of the logging policy."""
    world: str = "delicious"
    """An XMC data set by the name of its folder."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: "all", or "policy" as in the paper."""

    def labels(self) -> Mapping[str, str]:
        """The lines of the study of documents."""
        return self._documents.labels()

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """As for all documents."""
        return self._documents.tune(line, trials, seed, storage)

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """As for all documents."""
        return self._documents.validate(line, settings, seed)

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """A row for each half of the test documents: its metrics, and the mean U of its labels."""
        found = self._documents.ranking(line, settings, seed)
        rare, u = _halves(self.tau, self.world, self.data, self.redraw, seed)
        return [
            {"subset": name, **_means(found, half), "U": float(u[half].mean())}
            for name, half in ((RARE, rare), (FREQUENT, ~rare))
        ]

    @property
    def _documents(self) -> Documents:
        return Documents(self.tau, self.world, self.data, self.redraw)


def _means(found: Ranking, half: Mask) -> Row:
    columns = {"P": found.user_precision, "R": found.user_recall, "NDCG": found.user_ndcg}
    return {f"{name}@{found.k}": float(values[half].mean()) for name, values in columns.items()}


@lru_cache(maxsize=2)
def _halves(tau: float, world: str, data: str | None, redraw: str, seed: int) -> tuple[Mask, npt.NDArray[np.float64]]:
    drawn = Documents(tau, world, data, redraw).problem(seed)
    return rare_documents(drawn), document_uncertainty(drawn)


def rare_documents(drawn: DocumentProblem) -> Mask:
    """Which test documents have labels that are rarer in the log than the median document's."""
    log, (_, labels) = drawn.estimates.log, drawn.test
    frequency = np.log(np.maximum(np.bincount(log.action, minlength=log.n_actions), 1))
    mean = np.add.reduceat(frequency[labels.actions], labels.offsets[:-1]) / labels.sizes
    return np.asarray(mean < np.median(mean))


def document_uncertainty(drawn: DocumentProblem) -> npt.NDArray[np.float64]:
    """The mean of U over the labels of each test document."""
    log, (contexts, labels) = drawn.estimates.log, drawn.test
    rows = LoggedData.from_arrays(
        contexts, labels.actions, np.ones(len(labels.actions)), context_index=labels.owner, actions=log.actions
    )
    model = drawn.estimates.logging.whole
    u = uncertainty_of(model, log, rows, "per_action", normalisation=drawn.estimates.normalisation)
    return np.add.reduceat(u.numpy(), labels.offsets[:-1]) / labels.sizes
