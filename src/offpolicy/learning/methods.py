"""The learners by name: a method is a row that pairs a weight of the registry with an objective."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator, Hyper, HyperParameter
from offpolicy.evaluation import ALL_ACTION_INPUTS
from offpolicy.learning.objectives import OBJECTIVES, Objective
from offpolicy.registry import Registry

Gradient = Literal["frozen", "exact"]

LOGGING_INPUTS = frozenset({"log_ratio", "log_logging", *ALL_ACTION_INPUTS})
"""Inputs that need β̂."""


@dataclass(frozen=True)
class Method:
    """How one learner weighs rows and what it climbs."""

    name: str
    weight: str | None
    """The weight's name in the registry; None weighs every row 1, whatever π (likelihood)."""
    objective: str = ""
    """Which objective; empty takes the one the registry's normaliser implies."""
    label: str = ""
    """What reports print; empty prints the name."""
    gradient: Gradient = "frozen"
    """Whether φ is held fixed, or the weight's true derivative is followed."""
    selection: str | None = None
    """An estimator that only decides, once and over the whole log, which rows count."""
    defaults: Mapping[str, Hyper] = field(default_factory=dict)
    """Hyper-parameters whose default differs from the registry's or the objective's."""

    @cached_property
    def estimator(self) -> Estimator | None:
        """The weight's row in the registry."""
        return None if self.weight is None else ESTIMATORS[self.weight]

    @cached_property
    def climbs(self) -> Objective:
        """The row of the table of objectives."""
        if self.objective:
            return OBJECTIVES[self.objective]
        normaliser = "count" if self.estimator is None else self.estimator.normaliser
        if normaliser == "count":
            return OBJECTIVES["value"]
        return OBJECTIVES["self_normalised" if normaliser == "weight" else "frozen_normaliser"]

    @cached_property
    def hyper(self) -> Mapping[str, HyperParameter]:
        """Every hyper-parameter with range and default: the weight's, the selection's and the objective's."""
        found: dict[str, HyperParameter] = {} if self.estimator is None else dict(self.estimator.hyper)
        if self.selection is not None:
            found |= ESTIMATORS[self.selection].hyper
        found |= self.climbs.hyper
        for name, value in self.defaults.items():
            found[name] = HyperParameter(name, value, found[name].allowed)
        return found

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Names of the registry's inputs it uses, those supplied when they are there included."""
        if self.estimator is None or not self.corrects:
            return frozenset()
        return frozenset(self.estimator.inputs + self.estimator.optional_inputs)

    @property
    def corrects(self) -> bool:
        """Whether logged rewards enter at all; the direct method uses the reward model alone."""
        return self.weight != "dm"

    @property
    def weighs(self) -> bool:
        """Whether logged rewards are weighted by how likely π is to take the action."""
        return self.weight is not None and self.corrects

    @property
    def needs_logging_policy(self) -> bool:
        """Whether it needs β̂."""
        return bool(self.inputs & LOGGING_INPUTS) or self.selection is not None

    @property
    def needs_uncertainty(self) -> bool:
        """Whether it needs U."""
        return "uncertainty" in self.inputs

    @property
    def uses_reward_model(self) -> bool:
        """Whether it needs q̂."""
        return self.estimator is not None and self.estimator.uses_reward_model

    def check_hyper(self, given: Mapping[str, Any]) -> dict[str, Hyper]:
        """All hyper-parameters, given or default, each checked against its range."""
        unknown = [name for name in given if name not in self.hyper]
        if unknown:
            takes = ", ".join(self.hyper) or "none"
            raise ParameterError(f"Method {self.name!r} has no hyper-parameter {unknown[0]!r}; it takes {takes}.")
        return {name: p.check(given.get(name, p.default)) for name, p in self.hyper.items()}


_ROWS: Mapping[str, Method] = {
    row.name: row
    for row in (
        Method("ce", None, label="CE"),
        Method("ips_gt", "ips_gt", label="IPS-GT"),
        Method("bips", "ips", label="BIPS"),
        Method("bips_cap", "clipped", label="BIPS-Cap"),
        Method("minvar", "minvar", label="MinVar"),
        Method("stablevar", "stablevar", label="stableVar"),
        Method("minvar_paper", "minvar_paper", label="MinVar (as printed)"),
        Method("stablevar_paper", "stablevar_paper", label="stableVar (as printed)"),
        Method("shrinkage", "shrinkage", label="Shrinkage"),
        Method("snips", "snips", label="SNIPS"),
        Method("snips_frozen", "snips", "frozen_normaliser", label="SNIPS (frozen normaliser)"),
        Method("banditnet", "ips", "translated", label="BanditNet", defaults={"translation": 0.1}),
        Method("poem", "clipped", "variance_penalised", label="POEM", gradient="exact"),
        Method("poxm", "poxm", "translated", label="POXM"),
        Method("prune", "ips", label="Prune", selection="prune"),
        Method("adaptive", "clipped", "with_negatives", label="Adaptive (reconstruction)"),
        Method("uips_p", "uips_p", label="UIPS-P"),
        Method("uips_o", "uips_o", label="UIPS-O"),
        Method("uips", "uips", label="UIPS"),
        Method("uips_tight", "uips_tight", label="UIPS-tight"),
        Method("dm", "dm", label="DM"),
        Method("dr", "dr", label="DR"),
        Method("minvar_dr", "minvar_dr", label="MinVarDR"),
        Method("shrinkage_dr", "shrinkage_dr", label="ShrinkageDR"),
        Method("uips_dr", "uips_dr", label="UIPSDR"),
        Method("dice_s", "dice_s", label="DICE-S"),
        Method("ips_un", "ips_un", label="IPS-UN"),
        Method("ips_un_simplex", "ips_un_simplex", label="IPS-UN (simplex)"),
    )
}
METHODS = Registry("method", _ROWS)
"""The learners of the paper and of this project; any other name of the registry is a method too."""


def find_method(name: Any) -> Method:
    """The method called `name`: a row of `METHODS`, or any registered estimator as it stands."""
    if isinstance(name, Method):
        return name
    if name in METHODS:
        return METHODS[name]
    if name in ESTIMATORS:
        row = ESTIMATORS[name]
        return METHODS.get(row.name, Method(row.name, row.name))
    raise METHODS.unknown(name, also=ESTIMATORS)
