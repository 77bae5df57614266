"""Columns of a frame: pandas, polars, arrow, Hugging Face data sets, or anything else that narwhals understands."""

from collections.abc import Sequence
from typing import Any, Literal

import narwhals as nw
import polars as pl

from offpolicy.errors import LogError, ParameterError
from offpolicy.log.nested import flattened, roots, selections
from offpolicy.log.origin import Origin, Part

FRAME = "the frame"


def wrapped(source: Any, argument: str) -> Any:
    """The source as a narwhals frame, or the error that this argument is none."""
    try:
        return nw.from_native(_arrow_of(source))
    except nw.exceptions.DuplicateError:
        raise _duplicate(_native_names(source)) from None
    except TypeError:
        raise ParameterError(
            f"{argument} must be a path, a glob, a list, or a pandas, polars or arrow frame, "
            f"but it is {type(source).__name__}. Convert it to one of these."
        ) from None


def _arrow_of(source: Any) -> Any:
    """A Hugging Face data set as the arrow table it holds, its columns memory-mapped as before; others as they are."""
    if type(source).__module__.partition(".")[0] != "datasets":
        return source
    if isinstance(source, dict):
        raise ParameterError(f"The data set has several splits ({', '.join(source)}): give one of them.")
    if not hasattr(source, "with_format") or not hasattr(source, "num_rows"):
        raise ParameterError("A streamed data set cannot be read as a log: load it without streaming=True.")
    return source.with_format("arrow")[:]


def frame_kind(source: Any) -> Literal["polars", "pandas"]:
    """The library of a frame; files count as polars."""
    return "pandas" if type(source).__module__.partition(".")[0] == "pandas" else "polars"


def frame_names(frame: Any) -> list[str]:
    """The column names of a narwhals frame; of objects their fields."""
    schema: Any = {}
    try:
        schema = frame.collect_schema()
        names = list(schema.names())
    except nw.exceptions.DuplicateError:
        names = _native_names(nw.to_native(frame))
    except Exception as error:  # a lazy frame may hold a broken plan, and each backend has its own errors
        raise LogError(f"{FRAME} cannot be evaluated: {str(error).splitlines()[0]}. Fix its query.") from None
    if len(set(names)) != len(names):
        raise _duplicate(names)
    if any(dtype == nw.Struct for dtype in schema.values()):
        names = list(selections(schema.to_polars()))
    return [name if isinstance(name, str) else repr(name) for name in names]  # pandas allows any label


def _native_names(source: Any) -> list[Any]:
    # An arrow table has both attributes; its `columns` are the data.
    return list(getattr(source, "column_names", None) or source.columns)


def _duplicate(names: Sequence[Any]) -> LogError:
    twice = next((name for position, name in enumerate(names) if name in list(names)[:position]), "?")
    return LogError(f"{FRAME} has the column {twice!r} more than once. Rename or drop one of them.")


def frame_columns(frame: Any, columns: Sequence[str]) -> tuple[dict[str, pl.Series], Part]:
    """These columns of a narwhals frame as polars series."""
    whole = roots(columns, frame.collect_schema().names())
    if isinstance(frame, nw.LazyFrame):
        try:
            collected = frame.select(*whole).collect(backend="polars").to_native()
        except Exception as error:  # each lazy backend has its own family of errors
            raise LogError(f"{FRAME} cannot be evaluated: {str(error).splitlines()[0]}. Fix its query.") from None
    else:
        collected = pl.DataFrame([_polars_series(frame, name) for name in whole])
    found = flattened(collected, columns)
    return {name: found.get_column(name) for name in columns}, Part(FRAME, len(found))


def _polars_series(frame: Any, name: str) -> pl.Series:
    column = frame.get_column(name)
    try:
        converted: pl.Series = column.to_polars()
    except Exception as error:  # pyarrow and polars raise many kinds for mixed objects
        raise _unconvertible(name, column.to_list(), error) from None
    if converted.dtype == pl.Object:
        raise _unconvertible(name, column.to_list(), TypeError("it holds Python objects"))
    return converted


def _unconvertible(name: str, values: list[Any], error: Exception) -> LogError:
    origin = Origin((Part(FRAME, len(values)),))
    present = [(row, value) for row, value in enumerate(values) if value is not None and value == value]
    for row, value in present:
        if type(value) is not type(present[0][1]):
            first = type(present[0][1]).__name__
            remedy = "Convert the column to one type."
            return origin.bad_value(name, row, value, f"mixes types (its first value is a {first})", remedy)
    reason = str(error).splitlines()[0]
    return origin.bad_column(name, f"cannot be converted: {reason}", "Convert the column to numbers, ids or lists")
