"""Ops that derive a new feature from a value: bucketize, enumerate, ngram, get_local_hour, expr.

Built in every process, run on the workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator

from feedline.errors import ExpressionError, SpecError
from feedline.expressions import BoundExpression, bind_expression, parse
from feedline.expressions.row_preservation import offending_node
from feedline.expressions.types import INTEGER, INTEGER_RANGES, NUMBERS, TIMESTAMP, type_name
from feedline.hashing import bucket_crosses, cross_terms
from feedline.transforms.ops.dense import Number, as_float, widen
from feedline.transforms.registry.op import MAX_INT, Parameters, example, op
from feedline.transforms.values.arrays import BLOCK_VALUES, NUMPY_TYPES, Values, map_series
from feedline.transforms.values.bucketing import Borders
from feedline.transforms.values.kinds import ANYTHING, Value
from feedline.transforms.values.ragged import Ragged, lists_of, slice_elements, widen_list


class Bucketize(Parameters):
    borders: Annotated[tuple[Number, ...], Field(description="Where one bucket ends and the next begins, ascending.")]

    @field_validator("borders", mode="after")
    @classmethod
    def _ascending(cls, borders: tuple[Number, ...]) -> tuple[Number, ...]:
        if not borders:
            raise ValueError("borders must not be empty: got none, expected at least one")
        for index, (left, right) in enumerate(pairwise(borders)):
            if left > right:
                raise ValueError(f"borders must ascend: got {left} before {right} at position {index}")
        return borders


@op(
    per_value=True,
    ids=lambda parameters, *_: len(parameters.borders) + 1,
    takes=NUMBERS,
    gives="int64",
    parameters=Bucketize,
    examples=(
        example("bucketize", [2, 5, 10], pl.Int64(), [1, 2, 3, 5, 8, 10, 11, None], [0, 0, 1, 1, 2, 2, 3, None]),
        example("bucketize", [2, 5, 5, 10], pl.Float64(), [2.5, 5.0, 5.5, 11.0], [1, 2, 3, 4]),
        example("bucketize", {"borders": [0.5]}, pl.List(pl.Float32()), [[0.5, 0.75], []], [[0, 1], []]),
    ),
)
def bucketize(x: Value, parameters: Bucketize) -> Value:
    """The bucket of a number: how many borders are below it.

    A value equal to a border belongs to the lower bucket; n borders make the buckets 0 to n. A border given twice makes
    a bucket for exactly that value; given more often, it leaves bucket numbers unused. Like `bucketize` in
    TorchArrow. Borders are rounded to a float column's type (0.1 on a float32 column means float32's 0.1); integers are
    compared exactly. Nulls stay null, NaN is in no bucket and becomes null, -inf is in the first and +inf in the last.
    """
    return count_borders(widen(x), parameters.borders)


def count_borders(x: Value, numbers: Sequence[Number]) -> Value:
    """The number of borders, in ascending order, below each value of a widened column (see bucketize)."""
    if x.dtype.is_integer():
        below, borders, twice = _integer_borders(numbers, x.dtype)
    else:
        below, borders, twice = 0, *_float_borders(numbers, x.dtype)
        x = Value(expr=x.expr.fill_nan(None), dtype=x.dtype)

    prepared = Borders.of(borders) if len(borders) else None

    def kernel(values: Values, out: Values) -> None:
        if prepared is None:
            out[:] = 0
        else:
            prepared.count_below(values, out)
        np.add(out, below, out=out)
        for border in twice:
            np.add(out, values == border, out=out)

    return x.apply_kernel(kernel, pl.Int64())


def _repeat(borders: Sequence[Any]) -> list[Any]:
    return sorted({left for left, right in pairwise(borders) if left == right})


def _integer_borders(borders: Sequence[Number], dtype: pl.DataType) -> tuple[int, Values, Values]:
    """The number of borders below the type's range, the others as integers, and those that occur twice.

    An integer is above a border if it is above the border's floor.
    """
    smallest, largest = INTEGER_RANGES[type(dtype)]
    floors = [math.floor(border) for border in borders]  # x > 0.5 is x > 0
    within = [floor for floor in floors if smallest <= floor <= largest]
    twice = [int(border) for border in _repeat(borders) if border == int(border) and int(border) in within]
    below = sum(floor < smallest for floor in floors)
    return below, np.array(within, dtype=NUMPY_TYPES[dtype]), np.array(twice, dtype=NUMPY_TYPES[dtype])


def _float_borders(borders: Sequence[Number], dtype: pl.DataType) -> tuple[Values, Values]:
    """The borders in the column's type, and those that occur twice. Raises SpecError if two become one."""
    largest = float(np.finfo(NUMPY_TYPES[dtype]).max)
    for border in (min(borders), max(borders)):
        if abs(border) >= largest:
            as_float(border, dtype, "a border")
    numbers: npt.NDArray[Any] = np.array(borders, dtype=NUMPY_TYPES[dtype])
    equal = np.flatnonzero(numbers[1:] == numbers[:-1])
    for index in equal.tolist():
        if borders[index] != borders[index + 1]:
            raise SpecError(
                f"borders must differ in the column's type: got {borders[index]} and {borders[index + 1]}, one number "
                f"as {type_name(dtype)}. Put {{cast: float64}} before it"
            )
    return numbers, np.unique(numbers[equal])


class Enumerate(Parameters):
    start: Annotated[int, Field(ge=-(2**31), le=2**31, description="The number of the first element.")] = 0


@op(
    takes=ANYTHING,
    lists="only",
    weighted=True,
    gives="lists of int64",
    parameters=Enumerate,
    examples=(
        example("enumerate", None, pl.List(pl.String()), [["a", "b", None], [], None], [[0, 1, 2], [], None]),
        example("enumerate", 1, pl.List(pl.Int64()), [[7, 7]], [[1, 2]]),
    ),
)
def enumerate_(x: Value, parameters: Enumerate) -> Value:
    """Replaces a list's elements by their positions, as Python's `enumerate` counts them.

    Null elements count; a null list stays null; weights stay with the positions.
    """

    def run(series: pl.Series) -> pl.Series:
        array = series.rechunk().to_arrow()
        offsets, absent = array.offsets.to_numpy(), None
        lengths = np.diff(offsets)
        if array.null_count:
            absent = array.is_null().to_numpy(zero_copy_only=False)
            lengths[absent] = 0
            offsets = np.concatenate(([0], np.cumsum(lengths)))
        elif offsets[0]:
            offsets = offsets - offsets[0]
        positions = np.arange(int(offsets[-1]))
        np.subtract(positions, np.repeat(offsets[:-1] - parameters.start, lengths), out=positions)
        return lists_of(positions, offsets, absent=absent)

    dtype = pl.List(pl.Int64())
    return Value(expr=map_series(x.expr, run, dtype), dtype=dtype, weights=x.weights)


class Ngram(Parameters):
    n: Annotated[int, Field(ge=1, le=64, description="The number of neighbours per id.")]
    buckets: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids are in [0, buckets).")]
    seed: Annotated[int, Field(ge=0, le=MAX_INT, description="Another seed gives another hash.")] = 0


@op(
    ids=lambda parameters, *_: parameters.buckets,
    takes={INTEGER},
    lists="only",
    gives="lists of int64",
    parameters=Ngram,
    examples=(
        example(
            "ngram",
            {"n": 2, "buckets": 1000},
            pl.List(pl.Int64()),
            [[5, 6, 7], [6, 7], [8], [], None],
            [[684, 308], [308], [], [], None],
        ),
    ),
)
def ngram(x: Value, parameters: Ngram) -> Value:
    """Makes an id for each run of n neighbours in a list: a list of m ids becomes one of m - n + 1, or an empty one.

    The id of a run is the hash of its n ids in order, as hashed_cross defines it. A run that contains a null is null; a
    null list stays null.
    """
    x = widen_list(x)
    grams = Value(
        expr=map_series(x.expr, partial(_ngrams, parameters=parameters), pl.List(pl.Int64())), dtype=pl.List(pl.Int64())
    )
    return slice_elements(grams, 0, 1 - parameters.n) if parameters.n > 1 else grams


def _ngrams(series: pl.Series, parameters: Ngram) -> pl.Series:
    """The hash of each element and the n - 1 after it, across lists; the last n - 1 of each list are cut off."""
    ragged = Ragged.of(series)
    n, count = parameters.n, len(ragged.values)
    buffer = pa.allocate_buffer(8 * count)
    out = np.frombuffer(buffer, np.int64)
    for start in range(0, count, BLOCK_VALUES):
        words = cross_terms(ragged.values[start : start + BLOCK_VALUES + n - 1])
        part = out[start : start + BLOCK_VALUES]
        if len(words) < len(part) + n - 1:  # the last block has no successor; the runs that need it are cut off later
            words = np.concatenate((words, np.zeros(len(part) + n - 1 - len(words), dtype=np.uint64)))
        runs = [words[offset : offset + len(part)] for offset in range(n)]
        bucket_crosses(runs, part, parameters.seed, parameters.buckets)
    flat = pa.Array.from_buffers(pa.int64(), count, [None, buffer])
    if ragged.holes is not None:
        holes = ragged.holes.copy()
        for offset in range(1, n):
            holes[:-offset] |= ragged.holes[offset:]
        flat = pa.array(out, mask=holes)
    mask = None if ragged.absent is None else pa.array(ragged.absent)
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(ragged.offsets), flat, mask=mask))


class GetLocalHour(Parameters):
    timezone: Annotated[str, Field(description="A name of the tz database, such as Europe/Zurich.")]

    @field_validator("timezone", mode="after")
    @classmethod
    def _look_up(cls, name: str) -> str:
        try:
            pl.select(pl.lit(0).cast(pl.Datetime("us")).dt.replace_time_zone(name))
        except pl.exceptions.PolarsError:
            raise ValueError(
                f"timezone must be a name of the tz database, such as Europe/Zurich: got {name!r}"
            ) from None
        return name


@op(
    ids=lambda *_: 24,
    takes={TIMESTAMP},
    gives="int64: 0 to 23",
    parameters=GetLocalHour,
    examples=(
        example(
            "get_local_hour",
            "Europe/Zurich",
            pl.Datetime("us"),
            [datetime(2026, 1, 1, 23, 30), datetime(2026, 7, 1, 23, 30), None],
            [0, 1, None],
        ),
    ),
)
def get_local_hour(x: Value, parameters: GetLocalHour) -> Value:
    """The hour of the day in a time zone, daylight saving time included.

    A timestamp without a zone is UTC; one with a zone is the instant it names. Nulls stay null.
    """
    dtype = x.dtype
    zoned = x.expr if isinstance(dtype, pl.Datetime) and dtype.time_zone else x.expr.dt.replace_time_zone("UTC")
    hour = zoned.dt.convert_time_zone(parameters.timezone).dt.hour()
    return Value(expr=hour.cast(pl.Int64()), dtype=pl.Int64())


class Expr(Parameters):
    expression: Annotated[str, Field(description="An expression over `x`, the value.")]


@op(
    takes=ANYTHING,
    lists="whole",
    gives="the expression's type",
    parameters=Expr,
    examples=(
        example("expr", "x * 2 + 1", pl.Int64(), [1, None], [3, None]),
        example("expr", "x.list.len()", pl.List(pl.Int64()), [[5, 6], [], None], [2, 0, None]),
    ),
)
def expr(x: Value, parameters: Expr) -> Value:
    """Computes an expression of the value, called `x`; it can read no other column.

    The language is that of a feature's `expr` and of `source.where`. A list is `x` as a whole. The expression decides
    what becomes of nulls.
    """
    schema = pl.DataFrame(schema={"x": x.dtype}).to_arrow().schema
    bound = row_expression(parameters.expression, schema)

    def run(series: pl.Series) -> pl.Series:
        return series.alias("x").to_frame().select(bound.polars).to_series()

    return Value(expr=map_series(x.expr, run, bound.dtype), dtype=bound.dtype)


def row_expression(text: str, schema: pa.Schema) -> BoundExpression:
    """Bind an expression that computes each row from that row alone. Raises ExpressionError for any other."""
    bound = bind_expression(parse(text), schema)
    node = offending_node(bound.polars)
    if node is not None:
        raise ExpressionError(f"an expression must compute each row from that row alone: got {node} in {text!r}")
    return bound
