"""Documents with labels as a log: contexts, the softmax that labels them, and what is estimated from a draw of it."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from offpolicy.datasets import ExtremeShape, ExtremeWorld, load_xmc
from offpolicy.evaluation import ActionSets
from offpolicy.log import FeatureTable, LoggedData
from offpolicy.models import Full
from offpolicy.paper.studies.estimates import Estimates
from offpolicy.paper.studies.ope_worlds import OpeDesign, OpeSplits, contexts_of, xmc_splits
from offpolicy.propensity import FitConfig
from offpolicy.rewards import RewardFitConfig
from offpolicy.uncertainty import uncertainty_of

WIKI10_SHAPED = "wiki10_shaped"
"""A synthetic world with as many contexts, actions and dimensions as Wiki10-31K."""
SHAPED_PARTS = (11_146, 1_000, 3_000)
"""Its contexts to train, validate and test; the real set has more of the latter two, which only take time."""
VALIDATION = 3_000
ROWS_PER_CONTEXT = 100
EMBEDDING_EPOCHS = 10
"""Where β* ranks validation documents best, of 4 to 25 on three tuning seeds (7 is as good, 15 and 25 are worse)."""
LOGGING_EPOCHS, SHAPED_EPOCHS = 15, 3
"""Passes over the log for β̂ and q̂; the world of Wiki10's shape has time for fewer."""

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
LabelledContexts = tuple[FeatureTable, ActionSets]
"""Contexts and their positive labels."""


@dataclass(frozen=True)
class DocumentProblem:
    """One draw of everything: the log, what is estimated from it, and documents for early stopping and testing."""

    estimates: Estimates
    validation: LabelledContexts
    test: LabelledContexts

    @cached_property
    def rare(self) -> Mask:
        """Which test documents have rarer labels than the median document, by their mean log frequency in the log."""
        log, (_, labels) = self.estimates.log, self.test
        frequency = np.log(np.maximum(np.bincount(log.action, minlength=log.n_actions), 1))
        mean = _label_means(frequency[labels.actions], labels)
        return np.asarray(mean < np.median(mean))

    @cached_property
    def test_uncertainty(self) -> Floats:
        """The mean of U over the labels of each test document."""
        log, (contexts, labels) = self.estimates.log, self.test
        rows = LoggedData.from_arrays(
            contexts, labels.actions, np.ones(len(labels.actions)), context_index=labels.owner, actions=log.actions
        )
        model, normalisation = self.estimates.logging.whole, self.estimates.normalisation
        return _label_means(uncertainty_of(model, log, rows, "per_action", normalisation=normalisation).numpy(), labels)


@lru_cache(maxsize=1)
def document_splits(world: str, data: str | None, seed: int) -> OpeSplits:
    """Training, validation and test documents under β* at temperature 1, drawn or embedded from the seed."""
    if world == WIKI10_SHAPED:
        whole = ExtremeWorld.draw(seed, ExtremeShape(n_contexts=sum(SHAPED_PARTS)))
        cuts = np.cumsum([0, *SHAPED_PARTS])
        return OpeSplits(*(contexts_of(whole, np.arange(a, b)) for a, b in pairwise(cuts)))
    read = load_xmc(world, data)
    held_out = min(VALIDATION, read.train_labels.shape[0] // 4)
    return xmc_splits(read, OpeDesign(validation=held_out, embedding_epochs=EMBEDDING_EPOCHS), seed)


@lru_cache(maxsize=2)
def document_problem(world: str, data: str | None, tau: float, seed: int) -> DocumentProblem:
    """100 actions per training document from softmax(logits/τ), reward 1 where one is a label of the document."""
    splits = document_splits(world, data, seed)
    log = replace(splits.train, temperature=tau).log(seed, ROWS_PER_CONTEXT)
    log = log.take(np.lexsort((log.action, log.context_index)))  # draws of a context have no order; equal ones meet
    shaped = world == WIKI10_SHAPED
    epochs = SHAPED_EPOCHS if shaped else LOGGING_EPOCHS
    estimates = Estimates(
        log,
        seed,
        FitConfig(epochs=epochs, seed=seed, show_progress=False),
        RewardFitConfig(epochs=epochs, seed=seed, show_progress=False),
        Full(),
        "official" if shaped else "raw",
    )
    return DocumentProblem(estimates, _labelled(splits.validation), _labelled(splits.test))


def _label_means(values: Floats, labels: ActionSets) -> Floats:
    """The mean over the labels of each document of numbers given label by label."""
    return np.asarray(np.add.reduceat(values, labels.offsets[:-1]) / labels.sizes)


def _labelled(world: ExtremeWorld) -> LabelledContexts:
    owner = np.repeat(np.arange(world.contexts.n_rows), np.diff(world.positive_offsets))
    return world.contexts, ActionSets.from_rows(owner, world.positive_actions, world.contexts.n_rows)
