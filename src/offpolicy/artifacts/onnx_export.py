"""A saved policy as one ONNX file, with feature encoding and vocabularies inside, checked against the library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from offpolicy.artifacts.onnx_graph import NO_INTEGER, ROWS, Graph, length_name, onnx_module, takes_text
from offpolicy.artifacts.onnx_parity import Parity, check_parity, runtime_module
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.atomic import atomic_file
from offpolicy.checks import Range, check_number
from offpolicy.errors import ArtifactError, ParameterError
from offpolicy.models import IdColumn, NumberColumn

LARGEST = 2**31 - 2**24
"""Bytes that one ONNX file may hold, with some room for ids and nodes."""


def export_onnx(saved: SavedPolicy, path: str | Path, *, k: int = 10, contexts: Any = None) -> Parity | None:
    """Write a policy as ONNX; with `contexts`, only if it agrees with the library on (the first 1,000 of) them.

    Inputs are the raw context columns by name, one row per context: text or int64 ids (booleans as 0 and 1; a missing
    one is "" or −2⁶³), doubles for numbers, floats (rows, width) for embeddings, and for a bag called `name` a matrix
    of ids padded at the end with anything and an int64 input `name.length` with the number of ids in each row.

    Outputs are `scores` and `log_probabilities` (rows, actions), and of the k most probable actions, best first,
    `top_actions` (codes), `top_ids` (the user's ids) and `probability`, each (rows, k).
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
    content = policy_model(saved, k).SerializeToString()
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
        return None if contexts is None else check_parity(saved, temporary, contexts, k=k)


def policy_model(saved: SavedPolicy, k: int) -> Any:
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
    return graph.model(_metadata(saved))


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
        "versions": json.dumps(saved.document.versions),
    }


def _serving(saved: SavedPolicy) -> dict[str, Any]:
    """What a server of the exported file needs to know beyond the graph."""
    numbers = [column for column in saved.policy.scorer.columns if isinstance(column, NumberColumn)]
    return {
        "roles": (saved.metadata.model_extra or {}).get("roles"),
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
