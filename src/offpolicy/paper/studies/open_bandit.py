"""Open Bandit data: a shop logged by Thompson sampling and by a random policy, each evaluated on the other's log.

Each policy's value is estimated from the other's log with the propensities hidden, and with the recorded ones, beside
the mean reward of its own log. The random policy is known exactly. Thompson sampling is not: the model of it that was
fitted to its own log stands for it, so its lines say how far two estimates agree rather than how good one is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, get_args

from offpolicy.checks import check_choice
from offpolicy.datasets import Campaign, load_obd
from offpolicy.evaluation import clustered_mean, evaluate
from offpolicy.log import LoggedData
from offpolicy.paper.studies.study import Row, Settings, Untuned, known
from offpolicy.policies import UniformPolicy
from offpolicy.propensity import fit_logging_policy
from offpolicy.results import PolicyResult

SHOWN = ("ips", "snips", "dr", "sndr", "snuips")
KEPT_SEED = 0
PER_THOUSAND = 1_000
LINES: Mapping[str, tuple[str, str, str]] = {
    "random_hidden": ("random, propensities hidden", "random", "hidden"),
    "random_recorded": ("random, propensities recorded", "random", "recorded"),
    "bts_hidden": ("Thompson sampling (modelled), propensities hidden", "bts", "hidden"),
    "bts_recorded": ("Thompson sampling (modelled), propensities recorded", "bts", "recorded"),
}
"""By name: what is printed, the policy that is asked about, and which propensities of the other's log are used."""


@dataclass(frozen=True)
class OpenBandit(Untuned):
    """The study; its fields are what a recipe may set."""

    lines: ClassVar[Mapping[str, Any]] = LINES

    campaign: Campaign = "men"
    """A campaign of the shop."""
    data: str | None = None
    """The folder that holds the data set's."""
    redraw: str = "all"
    """What a seed draws: cross-fitting and fits; with "policy" nothing."""

    def __post_init__(self) -> None:
        """Check the fields that need no data."""
        check_choice("campaign", self.campaign, get_args(Campaign))
        check_choice("redraw", self.redraw, ("all", "policy"))

    def labels(self) -> Mapping[str, str]:
        """Both policies, with propensities hidden and recorded."""
        return {name: label for name, (label, _, _) in LINES.items()}

    def measure(self, line: str, settings: Settings, seed: int) -> list[Row]:
        """The estimate, its interval and that of SNIPS, and the mean reward of the policy's own log, per thousand."""
        _, policy, propensities = known(line, LINES)
        drawn = KEPT_SEED if self.redraw == "policy" else seed
        return [_answers(self.campaign, self.data, drawn)[policy, propensities]]


@lru_cache(maxsize=2)
def _answers(campaign: Campaign, data: str | None, seed: int) -> dict[tuple[str, str], Row]:
    """Every line's row."""
    logs = {policy: load_obd(policy, campaign, data) for policy in ("bts", "random")}
    hidden = {name: log.without_propensities() for name, log in logs.items()}
    fitted = {name: fit_logging_policy(log, "auto", seed=seed) for name, log in hidden.items()}
    targets: dict[str, Any] = {"random": UniformPolicy(logs["random"].actions), "bts": fitted["bts"]}
    options: dict[str, Any] = {"estimators": SHOWN, "seed": seed}
    rows = {}
    for name, logged_by in (("random", "bts"), ("bts", "random")):
        asked = {name: targets[name]}
        found = {
            "hidden": evaluate(hidden[logged_by], asked, fitted[logged_by], **options),
            "recorded": evaluate(logs[logged_by], asked, "recorded", **options),
        }
        own = mean_reward(logs[name])
        about = {"log": logged_by, "clicks": int(logs[logged_by].reward.sum())}
        for propensities, each in found.items():
            facts = {"logging model": each.logging.model, **_told(each[name])}
            rows[name, propensities] = about | facts | _named("own log", own)
    return rows


def _told(one: PolicyResult) -> Row:
    snips = next(each for each in one.estimates if each.name == "snips")
    interval = snips.intervals["normal"]
    return {
        **_named("estimate", (one.value, one.interval.low, one.interval.high)),
        **_named("SNIPS", (snips.value, interval.low, interval.high)),
        "answer": one.preflight.verdict.answer,
        "reasons": list(one.preflight.verdict.reasons),
        "flips at": one.sensitivity.flips_at,
    }


def _named(name: str, numbers: tuple[float, float, float]) -> Row:
    """A number with the ends of its interval, in clicks per thousand."""
    return {
        key: PER_THOUSAND * value for key, value in zip((name, f"{name}, low", f"{name}, high"), numbers, strict=True)
    }


def mean_reward(log: LoggedData, z: float = 1.96) -> tuple[float, float, float]:
    """The mean reward and its 95 % interval over clusters."""
    mean, error = clustered_mean(log.reward, log.cluster_index)
    return mean, max(mean - z * error, 0.0), mean + z * error
