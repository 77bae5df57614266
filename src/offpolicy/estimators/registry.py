"""The registry: an estimator is a row, and its signature is its schema.

    V = mean q̂(x, π) + Σ w·(r − q̂(x, a)) / Σ z

A row names a weight function w, what it is divided by (z: one per row, w itself, or a row scale of its own) and whether
a reward model q̂ is present. The weight's positional parameters are what the pipeline supplies (those with a default
are optional); its keyword-only ones are hyper-parameters with declared ranges. One of them is special: a `temperature`
λ takes −log(1 − λ·m)/λ of the mean m of weighted rewards. Everything else (command line, validation, documentation,
search spaces, contract tests) is read from here.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from offpolicy.checks import Range, check_number
from offpolicy.errors import ParameterError
from offpolicy.registry import Registry

WeightFunction = Callable[..., Tensor]
Hyper = float | bool

INPUTS: Mapping[str, str] = {
    "log_ratio": "log π(a|x) − log β̂(a|x) of the logged action",
    "recorded_log_ratio": "log π(a|x) − log β*(a|x), from recorded propensities",
    "log_target": "log π(a|x) of the logged action",
    "log_logging": "log β̂(a|x) of the logged action",
    "uncertainty": "U(x, a) ≥ 0, the standard deviation of log β̂(a|x) up to γ",
    "reward": "r in [0, 1]",
    "context_index": "which context the row points at",
    "action": "the logged action's index",
    "sample_size": "number of independent contexts (the number of rows where it is left out)",
    "log_second_moment": "log Σ_a π(a|x)²/β̂(a|x) of the row's context",
    "log_minvar_mass": "log Σ_a β̂(a|x)/π(a|x)² of the row's context",
    "log_stablevar_mass": "log Σ_a √β̂(a|x)/π(a|x) of the row's context",
    "log_count_prob": "log of the share N(x, a)/N(x) of the row's action among the rows of its context",
    "logging_rank": "rank (0 = likeliest) of the logged action under β̂(·|x)",
    "log_target_top": "log of π's mass on the top-p actions of β̂(·|x)",
    "log_logging_top": "log of β̂'s mass on its own top-p actions",
    "log_group_ratio": "log π(g|x) − log β̂(g|x), g the group of the logged action",
    "log_slate_ratio": "Σ log_ratio over all positions of the row's request",
    "log_cascade_ratio": "Σ log_ratio over the row's position and those above it",
    "log_position_ratio": "log π_l(a|x) − log β̂_l(a|x), the chances of the action in its position whatever is above",
    "slate_surplus": "Σ exp(log_position_ratio) − 1 over all positions of the row's request",
    "log_balanced_ratio": "log-odds of a classifier (scikit-learn) that the action was drawn from π rather than logged",
}
"""Every quantity a weight may ask for, by the name of its positional parameter."""

REFERENCES: Mapping[str, str] = {
    "zhang2023uips": "Zhang et al. 2023, Uncertainty-Aware Instance Reweighting for Off-Policy Learning",
    "horvitz1952": "Horvitz and Thompson 1952, sampling without replacement from a finite universe",
    "strehl2010": "Strehl et al. 2010, Learning from Logged Implicit Exploration Data",
    "swaminathan2015snips": "Swaminathan and Joachims 2015, The Self-Normalized Estimator",
    "su2020dros": "Su et al. 2020, Doubly Robust Off-Policy Evaluation with Shrinkage",
    "zhan2021adaptive": "Zhan et al. 2021, Off-Policy Evaluation via Adaptive Weighting",
    "dudik2011dr": "Dudík et al. 2011, Doubly Robust Policy Evaluation and Learning",
    "wang2017switch": "Wang et al. 2017, Optimal and Adaptive Off-policy Evaluation",
    "lopez2021poxm": "Lopez et al. 2021, Learning from eXtreme Bandit Feedback",
    "xu2022robust": "Xu et al. 2022, Towards Robust Off-Policy Learning for Runtime Uncertainty",
    "dice": "count-based stationary ratios, as the paper's DICE-S",
    "sakhi2024smoothing": "Sakhi et al. 2024, Logarithmic Smoothing for Pessimistic Off-Policy Evaluation",
    "gabbianelli2024exploration": "Gabbianelli et al. 2024, Importance-Weighted Offline Learning Done Right",
    "aouali2023exponential": "Aouali et al. 2023, Exponential Smoothing for Off-Policy Learning",
    "metelli2021subgaussian": "Metelli et al. 2021, Subgaussian and Differentiable Importance Sampling",
    "behnamnia2025lse": "Behnamnia et al. 2025, Log-Sum-Exponential Estimator for Off-Policy Evaluation and Learning",
    "gupta2024baseline": "Gupta et al. 2024, Optimal Baseline Corrections for Off-Policy Contextual Bandits",
    "saito2022mips": "Saito and Joachims 2022, Off-Policy Evaluation for Large Action Spaces via Embeddings",
    "saito2023offcem": "Saito et al. 2023, Off-Policy Evaluation for Large Action Spaces via Conjunct Effect Modeling",
    "sondhi2020balanced": "Sondhi et al. 2020, Balanced Off-Policy Evaluation in General Action Spaces",
    "mcinerney2020rips": "McInerney et al. 2020, Counterfactual Evaluation of Slates with Sequential Interactions",
    "kiyohara2022cascade": "Kiyohara et al. 2022, Doubly Robust Off-Policy Evaluation for Ranking Policies",
    "li2018iips": "Li et al. 2018, Offline Evaluation of Ranking Policies with Click Models",
    "swaminathan2017slates": "Swaminathan et al. 2017, Off-Policy Evaluation for Slate Recommendation",
    "offpolicy": "this project; see docs/estimators.md",
}


@dataclass(frozen=True)
class HyperParameter:
    """One keyword-only parameter of a weight function; `allowed` is None for an on/off switch."""

    name: str
    default: Hyper
    allowed: Range | None

    def check(self, value: Any) -> Hyper:
        """The value, or a ParameterError naming parameter and range."""
        if self.allowed is None:
            if not isinstance(value, bool):
                raise ParameterError(f"{self.name} is a switch: pass True or False, not {value!r}.")
            return value
        return check_number(self.name, value, self.allowed)


@dataclass(frozen=True)
class Estimator:
    """A row of the registry: a weight and how its weighted rewards become a value."""

    name: str
    weight: WeightFunction
    reference: str
    uses_reward_model: bool = False
    constant_baseline: bool = False
    """Whether the constant of least variance stands in for a reward model."""
    normaliser: str | WeightFunction = "count"
    """"count" (z = 1), "weight" (z = w, self-normalised), or a function of the same inputs giving z."""
    ips_limit: Mapping[str, float] | None = None
    """Hyper-parameter values at which the weight becomes plain π/β̂ (at U = 0 where it takes U)."""
    whole_log: bool = False
    """Whether one row's weight depends on the other rows, so that the log cannot be streamed in parts."""
    evaluation_only: bool = False
    """Whether it cannot teach a policy."""
    signed: bool = False
    """Whether weights may be negative."""
    assumes: str = ""
    """For slates, the user model under which it is right: a key of `offpolicy.results.USER_MODELS`."""
    aliases: tuple[str, ...] = ()

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.weight)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs the pipeline must supply."""
        return tuple(
            p.name
            for p in self._signature.parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        )

    @cached_property
    def optional_inputs(self) -> tuple[str, ...]:
        """Names of the inputs the pipeline supplies when it has them."""
        return tuple(
            p.name
            for p in self._signature.parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty
        )

    @cached_property
    def hyper(self) -> Mapping[str, HyperParameter]:
        """The hyper-parameters with defaults and ranges, in the order of the signature."""
        hints = get_type_hints(self.weight, include_extras=True)
        return {
            p.name: HyperParameter(p.name, p.default, _declared_range(hints[p.name]))
            for p in self._signature.parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }

    @cached_property
    def formula(self) -> str:
        """The weight's formula: the first line of its docstring."""
        return (self.weight.__doc__ or "").strip().splitlines()[0]

    def check_hyper(self, given: Mapping[str, Any]) -> dict[str, Hyper]:
        """All hyper-parameters, given or default, each checked against its range."""
        unknown = [name for name in given if name not in self.hyper]
        if unknown:
            takes = ", ".join(self.hyper) or "none"
            raise ParameterError(
                f"Estimator {self.name!r} has no hyper-parameter {unknown[0]!r}; it takes {takes}, "
                f"and the inputs {', '.join(self.inputs + self.optional_inputs)}."
            )
        return {name: p.check(given.get(name, p.default)) for name, p in self.hyper.items()}

    def terms(self, inputs: Mapping[str, Tensor], **hyper: Any) -> tuple[Tensor, Tensor]:
        """Per-row weight w and normaliser z; inputs may hold more than is asked for."""
        missing = [name for name in self.inputs if inputs.get(name) is None]
        if missing:
            raise ParameterError(
                f"Estimator {self.name!r} needs {missing[0]!r} ({INPUTS[missing[0]]}), which was not given."
            )
        checked = self.check_hyper(hyper)
        weight = _call(self.weight, inputs, checked)
        if self.normaliser == "count":
            return weight, torch.ones_like(weight)
        if callable(self.normaliser):
            return weight, _call(self.normaliser, inputs, checked)
        return weight, weight


def _call(function: WeightFunction, inputs: Mapping[str, Tensor], hyper: Mapping[str, Hyper]) -> Tensor:
    asked, settings = _arguments(function)
    given = {name: inputs[name] for name in asked if inputs.get(name) is not None}
    return function(**given, **{name: hyper[name] for name in settings})


@cache
def _arguments(function: WeightFunction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a function's inputs and of its hyper-parameters."""
    parameters = inspect.signature(function).parameters.values()
    settings = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.name not in settings), settings


def _declared_range(hint: Any) -> Range | None:
    if hint is bool:
        return None
    for note in get_args(hint)[1:]:
        if isinstance(note, Range):
            return note
    raise TypeError(f"a hyper-parameter is annotated {hint!r}, without a Range")


ESTIMATORS: Registry[Estimator] = Registry("estimator")


def estimator(name: str, reference: str, **row: Any) -> Callable[[WeightFunction], WeightFunction]:
    """Register the decorated weight function as a row; stack it for variants of the same weight."""

    def register(weight: WeightFunction) -> WeightFunction:
        made = Estimator(name, weight, reference, **row)
        ESTIMATORS.add(name, made, made.aliases)
        return weight

    return register


def weight(name: str, *, log_ratio: Any = None, uncertainty: Any = None, **more: Any) -> Tensor:
    """Per-row weights of the estimator called `name`.

    Inputs (`log_ratio`, `uncertainty` and the others of `INPUTS`) are arrays of one length; every other keyword is a
    hyper-parameter, e.g. `weight("uips", log_ratio=..., uncertainty=..., lam=10, gamma=2, eta1=1, eta2=1)`.
    """
    row = ESTIMATORS.find(name)
    given = {"log_ratio": log_ratio, "uncertainty": uncertainty, **more}
    inputs = {key: _input(key, given.pop(key)) for key in INPUTS if given.get(key) is not None}
    hyper = {key: value for key, value in given.items() if key not in INPUTS}
    lengths = {key: value.shape[0] for key, value in inputs.items() if value.ndim == 1}
    if len(set(lengths.values())) > 1:
        raise ParameterError(f"The inputs of {name!r} differ in length: {lengths}. Pass one value per logged row.")
    return row.terms(inputs, **hyper)[0]


def _input(name: str, value: Any) -> Tensor:
    # Through NumPy, so that plain Python numbers become float64 rather than torch's default float32.
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if name in ("action", "context_index", "logging_rank"):
        tensor = tensor.long()
    elif not tensor.is_floating_point():
        tensor = tensor.double()
    if tensor.ndim != (0 if name == "sample_size" else 1):
        raise ParameterError(f"{name} must be one value per row, but it has shape {tuple(tensor.shape)}.")
    bad = tensor.isnan().nonzero()
    if len(bad):
        where = f" at row {int(bad[0])}" if tensor.ndim else ""
        raise ParameterError(f"{name} is NaN{where}; drop or repair that row before weighing it.")
    low = {"uncertainty": 0.0, "reward": 0.0, "sample_size": 1.0}.get(name, -math.inf)
    if tensor.numel() and float(tensor.min()) < low:
        raise ParameterError(f"{name} must be at least {low:g}, but it holds {float(tensor.min()):g}.")
    return tensor
