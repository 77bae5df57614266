"""A world so small that every outcome can be listed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offpolicy.log import CategoricalColumn, FeatureTable, LoggedData, Vocabulary
from offpolicy.policies import TabularPolicy, tensor
from offpolicy.seeding import generator


@dataclass(frozen=True)
class TinyWorld:
    """A handful of contexts and actions with binary rewards, small enough that every outcome can be listed."""

    context_prob: Tensor  # (contexts,)
    logging: Tensor  # (contexts, actions), β*
    target: Tensor  # (contexts, actions), π
    reward_mean: Tensor  # (contexts, actions), q

    @classmethod
    def draw(cls, seed: int, n_contexts: int = 3, n_actions: int = 4) -> "TinyWorld":
        """A random world; all probabilities are positive."""
        random = generator(seed, "tiny")

        def distributions(*shape: int) -> Tensor:
            return torch.from_numpy(random.dirichlet(np.ones(shape[-1]), size=shape[:-1])).clamp(min=1e-3)

        def normal(x: Tensor) -> Tensor:
            return x / x.sum(-1, keepdim=True)

        return cls(
            context_prob=normal(distributions(n_contexts)),
            logging=normal(distributions(n_contexts, n_actions)),
            target=normal(distributions(n_contexts, n_actions)),
            reward_mean=torch.from_numpy(random.uniform(size=(n_contexts, n_actions))),
        )

    @property
    def value(self) -> float:
        """V(π), exactly."""
        return float((self.context_prob[:, None] * self.target * self.reward_mean).sum())

    def outcomes(self) -> tuple[LoggedData, Tensor]:
        """Every (context, action, reward) as one row each, and the probability that logging produces it."""
        contexts, actions = self.logging.shape
        cell = torch.cartesian_prod(torch.arange(contexts), torch.arange(actions), torch.arange(2))
        x, a, r = cell.unbind(1)
        reward_prob = torch.where(r == 1, self.reward_mean[x, a], 1 - self.reward_mean[x, a])
        prob = self.context_prob[x] * self.logging[x, a] * reward_prob
        return self._log(x, a, r), prob

    def logs(self, rows: int) -> Iterator[tuple[LoggedData, float]]:
        """Every log of that many independent rows, and its probability; (2·contexts·actions)^rows of them."""
        one, prob = self.outcomes()
        index = torch.cartesian_prod(*[torch.arange(one.n_rows)] * rows).reshape(-1, rows)
        for pick in index:
            log = self._log(*(tensor(column)[pick] for column in (one.context_index, one.action, one.reward)))
            yield log, float(prob[pick].prod())

    def policies(self) -> tuple[TabularPolicy, TabularPolicy]:
        """π and β* as policies over this world's logs."""
        return TabularPolicy("context", self.target), TabularPolicy("context", self.logging)

    def _log(self, context: Tensor, action: Tensor, reward: Tensor) -> LoggedData:
        contexts, actions = self.logging.shape
        vocabulary = Vocabulary(np.arange(contexts))
        column = CategoricalColumn(np.arange(contexts, dtype=np.int32), vocabulary)
        return LoggedData.from_arrays(
            contexts=FeatureTable({"context": column}),
            context_index=context.numpy(),
            action=action.numpy(),
            reward=reward.double().numpy(),
            actions=actions,
            logging_prob=self.logging[context.long(), action.long()].numpy(),
        )
