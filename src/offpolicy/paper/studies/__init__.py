"""What the tables and figures of the paper are made of: one study each, which the runner tunes and measures."""

from offpolicy.paper.studies.documents import Documents
from offpolicy.paper.studies.frequency import Frequency
from offpolicy.paper.studies.grid import Grid
from offpolicy.paper.studies.jester import Jester
from offpolicy.paper.studies.linear_worlds import LinearWorlds
from offpolicy.paper.studies.ope import Ope
from offpolicy.paper.studies.open_bandit import OpenBandit
from offpolicy.paper.studies.ratings import Ratings
from offpolicy.paper.studies.study import Candidate, Row, Settings, Study
from offpolicy.registry import Registry

__all__ = ["STUDIES", "Candidate", "Row", "Settings", "Study"]

_STUDIES: dict[str, type[Study]] = {
    "documents": Documents,
    "frequency": Frequency,
    "grid": Grid,
    "jester": Jester,
    "linear_worlds": LinearWorlds,
    "ope": Ope,
    "open_bandit": OpenBandit,
    "ratings": Ratings,
}
STUDIES = Registry("study", _STUDIES)
"""Studies by the name a recipe gives."""
