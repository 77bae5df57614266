"""`evaluate`: the values of policies, estimated from a log without propensities, with intervals and a verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from offpolicy.engine import Engine, engine_of
from offpolicy.errors import ParameterError
from offpolicy.evaluation.evaluator import Evaluator
from offpolicy.evaluation.hyper import GAMMA
from offpolicy.evaluation.options import DEFAULT_ESTIMATORS, Options
from offpolicy.log import LoggedData
from offpolicy.nuisances import SAMPLE_ROWS, Nuisances
from offpolicy.propensity import LoggingPolicy
from offpolicy.results import (
    Evaluation,
)
from offpolicy.rewards import RewardModel


def evaluate(
    log: LoggedData,
    policies: Any,
    logging_policy: LoggingPolicy | str | None = None,
    *,
    references: Mapping[str, Any] | None = None,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    intervals: Sequence[str] = ("normal",),
    level: float = 0.95,
    gamma: float | str = GAMMA,
    refits: int = 0,
    uncertainty: Tensor | None = None,
    reward_model: RewardModel | None = None,
    nuisances: Nuisances | None = None,
    action_groups: Any = None,
    interval: str = "auto",
    by: str | Sequence[str] = (),
    sensitivity_columns: bool = False,
    rewards: Sequence[str] = (),
    guardrails: Sequence[str] = (),
    winsorise: float = 0.0,
    user_model: str = "auto",
    seed: int = 0,
    engine: Engine | str | None = None,
    sample_rows: int = SAMPLE_ROWS,
) -> Evaluation:
    """The value of each policy, with a two-part interval, a verdict on the log, and comparisons with logging.

    `policies` maps names to policies (or is one policy): anything with log_probs, a column with π(a_n|x_n) of every
    logged row (or its name, if the log keeps it), a function of the contexts, a fitted classifier, {"lists": ...} of
    recommended actions, a frame joined by a key, the path of a folder, table or ONNX file, or "uniform".
    `references` are compared with every candidate, but are not candidates themselves. Hyper-parameters come from
    the log alone: λ by estimated error, γ as given or "calibrated" (η = 1). With `refits` the refit bootstrap is
    added, that many fits of β̂ each. `action_groups` (a column of the action table, a mapping from action to group,
    or a label for each action) serves estimators that weigh groups; they are learned from the reward model where
    none is given. β̂, U and a reward model are fitted unless they are given, one by one or as `nuisances`.
    `interval="guaranteed"` adds an interval with a proof, at the price of some 40 fits of β̂ and of its width. `by`
    names what to break values and differences down by: a column of the contexts or kept beside the rows, "time" for
    four periods, or hour, weekday, day, week or month. `rewards` are further rewards and `guardrails` those that
    must not get worse ("returns<=+2%"): columns that the log keeps, of which `winsorise` cuts the tails; all share
    β̂ and the pass over the policies. `sensitivity_columns` says how strong hidden information must have been to
    overturn a conclusion, measured by leaving out each context column (a linear fit each, at most 8). In a log of
    slates values are means over positions, and `user_model` says how users look at a slate ("any", "cascade" or
    "independent"; "auto" takes the weakest assumption that the log can carry). Results are on the user's scale of
    rewards. Nothing of size rows × actions is ever made. A log of many shards (`log.sharded()`, a store) is evaluated
    shard by shard, by the workers of an `engine` where one is given, with the same result to the last bit; β̂, U and q̂
    are fitted to a sample of about `sample_rows` of its rows, units being whole.
    """
    options = Options(
        tuple(estimators),
        tuple(intervals),
        level,
        gamma,
        refits,
        seed,
        action_groups,
        interval,
        (by,) if isinstance(by, str) else tuple(by),
        sensitivity_columns,
        tuple(rewards),
        tuple(guardrails),
        winsorise,
        user_model=user_model,
    )
    with engine_of(engine) as working:
        if nuisances is None:
            given = logging_policy if isinstance(logging_policy, LoggingPolicy) else None
            nuisances = Nuisances(
                log,
                model="auto" if logging_policy is None else logging_policy,
                logging_policy=given,
                uncertainty=uncertainty,
                reward_model=reward_model,
                seed=seed,
                sample_rows=sample_rows,
                engine=working,
            )
        with Evaluator(nuisances, named_policies(policies), references or {}, options, working) as evaluator:
            return evaluator.evaluation


def named_policies(policies: Any) -> Mapping[str, Any]:
    """Policies by name; one alone is called "policy"."""
    if isinstance(policies, Mapping) and not {"lists", "rows"} & set(policies):
        if not policies:
            raise ParameterError("policies is empty: name at least one policy to evaluate.")
        return {str(name): target for name, target in policies.items()}
    return {"policy": policies}
