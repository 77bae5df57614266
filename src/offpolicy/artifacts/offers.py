"""The candidates of contexts to be served, as a saved policy knows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from offpolicy.artifacts.contexts import KnownIds, Mask
from offpolicy.errors import ParameterError
from offpolicy.log import Candidates, FeatureTable, Offers, Origin
from offpolicy.models import CandidateScorer
from offpolicy.policies import ScorerPolicy


def feature_names(policy: ScorerPolicy) -> list[str]:
    """The columns of lists, one value for each candidate, that a policy looks at."""
    scorer = policy.scorer
    return [column.name for column in scorer.candidate_design.columns] if isinstance(scorer, CandidateScorer) else []


@dataclass(frozen=True)
class ServedSets:
    """The known candidates of some contexts; a context without any has a stand-in, and is marked."""

    candidates: Candidates
    without: Mask

    def take(self, part: slice) -> "ServedSets":
        """Those of some contexts."""
        return ServedSets(self.candidates.take(part), self.without[part])


class SetReader:
    """Reads columns of candidates for a policy."""

    def __init__(self, policy: ScorerPolicy, column: str) -> None:
        """Keep the ids that the policy knows."""
        self._policy, self.column = policy, column
        self._known = KnownIds(policy.actions.vocabulary)

    @property
    def names(self) -> list[str]:
        """The columns it needs."""
        return [self.column, *feature_names(self._policy)]

    def read(self, series: Mapping[str, pl.Series], origin: Origin) -> ServedSets:
        """The sets without the candidates that the policy does not know."""
        scorer = self._policy.scorer
        columns = scorer.candidate_design.columns if isinstance(scorer, CandidateScorer) else ()
        features = {column.name: series[column.name] for column in columns}
        offers = Offers.read(self.column, series[self.column], features, {}, origin)
        spelled = offers.ids.dtype == pl.String and self._known.fitted.ids.dtype != pl.String
        codes = self._known.codes(offers.ids.cast(pl.String) if spelled else offers.ids, spelled=spelled)
        table = offers.feature_table({column.name: column.kind for column in columns})
        owner = np.repeat(np.arange(len(offers.sizes)), offers.sizes)
        kept = ~self._known.unknown(codes)
        without = np.bincount(owner[kept], minlength=len(offers.sizes)) == 0
        kept[np.concatenate(([0], np.cumsum(offers.sizes)))[:-1][without]] = True  # a stand-in, never recommended
        codes = np.where(self._known.unknown(codes), 0, codes)[kept]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[kept], minlength=len(offers.sizes)))))
        features_kept = None if table is None else table.take(np.flatnonzero(kept))
        return ServedSets(Candidates.of(offsets, codes, self._known.fitted, features_kept), without)


def ranked_among(
    policy: ScorerPolicy, contexts: FeatureTable, k: int, chance: np.random.Generator | None
) -> tuple[Tensor, Tensor]:
    """The k best candidates (or, with a generator, k drawn without replacement), and their log π; −inf beyond the last.

    Noise is drawn for each candidate, row by row, so that the batches in which contexts come change nothing.
    """
    assert contexts.candidates is not None
    log_probs = policy.log_probs_among(contexts).double()
    scores = log_probs
    if chance is not None:
        noise = torch.zeros_like(scores)
        real = torch.from_numpy(contexts.candidates.padded() >= 0)
        noise[real] = -torch.from_numpy(chance.standard_exponential(int(real.sum()))).log()
        scores = scores + noise
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
    actions = torch.from_numpy(contexts.candidates.padded(policy.actions.vocabulary)).gather(1, order)
    return actions, log_probs.gather(1, order)


def check_has_candidates(policy: ScorerPolicy, column: str | None) -> None:
    """Refuse to serve a policy that looks at candidates without any."""
    names: Sequence[str] = feature_names(policy)
    if names and column is None:
        raise ParameterError(
            f"This policy looks at features of candidates ({', '.join(names)}). Name the column with the candidates of "
            "each context (--candidates)."
        )
