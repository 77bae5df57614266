"""What the tables and figures of the paper are made of: one study each, which the runner tunes and measures."""

from collections.abc import Mapping

from offpolicy.experiments.studies.documents import Documents
from offpolicy.experiments.studies.frequency import Frequency
from offpolicy.experiments.studies.grid import Grid
from offpolicy.experiments.studies.ope import Ope
from offpolicy.experiments.studies.ratings import Ratings
from offpolicy.experiments.studies.study import Candidate, Row, Settings, Study

__all__ = ["STUDIES", "Candidate", "Row", "Settings", "Study"]

STUDIES: Mapping[str, type[Study]] = {
    "documents": Documents,
    "frequency": Frequency,
    "grid": Grid,
    "ope": Ope,
    "ratings": Ratings,
}
"""Studies by the name a recipe gives."""
