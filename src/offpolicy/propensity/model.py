"""One fitted model of β̂, whatever its family, and the protocol of families."""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from offpolicy.log import LoggedData
from offpolicy.models import DesignMatrix, Scorer
from offpolicy.policies import MixturePolicy, Policy, PopularityPolicy, ScorerPolicy, WithBackoff, tensor
from offpolicy.propensity.config import FitConfig, FitOutcome
from offpolicy.propensity.time_view import TimeView


@dataclass(frozen=True)
class FittedModel:
    """One fitted β̂: a policy over all actions and what its uncertainty is computed from."""

    policy: Policy
    scorer: Scorer | None = None
    """The scorer behind it, where it is a softmax or explores beside one."""
    ridge: float = 1.0
    """The penalty it was fitted with, which is also the ridge of its uncertainty."""
    members: tuple["FittedModel", ...] = field(default=(), repr=False)
    """The members of an ensemble, in the order of the mixture that its policy is."""
    view: TimeView | None = None
    """How its only member sees a log: with the time among the contexts."""

    @property
    def softmax(self) -> ScorerPolicy | None:
        """The softmax in the policy, without its back-off and exploration; None where there is none."""
        base = self.base
        if isinstance(base, MixturePolicy) and not self.members:
            base = base.members[0]
        return base if isinstance(base, ScorerPolicy) else None

    @property
    def base(self) -> Policy:
        """The policy without its back-off."""
        return self.policy.base if isinstance(self.policy, WithBackoff) else self.policy

    def in_view(self, log: LoggedData) -> "tuple[FittedModel, LoggedData]":
        """The model and a log as that model sees it, with the time among the contexts where it does."""
        return (self, log) if self.view is None else (self.members[0], self.view.seen(log))

    @property
    def is_counted(self) -> bool:
        """Whether it is popularity, whose error is that of a frequency."""
        return isinstance(self.base, PopularityPolicy)

    @property
    def design(self) -> DesignMatrix | None:
        """The features a linear model was fitted with; None for other models."""
        return None if self.scorer is None else self.scorer.design

    def softmax_share(self, log: LoggedData) -> Tensor | None:
        """The chance that each row's action came from the softmax rather than from exploration; None: certain."""
        base = self.base
        if not isinstance(base, MixturePolicy) or self.members:
            return None
        seen = torch.ones(log.n_rows, dtype=torch.float64)
        if isinstance(self.policy, WithBackoff):
            seen = (~self.policy.unseen[tensor(log.action).long()]).double()
        parts = base.member_log_probs(log)
        return (parts[:, 0] - parts.logsumexp(1)).exp().nan_to_num(0.0) * seen


class Family(Protocol):
    """A kind of model of β̂."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def fit(
        self, log: LoggedData, held_out: LoggedData | None, chosen: FitOutcome | None, config: FitConfig
    ) -> tuple[FittedModel, FitOutcome]:
        """Fit to a log: with `held_out` choose by its likelihood, else repeat what was `chosen`."""
        ...
