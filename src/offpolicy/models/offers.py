"""Candidates as the softmax head takes them, and scorers that also look at their features."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from offpolicy.errors import ParameterError
from offpolicy.log import Candidates, FeatureTable, LoggedData, Vocabulary
from offpolicy.models.choices import Offered
from offpolicy.models.columns import FittedColumn
from offpolicy.models.encoders import DesignMatrix
from offpolicy.models.recipes import CandidateRecipe
from offpolicy.models.scorer import OnnxGraph, Scorer, build_scorer, register_scorer


@runtime_checkable
class ScoresCandidates(Protocol):
    """A scorer that looks at features of candidates."""

    def candidate_scores(self, candidates: Candidates) -> Tensor:
        """What the features add to the scores, one number a candidate."""
        ...


def offered_of(candidates: Candidates, vocabulary: Vocabulary | None = None, scores: Tensor | None = None) -> Offered:
    """The candidates of contexts, in the codes of a vocabulary (their own unless given); unknown ones are left out.

    `scores` has one number for each candidate.
    """
    actions = torch.from_numpy(candidates.padded(vocabulary))
    if scores is not None:
        place = np.arange(len(candidates.codes)) - candidates.offsets[:-1][candidates.owner]
        cell = (torch.from_numpy(candidates.owner), torch.from_numpy(place))
        scores = scores.new_zeros(actions.shape).index_put(cell, scores)
    return Offered(actions.clamp(min=0), actions >= 0, scores)


def offered_in(candidates: Candidates, scorer: Scorer, vocabulary: Vocabulary | None = None) -> Offered:
    """The candidates of contexts with the scores that a scorer gives their features."""
    scores = scorer.candidate_scores(candidates) if isinstance(scorer, ScoresCandidates) else None
    return offered_of(candidates, vocabulary, scores)


class CandidateScorer(nn.Module, Scorer):
    """Another scorer plus a linear score of each candidate's own features: f(x, a) = h(x)·w_a + b_a + z_xa·v."""

    def __init__(self, base: Scorer, candidate_design: DesignMatrix) -> None:
        """Start with v = 0: the scorer as it is."""
        super().__init__()
        if not isinstance(base, nn.Module):
            raise ParameterError(f"base must be a scorer and a torch module, but it is a {type(base).__name__}.")
        self.base, self.candidate_design = base, candidate_design
        self.candidate_weights = nn.Parameter(torch.zeros(candidate_design.width))
        self.n_actions, self.dim = base.n_actions, base.dim

    @property
    def _own(self) -> Scorer:
        return cast(Scorer, self.base)

    @property
    def columns(self) -> tuple[FittedColumn, ...]:
        """Those of the other scorer."""
        return self._own.columns

    @property
    def default_ridge(self) -> float:
        """That of the other scorer."""
        return self._own.default_ridge

    @property
    def design(self) -> DesignMatrix | None:
        """That of the other scorer."""
        return self._own.design

    def states(self, contexts: FeatureTable) -> Tensor:
        """Those of the other scorer."""
        return self._own.states(contexts)

    def states_at(self, contexts: FeatureTable, numbers: Tensor) -> Tensor:
        """Those of the other scorer."""
        return self._own.states_at(contexts, numbers)

    def actions(self) -> tuple[Tensor, Tensor]:
        """Those of the other scorer."""
        return self._own.actions()

    def items(self) -> Tensor | None:
        """Those of the other scorer."""
        return self._own.items()

    def candidate_scores(self, candidates: Candidates) -> Tensor:
        """z·v of each candidate."""
        if candidates.features is None:
            raise ParameterError(
                "This policy looks at features of the candidates, but the candidates here have none. Give "
                f"{', '.join(column.name for column in self.candidate_design.columns)} for each."
            )
        return self.candidate_design.encode(candidates.features).to(self.candidate_weights) @ self.candidate_weights

    def onnx_states(self, graph: OnnxGraph) -> str:
        """Those of the other scorer."""
        return self._own.onnx_states(graph)

    def specification(self) -> dict[str, Any]:
        """The other scorer and the design of the candidates' features."""
        return {
            "kind": "candidates",
            "base": self._own.specification(),
            "candidate_design": self.candidate_design.to_json(),
        }

    @staticmethod
    def from_specification(recipe: dict[str, Any]) -> "CandidateScorer":
        """The inverse of `specification`."""
        return CandidateScorer(build_scorer(recipe["base"]), DesignMatrix.from_json(recipe["candidate_design"]))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As in `nn.Module`."""
        return nn.Module.parameters(self, recurse)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in `nn.Module`."""
        return nn.Module.load_state_dict(self, state_dict, strict, assign)


def with_candidate_features(scorer: Scorer, log: LoggedData) -> Scorer:
    """The scorer, which also looks at the features of candidates where the log has some."""
    features = None if log.candidates is None else log.candidates.features
    return scorer if features is None else CandidateScorer(scorer, DesignMatrix.fit(features))


register_scorer("candidates", CandidateRecipe, CandidateScorer.from_specification)
