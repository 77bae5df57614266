"""A saved policy as one ONNX file, with feature encoding and vocabularies inside, checked against the library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from offpolicy.artifacts.onnx_graph import (
    NO_INTEGER,
    ROWS,
    Graph,
    column_input,
    length_name,
    one_hot,
    onnx_module,
    places,
    standardised,
    takes_text,
    within_length,
)
from offpolicy.artifacts.onnx_parity import Parity, check_parity, runtime_module
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.atomic import atomic_file
from offpolicy.checks import Range, check_number
from offpolicy.errors import ArtifactError, ParameterError
from offpolicy.models import CandidateScorer, FittedColumn, IdColumn, IdPositions, NumberColumn

CANDIDATES = "candidates"
"""The input with the ids on offer."""
LARGEST = 2**31 - 2**24
"""Bytes that one ONNX file may hold, with some room for ids and nodes."""


def export_onnx(
    saved: SavedPolicy, path: str | Path, *, k: int = 10, contexts: Any = None, candidates: bool = False
) -> Parity | None:
    """Write a policy as ONNX; with `contexts`, only if it agrees with the library on (the first 1,000 of) them.

    Inputs are the raw context columns by name, one row per context: text or int64 ids (booleans as 0 and 1; a missing
    one is "" or −2⁶³), doubles for numbers, floats (rows, width) for embeddings, and for a bag called `name` a matrix
    of ids padded at the end with anything and an int64 input `name.length` with the number of ids in each row.

    Outputs are `scores` and `log_probabilities` (rows, actions), and of the k most probable actions, best first,
    `top_actions` (codes), `top_ids` (the user's ids) and `probability`, each (rows, k).

    With `candidates` (always for a policy that looks at features of candidates) there are also an input `candidates`,
    a matrix of ids padded with anything, its `candidates.length`, one matrix for each feature of candidates, and the
    output `candidate_log_probabilities`, log π among the candidates in the order given: −inf for one that the policy
    does not know and beyond the last. The other outputs look at no features of candidates.
    """
    check_number("k", k, Range(1, np.inf, integer=True))
    onnx_module()
    runtime_module()
    k = min(int(k), int((~torch.isneginf(saved.policy.bias)).sum()))
    n_numbers = saved.document.scorer.shape().n_numbers
    if n_numbers * 4 > LARGEST:
        raise ArtifactError(
            f"The policy has {n_numbers} numbers, more than one ONNX file can hold (2 GB). Learn a smaller one."
        )
    content = policy_model(saved, k, candidates=candidates).SerializeToString()
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
        return None if contexts is None else check_parity(saved, temporary, contexts, k=k)


def policy_model(saved: SavedPolicy, k: int, *, candidates: bool = False) -> Any:
    """The ONNX model of a policy."""
    graph = Graph()
    states = saved.policy.scorer.onnx_states(graph)
    weights, bias = saved.policy.weights, saved.policy.bias
    product = graph.node("MatMul", states, graph.floats(weights.T))
    scores = graph.node("Add", product, graph.floats(bias[None]))
    log_prob = graph.node("LogSoftmax", scores, axis=1)
    _, top = graph.node("TopK", scores, graph.constant(np.array([k])), axis=1, n_outputs=2)
    probability = graph.node("Exp", graph.node("GatherElements", log_prob, top, axis=1))
    graph.output("scores", scores, "FLOAT", [ROWS, saved.n_actions])
    graph.output("log_probabilities", log_prob, "FLOAT", [ROWS, saved.n_actions])
    graph.output("top_actions", top, "INT64", [ROWS, k])
    ids, kind = _action_ids(graph, saved)
    graph.output("top_ids", graph.node("Gather", ids, top), kind, [ROWS, k])
    graph.output("probability", probability, "FLOAT", [ROWS, k])
    if candidates or isinstance(saved.policy.scorer, CandidateScorer):
        _candidate_output(graph, saved, str(scores))
    return graph.model(_metadata(saved))


def _candidate_output(graph: Graph, saved: SavedPolicy, scores: str) -> None:
    """log π among the candidates: their scores, picked from all, and what their features add."""
    vocabulary = saved.actions.vocabulary
    column = IdColumn(CANDIDATES, "bag", IdPositions(vocabulary), other=False)
    place = places(graph, column_input(graph, column), column)
    inside = within_length(graph, CANDIDATES)
    known = graph.node("And", inside, graph.node("Less", place, graph.constant(np.array(len(vocabulary)))))
    code = graph.node("Where", known, place, graph.constant(np.array(0)))
    own = graph.node("GatherElements", scores, code, axis=1)
    scorer = saved.policy.scorer
    if isinstance(scorer, CandidateScorer):
        parts = [_flat_column(graph, each) for each in scorer.candidate_design.columns]
        if scorer.candidate_design.quadratic:
            raise ParameterError("Products of candidates' features have no ONNX form here. Learn without them.")
        weights = graph.floats(scorer.candidate_weights[:, None])
        added = graph.node("MatMul", graph.node("Concat", *parts, axis=1), weights)
        own = graph.node("Add", own, graph.node("Reshape", added, graph.node("Shape", CANDIDATES)))
    impossible = graph.constant(np.array(-np.inf, dtype=np.float32))
    masked = graph.node("Where", known, own, impossible)
    shape = [ROWS, f"most ids of {CANDIDATES}"]
    graph.output("candidate_log_probabilities", graph.node("LogSoftmax", masked, axis=1), "FLOAT", shape)


def _flat_column(graph: Graph, column: FittedColumn) -> str:
    """A feature of candidates, given as (rows, most candidates), as a design matrix with a row a candidate."""
    flat = graph.constant(np.array([-1]))
    width = f"most ids of {CANDIDATES}"
    if isinstance(column, NumberColumn) and column.kind == "numeric":
        values = graph.node("Reshape", graph.input(column.name, "DOUBLE", [ROWS, width]), flat)
        return standardised(graph, values, column)
    if isinstance(column, IdColumn) and column.kind == "categorical":
        kind = "STRING" if takes_text(column.ids.vocabulary) else "INT64"
        values = graph.node("Reshape", graph.input(column.name, kind, [ROWS, width]), flat)
        return one_hot(graph, places(graph, values, column), column.width)
    raise ParameterError(
        f"Feature {column.name!r} of the candidates is a {column.kind}, which has no ONNX form here: numbers and "
        "categories have. Serve the saved policy with load_policy."
    )


def _metadata(saved: SavedPolicy) -> dict[str, str]:
    missing = {
        column.name: ("" if takes_text(column.ids.vocabulary) else NO_INTEGER)
        for column in saved.policy.scorer.columns
        if isinstance(column, IdColumn)
    }
    return {
        "format": saved.document.format,
        "context": json.dumps([column.model_dump() for column in saved.context], ensure_ascii=False),
        "missing": json.dumps(missing, ensure_ascii=False),
        "bag_lengths": json.dumps({name: length_name(name) for name in saved.encoder.bags}, ensure_ascii=False),
        "method": saved.metadata.method or "",
        "actions": json.dumps(saved.actions.vocabulary.to_list(), ensure_ascii=False),
        "serving": json.dumps(_serving(saved), ensure_ascii=False),
        "held_out": json.dumps(saved.held_out),
        "versions": json.dumps(saved.document.versions),
    }


def _serving(saved: SavedPolicy) -> dict[str, Any]:
    """What a server of the exported file needs to know beyond the graph."""
    scorer = saved.policy.scorer
    columns = [*scorer.columns, *(scorer.candidate_design.columns if isinstance(scorer, CandidateScorer) else ())]
    numbers = [column for column in columns if isinstance(column, NumberColumn)]
    return {
        "roles": saved.recorded("roles"),
        "reward_range": saved.reward_range,
        "means": {column.name: column.mean.tolist() for column in numbers},
    }


def _action_ids(graph: Graph, saved: SavedPolicy) -> tuple[str, str]:
    ids = saved.actions.vocabulary.ids
    if ids.null_count():
        raise ParameterError("One of the actions has null for its id, which ONNX cannot hold. Give it an id.")
    if ids.dtype == pl.String:
        return graph.texts(ids.to_list()), "STRING"
    kind = {pl.Boolean: "BOOL", pl.UInt64: "UINT64"}.get(type(ids.dtype), "INT64")
    return graph.constant(ids.to_numpy()), kind
