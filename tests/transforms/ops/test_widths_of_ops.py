"""Ops give the same for the same values in columns of any width: int8 to uint64, float32 and float64.

For every example of every op, over edge values: null, empty and null lists, null elements, repetitions, 0, negative
numbers, NaN and infinities.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from example_rows import FolderArtifacts, examples, feature_of, names_of, write_outside
from fit_in_memory import fit_frames

from feedline.errors import FeedlineError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import Example

SIGNED = [pl.Int64(), pl.Int32(), pl.Int16(), pl.Int8()]
UNSIGNED = [pl.UInt64(), pl.UInt32(), pl.UInt16(), pl.UInt8()]
FLOATS = [pl.Float64(), pl.Float32()]
CASES: dict[str, tuple[list[pl.DataType], list[Any]]] = {  # widths, the widest first, and values that all of them hold
    "integers": (SIGNED + UNSIGNED, [0, 7, 7, 1, 100]),
    "signed": (SIGNED, [0, -1, -1, -100, 7]),
    "floats": (FLOATS, [0.0, -0.0, math.inf, -math.inf, math.nan, 1.5, -2.0, 1.5]),
}


def rows_of(dtype: pl.DataType, number: pl.DataType, values: list[Any]) -> tuple[pl.DataType, list[Any]]:
    """The values at the edges of a column like `dtype`, with another type of number."""
    if isinstance(dtype, pl.Array):
        width = dtype.size
        return pl.Array(number, width), [values[:width], None, [None] * width, values[-width:], [values[0]] * width]
    if isinstance(dtype, pl.List):
        return pl.List(number), [values, [], None, [None], [values[1], None, values[1]], values[::-1], [values[0]]]
    return number, [*values, None]


def column(series: pl.DataType, number: pl.DataType, values: list[Any]) -> pl.Series | None:
    """A column of 8 rows; None where the example's column holds other values."""
    inner = series.inner if isinstance(series, pl.List | pl.Array) else series
    assert isinstance(inner, pl.DataType)
    if inner.is_integer() != number.is_integer() or not inner.is_numeric():
        return None
    dtype, rows = rows_of(series, number, values)
    return pl.Series((rows * 2)[:8], dtype=dtype)


def made(example: Example, frame: pl.DataFrame, folder: Path) -> list[Any] | None:
    """What the op makes of the rows; None where it refuses them."""
    feature = feature_of(example)
    schema = frame.to_arrow().schema
    try:
        known = FolderArtifacts(artifacts=fit_frames([feature], schema, [frame]).artifacts, folder=str(folder))
    except FeedlineError:
        known = FolderArtifacts(artifacts={}, folder=str(folder))
    try:
        found = compile_features([feature], schema, known).apply(frame)
    except FeedlineError:
        return None
    assert found.height == frame.height
    return found["made"].to_list()


def flat(value: Any) -> list[Any]:
    """All that is in a value, with where a list begins."""
    if isinstance(value, list):
        return ["[", *(part for item in value for part in flat(item))]
    return [part for item in value.values() for part in flat(item)] if isinstance(value, dict) else [value]


def alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two parts are the same; of numbers, nearly."""
    if isinstance(one, float) and isinstance(other, float):
        close = math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        return close or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def frames_of(example: Example, case: str) -> list[tuple[pl.DataType, pl.DataFrame]]:
    """The edges in each width; none where the example is of other columns."""
    frames = []
    for number in CASES[case][0]:
        columns = [column(dtype, number, CASES[case][1]) for dtype, _ in example.columns]
        if any(one is None for one in columns):
            return []
        frames.append((number, pl.DataFrame(dict(zip(names_of(example), columns, strict=True)))))
    return frames


@pytest.mark.parametrize("case", CASES)
def test_the_same_values_give_the_same_in_columns_of_any_width(tmp_path: Path, case: str):
    for place, (_, example) in enumerate(examples()):
        if frames_of(example, case):
            folder = tmp_path / str(place)
            folder.mkdir()
            assert_any_width(folder, example, case)


def assert_any_width(tmp_path: Path, example: Example, case: str) -> None:
    if example.outside:
        write_outside(example, tmp_path)
    results = [(number, made(example, frame, tmp_path)) for number, frame in frames_of(example, case)]
    given = [flat(result) for _, result in results if result is not None]
    refused = [number for number, result in results if result is None]  # by all, or where -1 does not fit
    assert not given or all(number.is_unsigned_integer() for number in refused), refused
    assert given or example.call.op in ("cast", "vector")  # no integer is infinite; lists are of many lengths
    tolerance = 0.0 if case != "floats" else 2e-3 if example.call.op == "logit" else 1e-6  # its 1 - eps is rounded
    for result in given[1:]:
        assert len(result) == len(given[0])
        assert all(alike(one, other, tolerance) for one, other in zip(result, given[0], strict=True)), (result, given)
