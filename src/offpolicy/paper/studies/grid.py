"""UIPS over a grid of γ and λ on documents: the paper's hyper-parameter figure, and our effective pair."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from offpolicy.checks import PAPER_GRID
from offpolicy.paper.studies.documents import Documents
from offpolicy.paper.studies.study import Candidate, Row, Settings, known

ETAS: Mapping[str, tuple[str, float, float]] = {
    "paper": ("UIPS, η1 = 2, η2 = 1000", 2.0, 1000.0),
    "effective": ("UIPS, η1 = η2 = 1", 1.0, 1.0),
}
"""By line: what is printed, η1, η2. With one η for both UIPS depends on it and λ through η²/λ; η2 = 1000 switches its
second term off."""
COARSE = (0.1, 1.0, 5.0, 20.0, 50.0)


@dataclass(frozen=True)
class Grid:
    """The study; its fields are what a recipe may set."""

    tau: float = 0.5
    """Temperature of the logging policy."""
    world: str = "delicious"
    """An XMC data set by the name of its folder."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: "all", or "policy" as in the paper."""
    fine: bool = True
    """Whether γ and λ take all twelve values of the paper's grid, or five of them."""

    def labels(self) -> Mapping[str, str]:
        """The paper's pair of η, and that of the theorem."""
        return {name: label for name, (label, _, _) in ETAS.items()}

    def tune(self, line: str, trials: int, seed: int, storage: Path | None = None) -> list[Candidate]:
        """The learning rates of UIPS's own search: the best settings' γ and λ give way to the grid."""
        known(line, ETAS)
        return [
            {**found, "settings": {"learning_rate": found["settings"]["learning_rate"]}}
            for found in self._documents.tune("uips", trials, seed, storage)
        ]

    def validate(self, line: str, settings: Settings, seed: int) -> float:
        """The validation metric of the paper's best point, γ = 25 and λ = 20, at this learning rate."""
        return self._documents.validate("uips", {**settings, **self._etas(line), "gamma": 25.0, "lam": 20.0}, seed)

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """Test metrics of every point, with its `gamma` and `lam`."""
        values = PAPER_GRID if self.fine else COARSE
        return [
            {"gamma": gamma, "lam": lam, **self._point(line, {**settings, "gamma": gamma, "lam": lam}, seed)}
            for gamma in values
            for lam in values
        ]

    def _point(self, line: str, settings: Settings, seed: int) -> Row:
        return self._documents.ranking("uips", {**settings, **self._etas(line)}, seed).means

    def _etas(self, line: str) -> dict[str, float]:
        _, eta1, eta2 = known(line, ETAS)
        return {"eta1": eta1, "eta2": eta2}

    @property
    def _documents(self) -> Documents:
        return Documents(self.tau, self.world, self.data, self.redraw)
