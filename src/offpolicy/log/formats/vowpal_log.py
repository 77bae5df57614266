"""A log to and from Vowpal Wabbit's files, DSJSON and `cb_adf` text: candidates, their features, kept shares."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offpolicy.atomic import atomic_file
from offpolicy.errors import LogError, ParameterError
from offpolicy.log.candidates import Candidates
from offpolicy.log.features import BagColumn, CategoricalColumn, Column, EmbeddingColumn, FeatureTable, NumericColumn
from offpolicy.log.files import expanded, format_of
from offpolicy.log.formats.vowpal import VowpalLog, vowpal_log
from offpolicy.log.logged_data import LoggedData
from offpolicy.log.readers import read_log

Features = Callable[[int], dict[str, Any]]
"""The features of an entry, ready for JSON."""


def read_vowpal(
    source: str | Path | Sequence[str | Path], *, reward_range: tuple[float, float] | None = None
) -> LoggedData:
    """The labelled decisions of DSJSON or `cb` files, with all that they hold: candidates, features, kept shares.

    The reward is −cost. Costs within [−1, 0] or [0, 1] need no `reward_range`. `vowpal_log` says what was skipped.
    """
    paths = expanded(source)
    forms = {format_of(path) for path in paths}
    if not forms <= {"dsjson", "cb"} or len(forms) != 1:
        raise LogError(f"{paths[0]} is not a log of Vowpal Wabbit (or they mix two formats). Read it with read_log.")
    found = vowpal_log(paths, "dsjson" if forms == {"dsjson"} else "cb")
    return log_of(found, reward_range or range_of_rewards(found, str(paths[0])))


def log_of(found: VowpalLog, reward_range: tuple[float, float]) -> LoggedData:
    """The log of a parsed file."""
    roles = found.roles | {"action": "action", "reward": "reward"}
    return read_log(
        found.frame,
        context=found.context,
        candidate_features=found.candidate_features,
        actions=found.actions,
        reward_range=reward_range,
        **roles,  # type: ignore[arg-type]
    )


def range_of_rewards(found: VowpalLog, named: str) -> tuple[float, float]:
    """The range of −cost where costs keep to [−1, 0] or to [0, 1]."""
    low, high = float(found.frame["reward"].min()), float(found.frame["reward"].max())  # type: ignore[arg-type]
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if low >= -1 and high <= 0:
        return -1.0, 0.0
    raise LogError(
        f"{named}: rewards are −cost and reach from {low:g} to {high:g}. Declare the range they can have with "
        f"--reward-range {low:g},{high:g} (or a wider one)."
    )


def to_dsjson(log: LoggedData, path: str | Path) -> None:
    """Write a log as DSJSON: an event a row, its candidates in `_multi`, their ids as tags.

    Ids become text and embeddings numbers of their own (`name.0`, ...). A row that stands for n ≥ 1 events is written
    with pdrop = 1 − 1/n. Clusters are left out.
    """
    if log.row_weight is not None and (log.row_weight < 1).any():
        raise ParameterError("DSJSON writes a row's weight as the share of events that were kept, so it must be ≥ 1.")
    _write(path, _events(log))


def _events(log: LoggedData) -> Iterator[str]:
    shared, costs = _features(log.contexts), -log.reward_to_user_scale(log.reward)
    offered, described = _sets(log), _candidate_features(log)
    for row in range(log.n_rows):
        context, place = int(log.context_index[row]), int(log.row_place[row])
        kept = 1.0 if log.row_weight is None else 1 / float(log.row_weight[row])
        multi = [{"_tag": name} | described(context, j, code) for j, (name, code) in enumerate(offered(context))]
        event: dict[str, Any] = {"_label_cost": float(costs[row]) + 0.0}
        if log.logging_prob is not None:
            event["_label_probability"] = float(log.logging_prob[row]) * kept
        event |= {"_label_Action": place + 1, "_labelIndex": place, "Version": "1", "EventId": str(row)}
        if log.timestamp is not None:
            event["Timestamp"] = f"{np.datetime64(int(log.timestamp[row]), 'us')}Z"
        event["a"] = [place + 1, *(j + 1 for j in range(len(multi)) if j != place)]
        event["c"] = shared(context) | {"_multi": multi}
        yield json.dumps(event if kept == 1 else event | {"pdrop": 1 - kept}, ensure_ascii=False)


def to_cb_adf(log: LoggedData, path: str | Path) -> None:
    """Write a log as `cb_adf` text: a block a row, the shared line first, then a line a candidate with its id as tag.

    The format has no place for times, clusters, kept shares or embeddings (which become numbers of their own), and
    needs a probability in every row.
    """
    if log.logging_prob is None:
        raise ParameterError("cb_adf text needs the probability of every action taken, but this log has none.")
    if log.row_weight is not None:
        raise ParameterError("cb_adf text has no place for row weights, which change every mean. Write DSJSON.")
    _write(path, _blocks(log))


def _blocks(log: LoggedData) -> Iterator[str]:
    assert log.logging_prob is not None
    shared, costs = _features(log.contexts), -log.reward_to_user_scale(log.reward)
    offered, described = _sets(log), _candidate_features(log)
    for row in range(log.n_rows):
        context, place = int(log.context_index[row]), int(log.row_place[row])
        lines = [f"shared {_namespaces(shared(context))}"]
        for j, (name, code) in enumerate(offered(context)):
            label = f"0:{float(costs[row]) + 0.0!r}:{float(log.logging_prob[row])!r} " if j == place else ""
            lines.append(f"{label}'{_word(name)} {_namespaces(described(context, j, code))}")
        yield "\n".join(lines) + "\n"


def _write(path: str | Path, lines: Iterator[str]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line + "\n")


def _sets(log: LoggedData) -> Callable[[int], list[tuple[str, int]]]:
    """Name and code of the candidates of a context."""
    names = [str(one) for one in log.actions.vocabulary.to_list()]
    everything = list(enumerate(names))
    if log.candidates is None:
        return lambda context: [(name, code) for code, name in everything]
    offsets, codes = log.candidates.offsets, log.candidates.codes
    return lambda context: [(names[c], int(c)) for c in codes[offsets[context] : offsets[context + 1]]]


def _candidate_features(log: LoggedData) -> Callable[[int, int, int], dict[str, Any]]:
    """What is known of the j-th candidate of a context: of the action, and of it there."""
    static = (lambda code: {}) if log.actions.features is None else _features(log.actions.features)
    candidates: Candidates | None = log.candidates
    if candidates is None or candidates.features is None:
        return lambda context, j, code: static(code)
    own, offsets = _features(candidates.features), candidates.offsets
    return lambda context, j, code: static(code) | own(int(offsets[context]) + j)


def _features(table: FeatureTable) -> Features:
    readers = {name: _reader(name, column) for name, column in table.items()}

    def features(entry: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for reader in readers.values():
            found |= reader(entry)
        return found

    return features


def _reader(name: str, column: Column) -> Features:
    if isinstance(column, NumericColumn):
        return lambda entry: {name: float(column.values[entry])}
    if isinstance(column, EmbeddingColumn):
        return lambda entry: {f"{name}.{i}": float(one) for i, one in enumerate(column.values[entry])}
    names = [None if one is None else str(one) for one in column.vocabulary.to_list()]
    if isinstance(column, CategoricalColumn):
        return lambda entry: {} if (one := names[column.codes[entry]]) is None else {name: one}
    assert isinstance(column, BagColumn)
    offsets, codes = column.offsets, column.codes
    return lambda entry: {name: [names[c] for c in codes[offsets[entry] : offsets[entry + 1]]]}


def _namespaces(features: Mapping[str, Any]) -> str:
    """`|namespace a:1 b=x`: the part of a name before its first dot is the namespace; a bag of names is one."""
    groups: dict[str, list[str]] = {}
    for name, value in features.items():
        if isinstance(value, list):
            groups.setdefault("" if name == "features" else name, []).extend(map(_word, value))
            continue
        namespace, dot, rest = name.partition(".")
        own, feature = (namespace, rest) if dot else ("", name)
        token = f"{_word(feature)}:{value!r}" if isinstance(value, float) else f"{_word(feature)}={_word(value)}"
        groups.setdefault(own, []).append(token)
    ordered = sorted(groups.items(), key=lambda pair: pair[0] != "")
    return " ".join(" ".join([f"|{_word(name) if name else ''}", *words]) for name, words in ordered) or "|"


def _word(text: str) -> str:
    """A name that the text format can hold."""
    odd = [letter for letter in " \t\n:|" if letter in text]
    if odd or not text:
        raise ParameterError(
            f"cb_adf text cannot hold the name {text!r}: spaces, colons and bars separate its parts. Write DSJSON, or "
            "rename it."
        )
    return text
