"""The lines of the learning tables: every method of the paper, and UIPS with an uninformative U."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from offpolicy.learning import METHODS, MethodSpec
from offpolicy.log import LoggedData
from offpolicy.policies import tensor
from offpolicy.tuning import Dimension, Space, search_space

CAPS = Dimension("weight_cap", 0.05, 100.0, log=True)
"""Search range for the cap of IPS with true propensities, as for that of BIPS-Cap."""


@dataclass(frozen=True)
class Entry:
    """A line of a table: a method, and which U it is given."""

    name: str
    method: MethodSpec
    label: str
    uncertainty: str = "own"
    searched: bool = True
    """Whether its settings are searched; else they come from the log."""
    portfolio: bool = False
    """Whether the portfolio learns in the place of the method, and chooses on logged rows by itself."""


CONTROLS = (
    Entry("uips_permuted_u", METHODS["uips"], "UIPS, U permuted", "permuted"),
    Entry("uips_frequency_u", METHODS["uips"], "UIPS, U = 1/√n(a)", "frequency"),
)
LOG_DRIVEN = (
    Entry("uips_log", METHODS["uips"], "UIPS, λ from the log", searched=False),
    Entry("uips_dr_log", METHODS["uips_dr"], "UIPS-DR, λ from the log", searched=False),
    Entry("auto", METHODS["dm"], "auto", searched=False, portfolio=True),
)
"""Lines without a search: the defaults of the library."""
LATER = ("wll", "ls_lin", "potec", "rips", "iips")
"""Learners that are no part of the paper's tables."""
ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (*(Entry(name, row, row.label) for name, row in METHODS.items() if name not in LATER), *CONTROLS)
}
"""Every method of the tables, and UIPS with an uninformed U; BIPS is the control with a constant φ, a factor that Adam
does not see."""


def uninformed(kind: str, u: Tensor, log: LoggedData, random: torch.Generator) -> Tensor:
    """U as it is, the same numbers in another order, or a function of the action's frequency alone."""
    if kind == "permuted":
        return u[torch.randperm(len(u), generator=random)]
    if kind == "frequency":
        action = tensor(log.action).long()
        return torch.bincount(action, minlength=log.n_actions).double().rsqrt()[action]
    return u


LINES: Mapping[str, Entry] = {
    **ENTRIES,
    "bips": replace(ENTRIES["bips"], label="BIPS (constant φ)"),
    **{entry.name: entry for entry in LOG_DRIVEN},
}
"""UIPS with a constant φ has BIPS's weights up to a factor, which Adam does not see: BIPS is that control."""


FOUND_ELSEWHERE: Mapping[str, float | int] = {"validation": 0.0, "trials": 0, "pruned": 0}
"""What is recorded of a search that was not needed."""


def space_of(line: Entry, learning_rates: tuple[float, float], n_actions: int) -> Space:
    """The search space of a line; IPS with true propensities is capped like its estimated twin."""
    space = search_space(line.method, learning_rates=learning_rates, n_actions=n_actions)
    return (*space, CAPS) if line.method.name == "ips_gt" else space
