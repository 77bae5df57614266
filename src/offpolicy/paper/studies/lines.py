"""The lines of the learning tables: every method of the paper, and UIPS with what it claims to need taken away."""

from collections.abc import Mapping
from dataclasses import replace

from offpolicy.paper.learning_runs import ENTRIES, Entry
from offpolicy.tuning import Dial, Space, search_space

CAPS = Dial("weight_cap", 0.05, 100.0, log=True)
"""Where to look for the cap of IPS with true propensities, as for that of BIPS-Cap."""

LINES: Mapping[str, Entry] = {**ENTRIES, "bips": replace(ENTRIES["bips"], label="BIPS (constant φ)")}
"""UIPS with a constant φ has BIPS's weights up to a factor, which Adam does not see: BIPS is that control."""


def space_of(line: Entry, learning_rates: tuple[float, float], n_actions: int) -> Space:
    """What tuning turns of a line; IPS with true propensities is capped like its estimated twin."""
    space = search_space(line.method, learning_rates=learning_rates, n_actions=n_actions)
    return (*space, CAPS) if line.method.name == "ips_gt" else space
