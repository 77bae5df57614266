"""A saved policy as one ONNX file, with feature encoding and vocabularies inside, checked against the library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from offpolicy.artifacts.contexts import fitted_columns
from offpolicy.artifacts.errors import ArtifactError
from offpolicy.artifacts.onnx_graph import (
    NO_INTEGER,
    ROWS,
    Graph,
    bag_mean,
    column_input,
    length_name,
    one_hot,
    onnx_module,
    places,
    standardised,
    takes_text,
)
from offpolicy.artifacts.onnx_parity import Parity, check_parity, runtime_module
from offpolicy.artifacts.saved_policy import SavedPolicy
from offpolicy.atomic import atomic_file
from offpolicy.checks import Range, check_number
from offpolicy.errors import ParameterError
from offpolicy.models import IdColumn, LinearScorer, LoggingTwoTower, Tower, TwoTowerScorer

LARGEST = 2**31 - 2**24
"""Bytes that one ONNX file may hold, with some room for ids and nodes."""


def export_onnx(saved: SavedPolicy, path: str | Path, *, k: int = 10, contexts: Any = None) -> Parity | None:
    """Write a policy as ONNX; with `contexts`, only if it agrees with the library on (the first 1,000 of) them.

    Inputs are the raw context columns by name, one row a context: text or int64 ids (booleans as 0 and 1; a missing
    one is "" or −2⁶³), doubles for numbers, floats (rows, width) for embeddings, and for a bag called `name` a matrix
    of ids padded at the end with anything and an int64 input `name.length` with the number of ids in each row.

    Outputs are `scores` and `log_probabilities` (rows, actions), and of the k most probable actions, best first,
    `top_actions` (codes), `top_ids` (the user's ids) and `probability`, each (rows, k).
    """
    check_number("k", k, Range(1, np.inf, integer=True))
    onnx_module()
    runtime_module()
    k = min(int(k), int((~torch.isneginf(saved.policy.bias)).sum()))
    if saved.document.scorer.n_numbers * 4 > LARGEST:
        raise ArtifactError(
            f"The policy has {saved.document.scorer.n_numbers} numbers, more than one ONNX file can hold (2 GB). "
            "Learn a smaller one."
        )
    content = policy_model(saved, k).SerializeToString()
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
        return None if contexts is None else check_parity(saved, temporary, contexts, k=k)


def policy_model(saved: SavedPolicy, k: int) -> Any:
    """The ONNX model of a policy."""
    graph = Graph()
    states = _states(graph, saved.policy.scorer)
    weights, bias = saved.policy.weights, saved.policy.bias
    product = graph.node("MatMul", states, _floats(graph, weights.T))
    scores = graph.node("Add", product, _floats(graph, bias[None]))
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
        for column in fitted_columns(saved.policy.scorer)
        if isinstance(column, IdColumn)
    }
    return {
        "format": saved.document.format,
        "context": json.dumps([column.model_dump() for column in saved.context], ensure_ascii=False),
        "missing": json.dumps(missing, ensure_ascii=False),
        "bag_lengths": json.dumps({name: length_name(name) for name in saved.encoder.bags}, ensure_ascii=False),
        "method": saved.metadata.method or "",
        "versions": json.dumps(saved.document.versions),
    }


def _action_ids(graph: Graph, saved: SavedPolicy) -> tuple[str, str]:
    ids = saved.actions.vocabulary.ids
    if ids.null_count():
        raise ParameterError("One of the actions has null for its id, which ONNX cannot hold. Give it an id.")
    if ids.dtype == pl.String:
        return graph.texts(ids.to_list()), "STRING"
    kind = {pl.Boolean: "BOOL", pl.UInt64: "UINT64"}.get(type(ids.dtype), "INT64")
    return graph.constant(ids.to_numpy()), kind


def _floats(graph: Graph, values: Tensor) -> str:
    return graph.constant(values.detach().float().numpy())


def _states(graph: Graph, scorer: Any) -> str:
    """h(x), (rows, width)."""
    if isinstance(scorer, LinearScorer):
        return _design(graph, scorer)
    if isinstance(scorer, TwoTowerScorer):
        return _tower(graph, scorer.user_tower.index.columns, scorer.user_tower.tower)
    if isinstance(scorer, LoggingTwoTower):
        return _states(graph, scorer.user)
    raise ParameterError(f"A scorer of type {type(scorer).__name__} cannot be exported.")


def _design(graph: Graph, scorer: LinearScorer) -> str:
    parts: list[str] = []
    for column in scorer.design.columns:
        values = column_input(graph, column)
        if not isinstance(column, IdColumn):
            parts.append(standardised(graph, values, column))
            continue
        marked = one_hot(graph, places(graph, values, column), column.width)
        parts.append(marked if column.kind == "categorical" else bag_mean(graph, marked, column))
    joined = str(graph.node("Concat", *parts, axis=1))
    if not scorer.design.quadratic:
        return joined
    width = sum(column.width for column in scorer.design.columns)
    sides = [graph.constant(side.numpy()) for side in torch.tril_indices(width, width)]
    left, right = (graph.node("Gather", joined, side, axis=1) for side in sides)
    return str(graph.node("Concat", joined, graph.node("Mul", left, right), axis=1))


def _tower(graph: Graph, columns: Any, tower: Tower) -> str:
    embeddings, linears = iter(tower.embeddings), iter(tower.linears)
    parts: list[str] = []
    for column, block in zip(columns, tower.blocks, strict=True):
        values = column_input(graph, column)
        if isinstance(column, IdColumn):
            part = graph.node("Gather", _floats(graph, next(embeddings)), places(graph, values, column))
            if column.kind == "bag":
                part = bag_mean(graph, part, column)
        else:
            part = standardised(graph, values, column)
        if block.linear is not None:
            part = graph.node("MatMul", part, _floats(graph, next(linears).T))
        parts.append(part)
    joined = str(graph.node("Concat", *parts, axis=1))
    if tower.norm is None or tower.last is None:
        return joined
    matrix, shift = _folded(tower)
    return str(graph.node("Add", graph.node("MatMul", joined, _floats(graph, matrix)), _floats(graph, shift[None])))


def _folded(tower: Tower) -> tuple[Tensor, Tensor]:
    """The batch-norm at use time and the linear layer behind it as one matrix (width, dim) and one shift (dim,)."""
    norm, last = tower.norm, tower.last
    assert norm is not None
    assert last is not None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    shift = norm.bias.double() - norm.running_mean.double() * scale
    matrix = last.double() * scale  # (dim, width)
    return matrix.T, last.double() @ shift
