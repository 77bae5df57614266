"""Where a policy is better and where it is worse: value and difference to logging by segment, all at once.

Looking at many segments finds differences by chance, so intervals hold for all segments and candidates together
(Bonferroni) and p-values are Holm-corrected over all of them.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from offpolicy.errors import ParameterError
from offpolicy.evaluation.auto import auto_estimate, logging_estimate
from offpolicy.evaluation.comparison import difference_width, holm
from offpolicy.evaluation.preflight import preflight
from offpolicy.evaluation.rows import PolicyRows
from offpolicy.evaluation.scale import Scale
from offpolicy.log import CategoricalColumn, LoggedData, NumericColumn
from offpolicy.propensity import Repeats
from offpolicy.results import Segment

TIME = "time"
"""The name under which the log is cut into periods."""
PARTS = 4
"""Periods of time, or parts of a numeric column, of about equal size."""
MOST = 20
"""Values of a categorical column that are looked at, the most frequent ones."""

Part = tuple[str, npt.NDArray[np.bool_]]


def breakdown(
    policies: Mapping[str, PolicyRows],
    column: str,
    level: float = 0.95,
    scale: Scale | None = None,
    repeats: Repeats | None = None,
) -> list[Segment]:
    """Value and difference to logging of every policy in every segment, on the user's scale."""
    scale = scale or Scale()
    log = next(iter(policies.values())).log
    parts = segments_of(log, column)
    joint = 1 - (1 - level) / max(len(parts) * len(policies), 1)
    found, p_values = [], []
    for name, rows in policies.items():
        for label, kept in parts:
            mine = rows.take(kept)
            estimate, own = auto_estimate(mine, joint), logging_estimate(mine, joint)
            width, difference = difference_width(estimate, own), estimate.value - own.value
            half = width.half(joint)
            refused = not preflight(mine, estimate, repeats).verdict.answerable
            p_values.append(1.0 if refused else width.p_value(difference))
            found.append(
                Segment(
                    column=column,
                    segment=label,
                    policy=name,
                    rows=int(kept.sum()),
                    value=scale.value(estimate.value),
                    low=scale.value(estimate.interval.low),
                    high=scale.value(estimate.interval.high),
                    logging=scale.value(own.value),
                    difference=scale.width(difference),
                    difference_low=scale.width(max(difference - half, -1.0)),
                    difference_high=scale.width(min(difference + half, 1.0)),
                    refused=refused,
                )
            )
    return [
        one if one.refused else one.model_copy(update={"adjusted_p_value": p})
        for one, p in zip(found, holm(p_values), strict=True)
    ]


def segments_of(log: LoggedData, column: str) -> list[Part]:
    """Names of the segments and which rows they hold: values of a category, parts of a number, or periods of time."""
    if column == TIME and column not in log.contexts:
        if log.timestamp is None:
            raise ParameterError("segments='time' needs times, but this log has no timestamp column. Name it first.")
        return _parts(log.timestamp.astype(np.float64))
    known = [name for name in log.contexts if isinstance(log.contexts[name], CategoricalColumn | NumericColumn)]
    if column not in known:
        raise ParameterError(
            f"There is no context column {column!r} to break down by. Known: {', '.join([*known, TIME])}."
        )
    values = log.contexts[column]
    if isinstance(values, NumericColumn):
        return _parts(values.values.astype(np.float64)[log.context_index])
    assert isinstance(values, CategoricalColumn)
    code = values.codes[log.context_index]
    often = np.argsort(-np.bincount(code, minlength=len(values.vocabulary)), kind="stable")[:MOST]
    names = values.vocabulary.decode(often)
    parts = [(str(name), code == value) for name, value in zip(names, often, strict=True)]
    return [part for part in parts if part[1].any()]


def _parts(values: npt.NDArray[np.float64]) -> list[Part]:
    """Four parts of about equal size, fewer where values are equal."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, PARTS + 1)[1:-1]))
    place = np.searchsorted(edges, values, side="left")
    masks = [place == number for number in np.unique(place)]
    return [(f"{values[kept].min():g} to {values[kept].max():g}", kept) for kept in masks]
