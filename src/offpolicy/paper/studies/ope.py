"""Errors of off-policy evaluation: estimates of a policy whose value is known, from fresh logs.

Lines of the paper are tuned on the true value of validation documents, as no user can, and stand beside estimates that
take everything from the log and beside controls with a free scale. See `ope_protocol`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from offpolicy.checks import check_choice
from offpolicy.datasets import ExtremeShape, load_xmc
from offpolicy.paper.studies.ope_protocol import Nuisances, one_seed, prepare
from offpolicy.paper.studies.ope_worlds import QUICK, OpeDesign, OpeSplits, synthetic_splits, xmc_splits
from offpolicy.paper.studies.study import Row, Settings, Untuned, known

SYNTHETIC = "synthetic"
KEPT_SEED = 0
"""The documents' split and embedding are drawn once, as are β̂, U and q̂; each seed draws a log of test documents."""

LINES: Mapping[str, tuple[str, str, str]] = {
    "ips_gt": ("IPS-GT", "ips_gt", "none"),
    "bips": ("BIPS", "ips", "none"),
    "bips_cap": ("BIPS-Cap", "clipped", "truth"),
    "minvar_paper": ("MinVar (as printed)", "minvar_paper", "none"),
    "stablevar_paper": ("stableVar (as printed)", "stablevar_paper", "none"),
    "minvar": ("MinVar", "minvar", "none"),
    "stablevar": ("stableVar", "stablevar", "none"),
    "shrinkage": ("Shrinkage", "shrinkage", "truth"),
    "snips": ("SNIPS", "snips", "none"),
    "uips_p": ("UIPS-P", "uips_p", "truth"),
    "uips_o": ("UIPS-O", "uips_o", "truth"),
    "uips": ("UIPS", "uips", "truth"),
    "uips_official": ("UIPS (as released)", "uips_official", "truth"),
    "snuips": ("SNUIPS", "snuips", "truth"),
    "dm": ("DM", "dm", "none"),
    "dr": ("DR", "dr", "none"),
    "sndr": ("SNDR", "sndr", "none"),
    "shrinkage_dr": ("ShrinkageDR", "shrinkage_dr", "truth"),
    "uips_dr": ("UIPSDR", "uips_dr", "truth"),
    "uips_permuted_u": ("UIPS, U permuted", "uips, U shuffled", "truth"),
    "uips_frequency_u": ("UIPS, U = 1/√n(a)", "uips, U = 1/√n_a", "truth"),
    "zero": ("always 0", "constant 0", "none"),
    "scaled_bips": ("c·BIPS", "c·ips", "truth"),
    "scaled_shrinkage": ("c·Shrinkage", "c·shrinkage", "truth"),
    "scaled_mean_reward": ("c·mean reward", "c·mean reward", "truth"),
    "sn_shrinkage": ("SN-Shrinkage", "sn_shrinkage", "truth"),
    "bips_cap_auto": ("BIPS-Cap, from the log", "clipped", "log"),
    "shrinkage_auto": ("Shrinkage, from the log", "shrinkage", "log"),
    "sn_shrinkage_auto": ("SN-Shrinkage, from the log", "sn_shrinkage", "log"),
    "uips_auto": ("UIPS, from the log", "uips", "log"),
    "snuips_auto": ("SNUIPS, from the log", "snuips", "log"),
    "uips_tight": ("UIPS-tight, from the log", "uips_tight", "log"),
    "shrinkage_dr_auto": ("ShrinkageDR, from the log", "shrinkage_dr", "log"),
    "uips_dr_auto": ("UIPSDR, from the log", "uips_dr", "log"),
    "auto": ("the estimate to rely on", "auto", "log"),
}
"""By name: what is printed, the estimator in the protocol, and what its settings come from."""


@dataclass(frozen=True)
class Ope(Untuned):
    """The study; its fields are what a recipe may set."""

    lines: ClassVar[Mapping[str, Any]] = LINES

    tau: float = 0.5
    """Temperature of the logging policy."""
    world: str = "delicious"
    """An XMC data set by the name of its folder, or "synthetic", a small drawn world."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: the test log with everything learnt from a training log, or ("policy") the test log alone."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """Estimators, each tuned as its label says or (those of the paper) on the truth."""
        return {name: label for name, (label, _, _) in LINES.items()}

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """The squared error against the true value, whose mean over seeds is the MSE; and the estimate itself.

        Of the estimate to rely on also whether its interval covers the truth, and whether the verdict answers.
        """
        _, estimator, tuned_on = known(line, LINES)
        drawn = KEPT_SEED if self.redraw == "policy" else seed
        found = _estimates(self.world, self.data, self.tau, drawn, seed)[estimator, tuned_on]
        error = found["value"] - found["truth"]
        row: Row = {"MSE": error**2, "estimate": found["value"], "truth": found["truth"]}
        if "answer" in found:
            row["coverage"] = float(found["low"] <= found["truth"] <= found["high"])
            row["answered"] = float(found["answer"] == "answerable")
        return [row]


@lru_cache(maxsize=1)
def _splits(world: str, data: str | None) -> OpeSplits:
    if world == SYNTHETIC:
        return synthetic_splits(ExtremeShape(400, 60, 8, 4.0, topics=8), KEPT_SEED)
    return xmc_splits(load_xmc(world, data), OpeDesign(), KEPT_SEED)


@lru_cache(maxsize=2)
def _nuisances(world: str, data: str | None, tau: float, drawn: int) -> Nuisances:
    return prepare(_splits(world, data), tau, QUICK if world == SYNTHETIC else OpeDesign(), drawn)


@lru_cache(maxsize=8)
def _estimates(world: str, data: str | None, tau: float, drawn: int, seed: int) -> dict[tuple[str, str], Any]:
    """Every estimate of one drawn test log."""
    rows = one_seed(_nuisances(world, data, tau, drawn), seed)
    return {(row["method"], row["tuned_on"]): row for row in rows}
