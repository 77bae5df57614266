"""What a search varies: read from the declared ranges of a method's hyper-parameters, never written twice.

The n-th setting of a space is the n-th point of a low-discrepancy sequence: a study is the same whether or not it was
interrupted, and every method tries the same learning rates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scipy.stats import qmc

from offpolicy.checks import check_choice
from offpolicy.errors import ParameterError
from offpolicy.estimators import HyperParameter
from offpolicy.learning import MethodSpec, find_method
from offpolicy.seeding import generator

Preset = Literal["effective", "paper"]
PRESETS: tuple[Preset, ...] = ("effective", "paper")
Setting = float | int
Space = tuple["Dimension", ...]

LEARNING_RATE = "learning_rate"
LEARNING_RATES = (1e-3, 0.1)
PAPER_LEARNING_RATES = (1e-5, 1e-4, 1e-3, 1e-2)

FIXED = frozenset({"eta1", "eta2"})
"""UIPS depends on λ and η1 through η1²/λ alone, so only λ is varied; η2 = η1 = 1 is the theorem's own case."""
LAMBDAS = (0.1, 1e5)
"""Search range of λ: the paper's grid and up to where weights are hardly shrunk any more."""
PER_CONTEXT = (1e-4, 10.0)
"""Search range of λ in weights that multiply it by the number of contexts."""
DECADE = 10.0
"""A range that spans this factor is searched on a log scale."""


@dataclass(frozen=True)
class Dimension:
    """A search dimension: an interval on a plain or log scale, or a list of choices."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[float, ...] = ()

    def at(self, share: float) -> Setting:
        """The value a share in [0, 1) of the way up."""
        if self.choices:
            return self.choices[int(share * len(self.choices))]
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        if self.integer:
            return int(min(max(round(value), self.low), self.high))
        # Four figures say as much as sixteen, and can be typed.
        return min(max(float(f"{value:.4g}"), self.low), self.high)

    def as_json(self) -> dict[str, Any]:
        """What identifies it in a stored study."""
        return {"name": self.name, "low": self.low, "high": self.high, "log": self.log, "choices": list(self.choices)}


def search_space(
    method: str | MethodSpec,
    preset: str = "effective",
    *,
    learning_rates: tuple[float, float] | None = None,
    n_actions: int | None = None,
) -> Space:
    """The dimensions of a method, the learning rate first.

    "effective" varies what has an effect: γ and η1²/λ (through λ) for the UIPS family, own parameters on log scales for
    the others. "paper" lists the paper's grids as they are. `n_actions` cuts counts of actions to as many as there are.
    """
    check_choice("space", preset, PRESETS)
    row = find_method(method)
    if preset == "paper":
        if learning_rates is not None:
            raise ParameterError("The paper's space has its own learning rates. Use space='effective' to choose them.")
        rate = Dimension(LEARNING_RATE, choices=PAPER_LEARNING_RATES)
        return (rate, *(dimension for p in row.hyper.values() for dimension in _grid_dimension(p)))
    low, high = learning_rates or LEARNING_RATES
    if not 0 < low < high < math.inf:
        raise ParameterError(f"learning_rates must be (low, high) with 0 < low < high, but it is {(low, high)}.")
    own = (dimension for p in row.hyper.values() for dimension in _range_dimension(p, row, n_actions))
    return (Dimension(LEARNING_RATE, low, high, log=True), *own)


def _grid_dimension(parameter: HyperParameter) -> tuple[Dimension, ...]:
    allowed = parameter.allowed
    if allowed is None or not allowed.grid:
        return ()
    return (Dimension(parameter.name, choices=allowed.grid, integer=allowed.integer),)


def _range_dimension(parameter: HyperParameter, method: MethodSpec, n_actions: int | None) -> tuple[Dimension, ...]:
    allowed, name = parameter.allowed, parameter.name
    if allowed is None or name in FIXED or not allowed.grid:
        return ()
    if name == "lam":
        low, high = PER_CONTEXT if "sample_size" in method.inputs else LAMBDAS
    else:
        positive = [value for value in allowed.grid if value > 0]
        low, high = min(positive), max(positive)
    if allowed.integer and n_actions is not None:
        low, high = min(low, max(1, n_actions // DECADE)), min(high, n_actions)
    log = high / low >= DECADE and name != "translation"
    return (Dimension(name, low, high, log, allowed.integer),)


def setting(space: Space, point: int, seed: int) -> dict[str, Setting]:
    """The `point`-th setting: that point of a scrambled Halton sequence.

    Its coordinates are drawn one after the other, so that the first dimension has the same values whatever follows.
    """
    sequence = qmc.Halton(len(space), scramble=True, rng=generator(seed, "tuning")).fast_forward(point)
    return {
        dimension.name: dimension.at(float(share))
        for dimension, share in zip(space, sequence.random(1)[0], strict=True)
    }


def describe(space: Space) -> str:
    """One line for people, e.g. `lam 0.1 to 1000 (log)`."""
    return ", ".join(_described(dimension) for dimension in space)


def _described(dimension: Dimension) -> str:
    if dimension.choices:
        return (
            f"{dimension.name} of {len(dimension.choices)} values {dimension.choices[0]:g} to {dimension.choices[-1]:g}"
        )
    return f"{dimension.name} {dimension.low:g} to {dimension.high:g}{' (log)' if dimension.log else ''}"


def as_settings(values: Mapping[str, Any]) -> dict[str, Setting]:
    """Plain numbers, as a store gives them back."""
    return {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
