"""Run ops over columns and compare them with an oracle in plain Python, of one value or one row at a time.

Every op runs over a column, over its slices and chunks, over lists of its values, and over lists with values below
nulls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from feedline.config.features import OpCall
from feedline.config.yaml_document import Path
from feedline.transforms.ops import resolve
from feedline.transforms.values.kinds import Value

INTEGERS = [pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64()]
FLOATS = [pl.Float32(), pl.Float64()]
NUMBERS = [*INTEGERS, *FLOATS]
INT_LISTS = pl.List(pl.Int64())
FLOAT_LISTS = pl.List(pl.Float32())
PAIRS = pl.List(pl.Struct({"id": pl.Int64(), "weight": pl.Float32()}))

ids = st.one_of(st.integers(0, 6), st.sampled_from([-1, -(2**63), 2**63 - 1, 2**40]))
some_ids = st.lists(st.one_of(st.none(), ids), max_size=6)
id_lists = st.lists(st.one_of(st.none(), some_ids), max_size=8)


def call(op: str, arguments: object = None, path: Path = ()) -> OpCall:
    """A call as the spec layer hands it over; anything but a mapping is a bare value."""
    value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
    return OpCall(op=op, arguments=json.dumps(value), path=path)


def rounded(value: float, dtype: pl.DataType) -> float:
    """A float as a column of the type holds it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) if dtype == pl.Float32() else float(value)


def bound(op: str, arguments: object, dtype: pl.DataType) -> Value:
    return resolve(call(op, arguments)).apply(Value(expr=pl.col("a"), dtype=dtype))


def run(op: str, arguments: object, series: pl.Series) -> pl.Series:
    value = bound(op, arguments, series.dtype)
    found = series.alias("a").to_frame().lazy().select(value.expr).collect(engine="in-memory").to_series()
    assert found.dtype == value.dtype
    assert len(found) == len(series)
    return found


def check_elements(
    op: str, arguments: object, series: pl.Series, oracle: Callable[[Any], Any], close: float = 0
) -> None:
    """Check the op over a column, its parts, its chunks and lists of its values against an oracle for one value."""
    values = series.to_list()
    expected = [None if value is None else oracle(value) for value in values]
    middle = len(values) // 2
    same(run(op, arguments, series).to_list(), expected, close)
    same(run(op, arguments, series[3:]).to_list(), expected[3:], close)
    same(run(op, arguments, series[1:middle]).to_list(), expected[1:middle], close)
    chunked = pl.concat([series[:middle], series[middle:]], rechunk=False)
    same(run(op, arguments, chunked).to_list(), expected, close)
    pieces = [values[start : start + 3] for start in range(0, len(values), 3)]
    lists = pl.Series("a", [None, *pieces, [], None, values], dtype=pl.List(series.dtype))
    wanted = [expected[start : start + 3] for start in range(0, len(expected), 3)]
    for rows in (slice(None), slice(1, None), slice(2, -1), slice(0, 0), slice(0, 1)):
        same(run(op, arguments, lists[rows]).to_list(), [None, *wanted, [], None, expected][rows], close)


def same(found: Any, expected: Any, close: float = 0) -> None:
    """Whether values and types are equal, with NaN equal to NaN; floats within a relative tolerance, if given."""
    if isinstance(expected, list) and isinstance(found, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, close)
    elif isinstance(found, float) and isinstance(expected, float) and math.isfinite(expected):
        # subnormal float32 are further apart than any relative tolerance
        assert math.isclose(found, expected, rel_tol=close, abs_tol=1e-44 if close else 0), (found, expected)
    else:
        assert (type(found), repr(found)) == (type(expected), repr(expected))


@st.composite
def columns(draw: Any, dtypes: list[pl.DataType] = NUMBERS) -> pl.Series:
    """Draw a column of up to thirty values of one of the types, including nulls and the type's extremes."""
    dtype = draw(st.sampled_from(dtypes))
    if dtype.is_integer():
        low, high = (
            int(dtype.to_python is not None and pl.select(dtype.min()).item()),
            int(pl.select(dtype.max()).item()),
        )
        element = st.one_of(st.integers(low, high), st.sampled_from([low, high]), st.integers(max(low, -20), 20))
    else:
        width = 32 if dtype == pl.Float32() else 64
        element = st.one_of(st.floats(width=width), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]))
    values = draw(st.lists(st.one_of(st.none(), element), max_size=30))
    return pl.Series("a", values, dtype=dtype)


def combined(op: str, arguments: object, *given: pl.Series) -> tuple[list[Any], list[Any] | None]:
    """Return the op's result over columns, and its weights."""
    value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
    names = [f"c{place}" for place, _ in enumerate(given)]
    made = resolve(OpCall(op=op, arguments=json.dumps(value)))
    values = [Value(expr=pl.col(name), dtype=series.dtype) for name, series in zip(names, given, strict=True)]
    result = made.combine(values) if made.op.inputs else made.apply(values[0])
    frame = pl.DataFrame([series.alias(name) for name, series in zip(names, given, strict=True)])
    wanted = [result.expr.alias("made"), *([] if result.weights is None else [result.weights.alias("weights")])]
    found = frame.lazy().select(wanted).collect(engine="in-memory")
    assert found["made"].dtype == result.dtype
    assert found.height == frame.height
    return found["made"].to_list(), found["weights"].to_list() if result.weights is not None else None


def hidden(series: pl.Series) -> pl.Series:
    """Return the same column of lists, with elements below its nulls."""
    rows = [[3, 3] if row is None else row for row in series.to_list()]
    whole = pl.Series(series.name, rows, dtype=series.dtype).to_arrow()
    bits = pa.array([row is not None for row in series.to_list()]).buffers()[1]
    parts = [bits, whole.buffers()[1]]
    return pl.Series(pa.Array.from_buffers(whole.type, len(whole), parts, children=[whole.values]))


def check_rows(
    op: str, arguments: object, given: Sequence[pl.Series], oracle: Callable[..., Any], close: float = 0
) -> None:
    """Check the op over columns, their parts, chunks and values below nulls against an oracle for one row."""
    expected = [oracle(*row) for row in zip(*(series.to_list() for series in given), strict=True)]
    size = len(given[0])
    same(combined(op, arguments, *given)[0], expected, close)
    for start, stop in ((1, size), (0, size // 2), (size // 2, size), (0, 0)):
        same(combined(op, arguments, *(series[start:stop] for series in given))[0], expected[start:stop], close)
    if size and all(series.dtype == INT_LISTS for series in given):
        same(combined(op, arguments, *(hidden(series) for series in given))[0], expected, close)


def int_lists(rows: Sequence[Any]) -> pl.Series:
    return pl.Series("a", list(rows), dtype=INT_LISTS)


def parts_of(rows: Sequence[Any], dtype: Any = INT_LISTS) -> pl.Series:
    return pl.Series("a", list(rows), dtype=dtype)


def without_nulls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an oracle: null for a null list; null elements are removed."""

    def oracle(*rows: Any) -> Any:
        return None if None in rows else function(*([item for item in row if item is not None] for row in rows))

    return oracle
