"""A policy loaded from its folder: probabilities for evaluation, and recommendations in the user's own ids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from offpolicy.artifacts.batches import batches
from offpolicy.artifacts.contexts import ContextEncoder, Encoded
from offpolicy.artifacts.document import ContextColumn, Metadata, PolicyDocument
from offpolicy.artifacts.offers import ServedSets, SetReader, check_has_candidates, ranked_among
from offpolicy.artifacts.ranking import Mode, best, drawn, recommendations
from offpolicy.artifacts.writers import table_writer
from offpolicy.checks import Range, check_choice, check_number
from offpolicy.errors import ParameterError
from offpolicy.log import ActionTable, Column, FeatureTable, LoggedData
from offpolicy.policies import ScorerPolicy, logged_log_prob
from offpolicy.seeding import generator

BATCH_ROWS = 16_384
"""Contexts read, scored and written at once."""

OWN_COLUMNS = ("row", "rank", "action", "probability", "unknown", "note")


class SavedPolicy:
    """The softmax policy of a saved scorer, its actions, and how it was learned.

    An id that the policy does not know (a new user, or an item in a bag) takes the place its encoder keeps for the
    unknown: the unknown embedding of a tower, the shared place of rare ids or zeros in a linear model. An action that
    it does not know is never recommended: its probability is 0.
    """

    def __init__(self, policy: ScorerPolicy, actions: ActionTable, document: PolicyDocument) -> None:
        """Join the parts; `load_policy` is the way to get one."""
        self.policy = policy
        self.actions = actions
        self.document = document

    def __repr__(self) -> str:
        """The method, the actions and the context columns."""
        context = ", ".join(f"{column.name}: {column.kind}" for column in self.context)
        return f"SavedPolicy({self.metadata.method or 'unnamed'}, {self.n_actions} actions, context={context})"

    @property
    def n_actions(self) -> int:
        """Number of actions it chooses among."""
        return len(self.actions)

    @property
    def context(self) -> list[ContextColumn]:
        """The context columns it reads."""
        return list(self.document.context)

    @property
    def held_out(self) -> Any:
        """What it says of the rows it was learned from; None where nothing was recorded."""
        return self.recorded("held_out")

    def recorded(self, name: str) -> Any:
        """What whoever saved it recorded under a name; None where nothing was."""
        return (self.metadata.model_extra or {}).get(name)

    @property
    def metadata(self) -> Metadata:
        """Method, hyper-parameters, configuration, metrics, seed and whatever else was saved with it."""
        return self.document.metadata

    @property
    def reward_range(self) -> tuple[float, float]:
        """The range of the rewards it was learned from."""
        return self.document.reward_range

    @cached_property
    def encoder(self) -> ContextEncoder:
        """What reads contexts for it."""
        roles = self.recorded("roles")
        missing = roles.get("missing") if isinstance(roles, dict) else None
        return ContextEncoder(self.policy.scorer, missing if isinstance(missing, dict) else None)

    def log_probs(self, contexts: FeatureTable) -> Tensor:
        """log π(·|x), (contexts, actions), in the order of its own `actions`."""
        return self.policy.log_probs(contexts)

    def log_probs_among(self, contexts: FeatureTable) -> Tensor:
        """log π of the candidates, (contexts, width)."""
        return self.policy.log_probs_among(contexts)

    def logged_log_prob(self, log: LoggedData) -> Tensor:
        """log π(a_n|x_n) of every logged row, actions matched by their ids."""
        return logged_log_prob(self.policy, log)

    def aligned(self, actions: ActionTable) -> "SavedPolicy":
        """The same policy over another table that holds all its actions; others have probability 0."""
        return SavedPolicy(self.policy.aligned(actions), actions, self.document)

    def recommend(
        self,
        contexts: Any,
        k: int = 10,
        *,
        mode: Mode = "greedy",
        seed: int | None = None,
        keep: Sequence[str] = (),
        candidates: str | None = None,
    ) -> pl.DataFrame:
        """The k actions for each context: columns row, rank, action, probability, unknown and note.

        `contexts` is a Parquet, CSV or NDJSON file (or a glob or list of them), a frame, a mapping from names to
        columns, or a `FeatureTable`; it needs the context columns of the log and nothing else. The columns that
        `keep` names are passed through. With fewer than k actions to choose from, all are given.

        "greedy" gives the most probable actions, best first. "sample" draws k different ones from π, in order; give
        `seed` to repeat a draw, leave it out for a fresh one. `probability` is π(action|x) in both modes. It is the
        probability with which the action was chosen, and so the propensity to store in the next log, in mode
        "sample" for rank 1; later ranks and greedy lists are not draws from π. `unknown` marks contexts with an id
        that the policy does not know, and `note` names the columns.

        `candidates` names a column with the list of actions on offer in each context: the choice is among those that
        the policy knows. Features of candidates that it looks at are columns of lists beside it.
        """
        frames = list(self._recommended(contexts, k, mode, seed, keep, candidates))
        return pl.concat(frames)

    def recommend_to_file(
        self,
        contexts: Any,
        path: str | Path,
        k: int = 10,
        *,
        mode: Mode = "greedy",
        seed: int | None = None,
        keep: Sequence[str] = (),
        candidates: str | None = None,
        report: Callable[[int], None] | None = None,
    ) -> int:
        """Write what `recommend` returns, batch by batch, to a Parquet, CSV or NDJSON file; return the contexts read.

        Memory does not grow with the number of contexts, and the file is replaced atomically. `report` is called
        with the number of contexts done after each batch.
        """
        done = 0
        with table_writer(path) as write:
            for frame in self._recommended(contexts, k, mode, seed, keep, candidates):
                write(frame)
                done = max(done, 1 + int(frame["row"][-1])) if len(frame) else done
                if report is not None:
                    report(done)
        return done

    def encoded(self, contexts: Any) -> Iterator[tuple[Encoded, Mapping[str, pl.Series]]]:
        """Contexts from any source, batch by batch, ready for its scorer."""
        return ((encoded, kept) for encoded, kept, _ in self._encoded(contexts, ()))

    def _encoded(
        self, contexts: Any, keep: Sequence[str], sets: SetReader | None = None
    ) -> Iterator[tuple[Encoded, Mapping[str, pl.Series], ServedSets | None]]:
        if isinstance(contexts, Mapping) and contexts and all(isinstance(c, Column) for c in contexts.values()):
            if keep:
                raise ParameterError(
                    "keep names columns of files and frames; a feature table has none to pass through."
                )
            table = contexts if isinstance(contexts, FeatureTable) else FeatureTable(contexts)
            yield self.encoder.from_table(table), {}, None
            return
        offered = [] if sets is None else sets.names
        wanted = list(dict.fromkeys([*self.encoder.names, *keep, *offered]))
        for batch in batches(contexts, wanted, self.encoder.kinds, BATCH_ROWS):
            if len(batch.series[wanted[0]]):
                encoded = self.encoder.from_series(batch.series, batch.origin, batch.separators)
                read = None if sets is None else sets.read(batch.series, batch.origin)
                yield encoded, {name: batch.series[name] for name in keep}, read

    def _recommended(
        self, contexts: Any, k: int, mode: Mode, seed: int | None, keep: Sequence[str], candidates: str | None
    ) -> Iterator[pl.DataFrame]:
        """Frames of recommendations, at least one, which may be empty."""
        check_number("k", k, Range(1, np.inf, integer=True))
        check_choice("mode", mode, ("greedy", "sample"))
        clash = next((name for name in keep if name in OWN_COLUMNS), None)
        if clash is not None:
            raise ParameterError(
                f"keep names {clash!r}, which the result uses for a column of its own. Rename it first."
            )
        check_has_candidates(self.policy, candidates)
        sets = None if candidates is None else SetReader(self.policy, candidates)
        k = min(int(k), int((~torch.isneginf(self.policy.bias)).sum()))
        chance = np.random.default_rng() if seed is None else generator(seed, "recommend")
        first = 0
        for encoded, kept, offered in self._encoded(contexts, keep, sets):
            for start in range(0, encoded.table.n_rows, BATCH_ROWS):
                part = slice(start, start + BATCH_ROWS)
                some = encoded.take(part)
                table = some.table
                passed = {name: values[part] for name, values in kept.items()}
                if offered is not None:
                    own = offered.take(part)
                    among = FeatureTable(dict(table), own.candidates)
                    ranked = ranked_among(self.policy, among, k, None if mode == "greedy" else chance)
                    yield recommendations(ranked, self.actions, some.unknown, passed, first, own.without)
                    first += table.n_rows
                    continue
                ranked = best(self.policy, table, k) if mode == "greedy" else drawn(self.policy, table, k, chance)
                yield recommendations(ranked, self.actions, some.unknown, passed, first)
                first += table.n_rows
        if first == 0:
            nothing = (torch.empty(0, k, dtype=torch.int64), torch.empty(0, k, dtype=torch.float64))
            yield recommendations(nothing, self.actions, {}, {name: pl.Series([], dtype=pl.String) for name in keep}, 0)
