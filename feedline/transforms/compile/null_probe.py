"""Find the features that a null makes null, by computing them on probe rows, and the row that made a pass fail.

Runs where a plan is made, on the calling thread. One row holds a plain value in every column, and for each column a row
holds a null in it, but in no other that a feature reads beside it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL,
    DURATION,
    FLOAT,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    inner_type,
    instance,
    kind,
)
from feedline.transforms.compile.compiled import CompiledFeatures, compile_some

_PLAIN: dict[str, Any] = {
    INTEGER: 1,
    FLOAT: 1.0,
    DECIMAL: Decimal(1),
    BOOLEAN: True,
    STRING: "1",
    BINARY: b"1",
    DATE: datetime.date(2026, 1, 1),
    TIMESTAMP: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    TIME: datetime.time(12),
    DURATION: datetime.timedelta(seconds=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A feature that a null in a column makes null. always: for all values of its other columns, not only for some."""

    feature: str
    column: str
    always: bool


def null_leaks(features: CompiledFeatures, columns: Collection[str]) -> list[Leak]:
    """The features that cannot be encoded where one of these columns is null, in the features' order.

    A feature of several columns leaks only if it has a value for the plain row. Features that fail on the probe rows
    (which are no rows of the table) are skipped. Extra features may be null.
    """
    affected = {
        output.name
        for output in features.outputs
        if output.group != "extra" and not set(output.reads).isdisjoint(columns)
    }
    if not affected:
        return []
    compiled = compile_some(features, affected)
    null_rows = _null_rows(compiled, columns)
    rows = 1 + max(null_rows.values())
    places = {name: place for place, name in enumerate(compiled.parts)}
    frame = pl.DataFrame(
        [
            _probes(name, dtype, rows, null_rows.get(name))
            for name, dtype in zip(compiled.parts, compiled.types, strict=True)
        ]
    )
    # as rows that a fit has seen, and as rows that it has not: the results may differ
    marked_frames = [
        frame.with_columns(pl.lit(is_seen).alias(mark) for mark in compiled.marks) for is_seen in (True, False)
    ]
    outcomes = [_outcomes(compiled, rows) for rows in (marked_frames if compiled.marks else [frame])]
    found = []
    for output, *nulls in zip(compiled.outputs, *outcomes, strict=True):
        for name in sorted(null_rows.keys() & output.reads, key=places.__getitem__):
            row, alone = null_rows[name], output.reads == (name,)
            leaks = [each[row] is True and (alone or each[0] is False) for each in nulls]
            if any(leaks):
                found.append(Leak(feature=output.name, column=name, always=alone and all(leaks)))
    return found


def _null_rows(compiled: CompiledFeatures, columns: Collection[str]) -> dict[str, int]:
    """The row in which each column is null: the first after the plain one for all columns that no feature reads beside
    another, a row of its own for every other.
    """
    several = [names for output in compiled.outputs if len(names := {*output.reads, *output.row_columns}) > 1]
    beside = set[str]().union(*several)
    probed = [name for name in compiled.parts if name in columns]
    apart = [name for name in probed if name in beside]
    return dict.fromkeys(probed, 1) | {name: row for row, name in enumerate(apart, start=2)}


def _probes(name: str, dtype: pl.DataType, rows: int, null: int | None) -> pl.Series:
    values = [_plain(dtype)] * rows
    if null is not None:
        values[null] = None
    try:
        return pl.Series(name, values, dtype=dtype)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):  # a type without a plain value
        return pl.Series(name, [None] * rows, dtype=dtype)


def _plain(dtype: pl.DataType) -> Any:
    match dtype:
        case pl.List():
            return [_plain(inner_type(dtype))]
        case pl.Array(inner=inner, size=size):
            return [_plain(instance(inner))] * size
        case pl.Struct(fields=fields):
            return {field.name: _plain(instance(field.dtype)) for field in fields}
        case pl.Datetime(time_zone=None):
            return _PLAIN[TIMESTAMP].replace(tzinfo=None)
    return _PLAIN.get(kind(dtype))


def _outcomes(compiled: CompiledFeatures, frame: pl.DataFrame) -> list[Sequence[bool | None]]:
    """For each feature and row, whether it is null; None if it cannot be computed."""
    try:
        finished = compiled.apply(frame)
    except DataError:  # one failing feature is enough: try each alone, then each row
        return [_outcome(compiled, frame, slice(index, index + 1)) for index in range(len(compiled.outputs))]
    return [_is_null(finished.get_column(output.name)) for output in compiled.outputs]


def _outcome(compiled: CompiledFeatures, frame: pl.DataFrame, feature: slice) -> Sequence[bool | None]:
    try:
        return _is_null(compiled.lazy(frame, feature).collect(engine="in-memory").to_series())
    except (pl.exceptions.PolarsError, DataError):
        if frame.height == 1:
            return [None]
    return [_outcome(compiled, frame.slice(row, 1), feature)[0] for row in range(frame.height)]


def _is_null(series: pl.Series) -> list[bool]:
    """Whether each row holds a null that cannot be encoded: a null list counts as empty, a null element as null."""
    match series.dtype:
        case pl.Struct():
            fields = [_is_null(field) for field in series.struct.unnest()]
            return [any(row) for row in zip(*fields, strict=True)]
        case pl.List():
            return [value is not None and bool(value.null_count()) for value in series]
        case pl.Array():
            return [value is None or bool(value.null_count()) for value in series]
    return series.is_null().to_list() if series.null_count() else [False] * series.len()


# --------------------------------------------------------------------------------------------------------------------
# Find all rows that features cannot be computed of, and not only the first one that an error names. A row's features
# depend on that row alone, so some rows fail together exactly if one of them fails. Rows that are equal in what a
# feature reads are tried once, and those that fail are found by halving: about 2 log2(n / b) passes of one feature
# for each of b failing rows among n, and none for features that do not fail.

Bools = NDArray[np.bool_]


def failing_rows(features: CompiledFeatures, frame: pl.DataFrame, most: int) -> dict[str, Bools]:
    """bool [rows] per feature that cannot be computed of some rows: which of them; of more than `most`, some.

    `frame`: as `CompiledFeatures.apply` takes it, with all its columns. Raises DataError, as a run would, for a feature
    that fails on rows together, but on none alone.
    """
    frame = frame.rechunk()
    found: dict[str, Bools] = {}
    for index, output in enumerate(features.outputs):
        error = features.failure(frame, index)
        if error is None:
            continue
        reads = dict.fromkeys([*output.reads, *output.row_columns, *features.marks])
        groups = _equal_rows(frame, [name for name in reads if name in frame.columns])
        firsts = frame if groups is None else frame[groups[0]]
        failing = _halve(features, firsts, index, most)
        if not failing.any():
            raise DataError(f"feature {output.name!r} fails on some rows together, but on none of them alone: {error}")
        found[output.name] = failing if groups is None else failing[groups[1]]
    return found


def _halve(features: CompiledFeatures, frame: pl.DataFrame, index: int, most: int) -> Bools:
    return find_failing(
        frame.height, lambda start, stop: features.failure(frame.slice(start, stop - start), index) is not None, most
    )


def find_failing(count: int, fails: Callable[[int, int], bool], most: int) -> Bools:
    """bool [count]: the indices that fail alone, the first ones of them if they are more than `most`.

    fails: whether any index in [start, stop) does; some do. It is called once at most for each range.
    """
    failing = np.zeros(count, np.bool_)
    found, waiting = 0, [(0, count, False)] if count else []  # ranges that fail, and whether they were tried
    while waiting and found <= most:
        start, stop, is_tried = waiting.pop()
        if stop - start == 1:
            failing[start] = is_tried or fails(start, stop)
            found += int(failing[start])
            continue
        middle = (start + stop) // 2
        left = fails(start, middle)
        if not left or fails(middle, stop):  # if the left half does not fail, the right half does
            waiting.append((middle, stop, left))
        if left:
            waiting.append((start, middle, True))
    return failing


def _equal_rows(frame: pl.DataFrame, columns: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """int64 [distinct]: the first of the rows that are equal in some columns; int64 [rows]: to which of these each row
    is equal. None of columns that cannot be compared exactly, or if no row is equal to another."""
    kinds = [frame.schema[name] for name in columns]
    if not columns or any(kind.is_nested() or kind.is_float() for kind in kinds):  # 0.0 equals -0.0
        return None
    index = " ".join(["row", *columns])  # a name that no column has
    first = frame.select(columns).with_row_index(index).select(pl.col(index).min().over(columns))
    firsts, numbers = np.unique(first.to_series().to_numpy(), return_inverse=True)
    return None if len(firsts) == frame.height else (firsts, numbers)
