"""The learners by name: a method is a row that pairs a weight of the registry with an objective."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from offpolicy.errors import ParameterError
from offpolicy.estimators import ESTIMATORS, Estimator, Hyper, HyperParameter
from offpolicy.evaluation import ALL_ACTION_INPUTS, SLATE_RATIOS
from offpolicy.learning.objectives import OBJECTIVES, ObjectiveSpec
from offpolicy.registry import Registry

Gradient = Literal["frozen", "exact"]

LOGGING_INPUTS = frozenset({"log_ratio", "log_logging", *SLATE_RATIOS, *ALL_ACTION_INPUTS})
"""Inputs that need β̂."""
AUTO, PAPER = "auto", "paper"
"""Values of a hyper-parameter that stand for another: computed from the log, or the registry's constant."""
LEARNING_SHARE = 0.25
"""Share of a 95 % band of β̂ that γ spans where UIPS teaches: the whole band holds back too many rows. Set on even
settings of benchmarks/defaults.py."""
LEARNING_GAMMA = 2 * LEARNING_SHARE
"""γ of UIPS where it teaches, if U is the standard error of log β̂; γ = "auto" calibrates it by refits of β̂."""
LEARNING_EVENTS = 4.0
"""λ from the log grows with so many times the events per number that is learned. Set on even settings of
benchmarks/defaults.py."""
LOG_DRIVEN = ("lam", "cap", "smoothing")
"""Hyper-parameters that can follow the log."""


@dataclass(frozen=True)
class MethodSpec:
    """How one learner weighs rows and what it maximises.

    A row of `METHODS` names weight and objective; `resolve_config` fills in the settings of a training.
    """

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
    given: Mapping[str, Hyper] = field(default_factory=dict)
    """Hyper-parameters of this training; the others have their defaults."""
    auto: tuple[str, ...] = ()
    """Hyper-parameters that follow the log: their values are computed anew for every epoch."""
    reward_baseline: float = 0.0
    """Subtracted from every reward."""
    top_k: int = 1
    """K of the top-K correction."""
    weight_cap: float | None = None
    """A cap on the weight."""
    by_group: bool = False
    """Whether only what the actions of a group share is learned, on top of the greedy policy of q̂."""
    in_batch: bool = False
    """Whether β̂ and π are softmaxes over the actions of a batch."""

    @cached_property
    def estimator(self) -> Estimator | None:
        """The weight's row in the registry."""
        return None if self.weight is None else ESTIMATORS[self.weight]

    @cached_property
    def formula(self) -> ObjectiveSpec:
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
        hyper: dict[str, HyperParameter] = {} if self.estimator is None else dict(self.estimator.hyper)
        if self.selection is not None:
            hyper |= ESTIMATORS[self.selection].hyper
        hyper |= self.formula.hyper
        for name, value in self.defaults.items():
            hyper[name] = HyperParameter(name, value, hyper[name].allowed)
        return hyper

    @cached_property
    def values(self) -> Mapping[str, Hyper]:
        """The value of every hyper-parameter, given or default."""
        return {name: self.given.get(name, p.default) for name, p in self.hyper.items()}

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

    @property
    def compares_rows(self) -> bool:
        """Whether the weight of a row depends on the other rows."""
        return self.estimator is not None and self.estimator.whole_log

    @property
    def follows_slates(self) -> bool:
        """Whether the weight of a row takes in the positions above it, and its gain the rewards below."""
        return "log_cascade_ratio" in self.inputs

    @property
    def per_row(self) -> bool:
        """Whether a row's coefficient depends on that row alone, so that one fused pass serves."""
        return self.formula.per_row and not self.compares_rows

    @property
    def skips_zero_reward(self) -> bool:
        """Whether rows with zero reward provably have a zero coefficient."""
        zero_without_gain = self.formula.zero_without_gain or self.values.get("translation") == 0
        gain_is_reward = self.reward_baseline == 0 and not self.uses_reward_model and not self.follows_slates
        return zero_without_gain and self.per_row and gain_is_reward and not self.in_batch

    @property
    def merges(self) -> bool:
        """Whether equal rows may stand as one: no quantity is taken over the rows of the log or the batch as such."""
        return not self.in_batch and not self.compares_rows and not self.follows_slates

    def capped(self, cap: float) -> "MethodSpec":
        """The same with the weight min(ρ, cap), for the first epoch."""
        plain = MethodSpec(self.name, "clipped", "value", given={"cap": cap})
        return replace(plain, reward_baseline=self.reward_baseline, top_k=self.top_k, in_batch=self.in_batch)

    def check_hyper(self, given: Mapping[str, Any]) -> dict[str, Hyper]:
        """All hyper-parameters, given or default, each checked against its range."""
        unknown = [name for name in given if name not in self.hyper]
        if unknown:
            takes = ", ".join(self.hyper) or "none"
            raise ParameterError(f"Method {self.name!r} has no hyper-parameter {unknown[0]!r}; it takes {takes}.")
        named = {name: p.default for name, p in self.hyper.items() if given.get(name) in (AUTO, PAPER)}
        return {name: p.check({**given, **named}.get(name, p.default)) for name, p in self.hyper.items()}

    def following(self, second_moment: float, events: float, numbers: float) -> "MethodSpec":
        """The same with the hyper-parameters that follow the log, from E_β̂[(gain·ρ)²] under the current policy.

        λ is that moment, its definition, times `LEARNING_EVENTS` per number that is learned (`numbers`): λ weighs bias
        against variance, and the fewer events there are to each number, the more variance costs. A cap is √λ/2, the
        most that λ lets a weight be; λ of logarithmic smoothing is 1/√N.
        """
        second_moment = max(second_moment, 1e-9)
        apiece = max(LEARNING_EVENTS * events / max(numbers, 1.0), 1.0)
        lam = second_moment if "sample_size" in self.inputs else second_moment * apiece
        found = {
            "lam": lam,
            "cap": max((second_moment * apiece) ** 0.5 / 2, 1.0),
            "smoothing": min(events**-0.5, 1.0),
        }
        return replace(self, given={**self.given, **{name: found[name] for name in self.auto}})

    def auto_of(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Which hyper-parameters follow the log: those given as "auto", and by default every λ, cap and smoothing."""
        follow = (*LOG_DRIVEN, "gamma")
        asked = next((name for name, value in given.items() if value == AUTO and name not in follow), None)
        if asked is not None:
            raise ParameterError(f"{asked}='auto' is not known: {', '.join(follow)} can follow the log.")
        released = str(self.weight).endswith(("_official", "_paper"))
        chosen = (name for name in LOG_DRIVEN if name in self.hyper)
        return tuple(name for name in chosen if given.get(name, PAPER if released else AUTO) == AUTO)


_ROWS: Mapping[str, MethodSpec] = {
    row.name: row
    for row in (
        MethodSpec("ce", None, label="CE"),
        MethodSpec("wll", "ips", "likelihood", label="WLL"),
        MethodSpec("ls_lin", "ips", "log_linear", label="LS-LIN"),
        MethodSpec("ips_gt", "ips_gt", label="IPS-GT"),
        MethodSpec("bips", "ips", label="BIPS"),
        MethodSpec("bips_cap", "clipped", label="BIPS-Cap"),
        MethodSpec("minvar", "minvar", label="MinVar"),
        MethodSpec("stablevar", "stablevar", label="stableVar"),
        MethodSpec("minvar_paper", "minvar_paper", label="MinVar (as printed)"),
        MethodSpec("stablevar_paper", "stablevar_paper", label="stableVar (as printed)"),
        MethodSpec("shrinkage", "shrinkage", label="Shrinkage"),
        MethodSpec("snips", "snips", label="SNIPS"),
        MethodSpec("snips_frozen", "snips", "frozen_normaliser", label="SNIPS (frozen normaliser)"),
        MethodSpec("banditnet", "ips", "translated", label="BanditNet", defaults={"translation": 0.1}),
        MethodSpec("poem", "clipped", "variance_penalised", label="POEM", gradient="exact"),
        MethodSpec("poxm", "poxm", "translated", label="POXM"),
        MethodSpec("prune", "ips", label="Prune", selection="prune"),
        MethodSpec("adaptive", "clipped", "with_negatives", label="Adaptive (reconstruction)"),
        MethodSpec("uips_p", "uips_p", label="UIPS-P"),
        MethodSpec("uips_o", "uips_o", label="UIPS-O"),
        MethodSpec("uips", "uips", label="UIPS", defaults={"gamma": LEARNING_GAMMA}),
        MethodSpec("uips_tight", "uips_tight", label="UIPS-tight"),
        MethodSpec("dm", "dm", label="DM"),
        MethodSpec("dr", "dr", label="DR"),
        MethodSpec("minvar_dr", "minvar_dr", label="MinVarDR"),
        MethodSpec("shrinkage_dr", "shrinkage_dr", label="ShrinkageDR"),
        MethodSpec("uips_dr", "uips_dr", label="UIPSDR", defaults={"gamma": LEARNING_GAMMA}),
        MethodSpec("potec", "offcem", label="POTEC", by_group=True),
        MethodSpec("dice_s", "dice_s", label="DICE-S"),
        MethodSpec("ips_un", "ips_un", label="IPS-UN"),
        MethodSpec("ips_un_simplex", "ips_un_simplex", label="IPS-UN (simplex)"),
        MethodSpec("iips", "iips", label="IIPS"),
        MethodSpec("rips", "rips", label="RIPS"),
    )
}
METHODS = Registry("method", _ROWS)
"""The learners of the paper and of this project; any other name of the registry is a method too."""


def find_method(name: Any) -> MethodSpec:
    """The method called `name`: a row of `METHODS`, or any registered estimator as it stands."""
    if isinstance(name, MethodSpec):
        return name
    if name in METHODS:
        return METHODS[name]
    if name in ESTIMATORS:
        row = ESTIMATORS[name]
        if row.evaluation_only:
            raise ParameterError(f"{row.name!r} can evaluate a policy but not teach one. Choose another method.")
        return METHODS.get(row.name, MethodSpec(row.name, row.name))
    raise METHODS.unknown(name, also=ESTIMATORS)
