"""Figure 1: how the estimated propensity and its uncertainty change with how often an action was logged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from offpolicy.checks import check_choice
from offpolicy.paper.studies.documents import Documents
from offpolicy.paper.studies.ratings import SOURCES, Ratings
from offpolicy.paper.studies.study import Row, Settings, Untuned, known
from offpolicy.propensity import LoggingPolicy
from offpolicy.uncertainty import frequency_profile, row_uncertainty

LINES = {"profile": "logged rows"}


@dataclass(frozen=True)
class Frequency(Untuned):
    """The study; its fields are what a recipe may set."""

    lines: ClassVar[Mapping[str, Any]] = LINES

    dataset: str = "documents"
    """"documents", or a data set of ratings."""
    tau: float = 0.5
    """Temperature of the logging policy of documents."""
    world: str = "delicious"
    """Which documents: an XMC data set by the name of its folder."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws; there is no policy here, so "policy" redraws nothing."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("dataset", self.dataset, ("documents", *SOURCES))

    def labels(self) -> Mapping[str, str]:
        """One line: the profile."""
        return LINES

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """A row for each bucket of frequency: mean β̂ and U of its logged rows, and how many rows and actions it has."""
        known(line, LINES)
        return [found.to_json() for found in frequency_profile(*self._estimates(seed))]

    def _estimates(self, seed: int) -> tuple[LoggingPolicy, Tensor]:
        if self.dataset == "documents":
            found = Documents(self.tau, self.world, self.data, self.redraw).problem(seed).estimates
            return found.logging, found.own
        logging = Ratings(self.dataset, self.data, self.redraw).logging(seed)
        return logging, row_uncertainty(logging, "shared")
