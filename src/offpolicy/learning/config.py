"""How a policy is learned: one frozen record, a line under each field."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.estimators import OFFICIAL
from offpolicy.evaluation import ALL_ACTION_INPUTS
from offpolicy.learning.methods import Gradient, MethodSpec, find_method
from offpolicy.log import LoggedData
from offpolicy.models import Scorer

ScorerMaker = Callable[[LoggedData], Scorer]

SCORERS = ("auto", "linear", "two_tower", "spectral")
MOST_EPOCHS = 50
"""Epochs where their number is left open."""

_COUNT = Range(1, 2**40, integer=True)
_STEP = Range(0.0, math.inf, include_low=False, include_high=False)
_RATE = Range(0.0, 100.0, include_low=False)  # beyond it, one step leaves nothing of where it began
_SIZE = Range(0.0, math.inf, include_high=False)
_CAP = Range(0.0, math.inf, include_low=False)


@dataclass(frozen=True)
class LearnerConfig:
    """How a policy is learned; what is weighed and maximised is up to the method."""

    scorer: str | ScorerMaker = "auto"
    """The policy's model: "linear", "two_tower", "spectral" (ids embedded by what they were logged with), or a function
    that makes a `Scorer` for a log; "auto" is linear unless a column has more ids than a design matrix has places."""
    scorer_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the function that makes the scorer, e.g. `{"dim": 64}` to `two_tower_scorer`."""
    initial_spread: float = 0.0
    """Standard deviation of a linear scorer's initial weights; 0 starts from the uniform policy."""
    start: Literal["auto", "zero", "rewards"] = "auto"
    """Where learning starts: at zero, or at the greedy policy of q̂ where the method has one of the policy's shape;
    "auto" takes the latter where the number of epochs is left open."""
    epochs: int | None = None
    """Passes over the log. None stops on held-out rows, after 50 at the latest, and then sharpens the policy until they
    object."""
    learning_rate: float = 0.01
    """Adam's step size."""
    batch_contexts: int | None = None
    """Contexts per step, with all their rows; None takes 512, or fewer so that an epoch has at least 32 steps."""
    batch_rows: int | None = None
    """Rows per step, drawn from the whole log instead of whole contexts; slower, but as most published code does."""
    weight_decay: float = 0.0
    """L2 penalty on the scorer, as Adam's weight decay."""
    max_gradient_norm: float = 5.0
    """Global gradient norm above which a step is scaled down."""
    gradient: Gradient | None = None
    """"frozen" holds φ fixed, "exact" follows the weight's derivative; None takes the method's own."""
    weight_cap: float | None = None
    """A cap on the weights of any method, e.g. of IPS with recorded propensities."""
    reward_baseline: float | str = 0.0
    """Subtracted from every reward: a number, or "mean" for the mean reward of the log."""
    top_k: int = 1
    """K of the top-K correction, for policies that show K actions at once; 1 leaves everything as it is."""
    action_groups: str | None = None
    """Groups of actions for `potec`: a categorical column of the action table; None learns √K groups from q̂."""
    sample_size: float | None = None
    """N of `uips_tight`; None counts the contexts of the log."""
    schedule: Literal["pretrained", "alternate"] = "pretrained"
    """β̂ and U before learning, or both re-estimated in every epoch on the policy's own user states (two towers)."""
    uncertainty_form: str | None = None
    """Which form of U to compute where none is given; None takes that of `row_uncertainty`."""
    unit_gradients: bool = False
    """U from unit gradients with ridge d, as the released code computes it."""
    in_batch: bool = False
    """β̂ and π in the ratio are softmaxes over the actions of the batch, as in the released code."""
    first_epoch_cap: float | None = None
    """In the first epoch the weight is min(ρ, cap), and with alternation β̂ and π learn jointly."""
    metric: str | None = None
    """What stops training: "value", "lower_bound", or P@k, R@k, NDCG@k; None takes what `validation` implies."""
    held_out: float = 0.1
    """Share of contexts (or clusters) held out for "value" and "lower_bound" where no validation log is given."""
    patience: int = 5
    """Epochs without a better metric before training ends."""
    seed: int = 0
    """Fixes initial weights, batches, splits and fits."""
    tensorboard: bool = False
    """Also write TensorBoard events into the directory (extra `tensorboard`)."""
    show_progress: bool | None = None
    """A progress bar: always, never, or (None) only on a terminal."""

    def __post_init__(self) -> None:
        """Check every field against its range."""
        if isinstance(self.scorer, str):
            check_choice("scorer", self.scorer, SCORERS)
        elif not callable(self.scorer):
            raise ParameterError(f"scorer must be a name or a function of the log, but it is {self.scorer!r}.")
        for name in ("epochs", "patience", "top_k", "batch_contexts", "batch_rows"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), _COUNT)
        check_number("learning_rate", self.learning_rate, _RATE)
        check_number("max_gradient_norm", self.max_gradient_norm, _STEP)
        for name in ("initial_spread", "weight_decay"):
            check_number(name, getattr(self, name), _SIZE)
        for name in ("weight_cap", "first_epoch_cap", "sample_size"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), _CAP)
        check_number("held_out", self.held_out, Range(0.0, 1.0, include_low=False, include_high=False))
        check_choice("schedule", self.schedule, ("pretrained", "alternate"))
        check_choice("start", self.start, ("auto", "zero", "rewards"))
        if self.gradient is not None:
            check_choice("gradient", self.gradient, ("frozen", "exact"))
        if isinstance(self.reward_baseline, str):
            check_choice("reward_baseline", self.reward_baseline, ("mean",))
        else:
            check_number("reward_baseline", self.reward_baseline, Range(-1.0, 1.0))
        if self.batch_contexts is not None and self.batch_rows is not None:
            raise ParameterError("Give batch_contexts or batch_rows, not both: a step takes contexts or rows.")

    @property
    def most_epochs(self) -> int:
        """Passes over the log at most."""
        return MOST_EPOCHS if self.epochs is None else self.epochs

    @classmethod
    def official(cls, name: str, **changes: Any) -> Self:
        """The learning switches of a released folder ("wiki", "coat", "yahoo", "kuairec"), each open to `changes`.

        The switches of its weight are `OFFICIAL[name].weight_switches()`, for the method "uips_official".
        """
        profile = OFFICIAL[check_choice("The name of a released folder", name, OFFICIAL)]
        switches: dict[str, Any] = {
            "schedule": "alternate" if profile.in_batch_softmax else "pretrained",
            "scorer": "two_tower" if profile.in_batch_softmax else "linear",
            "in_batch": profile.in_batch_softmax,
            "first_epoch_cap": profile.first_epoch_cap,
            "reward_baseline": profile.reward_baseline,
            "unit_gradients": profile.normalise_gradients,
            "uncertainty_form": "per_action" if profile.per_action_uncertainty else None,
        }
        return cls(**(switches | changes))

    def as_json(self) -> dict[str, Any]:
        """Plain values; a function that makes a scorer becomes its name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if callable(values["scorer"]):
            values["scorer"] = getattr(values["scorer"], "__qualname__", type(values["scorer"]).__name__)
        return values | {"scorer_options": dict(self.scorer_options)}


def resolve_config(
    method: str | MethodSpec, config: LearnerConfig | None, changes: Mapping[str, Any], mean_reward: float = 0.0
) -> tuple[LearnerConfig, MethodSpec]:
    """Configuration and method after the changes, each of which names a field or a hyper-parameter."""
    row = find_method(method)
    known = {each.name for each in fields(LearnerConfig)}
    for name in changes:
        if name not in known and name not in row.hyper:
            near = difflib.get_close_matches(name, [*known, *row.hyper], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(
                f"{name!r} is neither a field of LearnerConfig nor a hyper-parameter of {row.name!r}, which takes "
                f"{', '.join(row.hyper) or 'none'}.{hint}"
            )
    config = dataclasses.replace(
        config or LearnerConfig(), **{name: value for name, value in changes.items() if name in known}
    )
    gradient = config.gradient or row.gradient
    if gradient == "exact" and (row.inputs & set(ALL_ACTION_INPUTS) or row.weight is None):
        raise ParameterError(
            f"The exact gradient of {row.name!r} is not available: its weight "
            f"{'does not depend on π' if row.weight is None else 'sums over all actions'}. "
            "Use gradient='frozen'."
        )
    given = {**row.given, **{n: value for n, value in changes.items() if n not in known}}
    return config, dataclasses.replace(
        row,
        given=row.check_hyper(given),
        auto=row.auto_of(given),
        gradient=gradient,
        reward_baseline=mean_reward if isinstance(config.reward_baseline, str) else config.reward_baseline,
        top_k=config.top_k,
        weight_cap=config.weight_cap,
        in_batch=config.in_batch,
    )
