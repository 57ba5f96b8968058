"""Ops that make another feature of a value: bucketize, expr.

Built in every process, run on the workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator

from feedline.errors import ExpressionError, SpecError
from feedline.expression_types import INTEGER_RANGES, NUMBERS, describe
from feedline.expressions import BoundExpression, bind, offending_node, parse
from feedline.transforms.arrays import NUMPY_TYPES, Values, mapped, over_values
from feedline.transforms.dense import Number, as_float, widened
from feedline.transforms.kinds import ANYTHING, Value
from feedline.transforms.registry import Parameters, example, op


class Bucketize(Parameters):
    """Parameters of bucketize."""

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
    """The number of the bucket that a number falls into: how many borders are below it.

    A value equal to a border belongs to the lower bucket; n borders make the buckets 0 to n. A border given twice has a
    bucket of its own, for exactly that value; given more often, it leaves numbers of buckets unused. As `bucketize` in
    TorchArrow. Borders are rounded to a float column's type (0.1 on a float32 column means float32's 0.1); integers are
    compared exactly. Nulls stay null, NaN is in no bucket and becomes null, -inf is in the first and +inf in the last.
    """
    x = widened(x)
    if x.dtype.is_integer():
        below, borders, twice = _integer_borders(parameters.borders, x.dtype)
    else:
        below, borders, twice = 0, *_float_borders(parameters.borders, x.dtype)
        x = Value(expr=x.expr.fill_nan(None), dtype=x.dtype)

    def kernel(values: Values, out: Values) -> None:
        np.add(np.searchsorted(borders, values, side="left"), below, out=out)
        for border in twice:
            np.add(out, values == border, out=out)

    return Value(expr=over_values(x.expr, kernel, x.dtype, pl.Int64()), dtype=pl.Int64())


def _repeated(borders: Sequence[Any]) -> list[Any]:
    return sorted({left for left, right in pairwise(borders) if left == right})


def _integer_borders(borders: Sequence[Number], dtype: pl.DataType) -> tuple[int, Values, Values]:
    """How many borders lie below the type's range, the others as integers, and those given twice.

    An integer is above a border if it is above the border's floor.
    """
    smallest, largest = INTEGER_RANGES[type(dtype)]
    floors = [math.floor(border) for border in borders]
    within = [floor for floor in floors if smallest <= floor <= largest]
    twice = [int(border) for border in _repeated(borders) if border == int(border) and int(border) in within]
    below = sum(floor < smallest for floor in floors)
    return below, np.array(within, dtype=NUMPY_TYPES[dtype]), np.array(twice, dtype=NUMPY_TYPES[dtype])


def _float_borders(borders: Sequence[Number], dtype: pl.DataType) -> tuple[Values, Values]:
    """The borders in the column's type, and those given twice. SpecError where two become one."""
    rounded = [as_float(border, dtype, "a border") for border in borders]
    for index, (left, right) in enumerate(pairwise(rounded)):
        if left == right and borders[index] != borders[index + 1]:
            raise SpecError(
                f"borders must differ in the column's type: got {borders[index]} and {borders[index + 1]}, one number "
                f"as {describe(dtype)}. Put {{cast: float64}} before it"
            )
    numbers: npt.NDArray[Any] = np.array(rounded, dtype=NUMPY_TYPES[dtype])
    return numbers, np.array(_repeated(rounded), dtype=NUMPY_TYPES[dtype])


class Expr(Parameters):
    """Parameters of expr."""

    expression: Annotated[str, Field(description="An expression over `x`, the value.")]


@op(
    takes=ANYTHING,
    lists="whole",
    gives="what the expression gives",
    parameters=Expr,
    examples=(
        example("expr", "x * 2 + 1", pl.Int64(), [1, None], [3, None]),
        example("expr", "x.list.len()", pl.List(pl.Int64()), [[5, 6], [], None], [2, 0, None]),
    ),
)
def expr(x: Value, parameters: Expr) -> Value:
    """Computes an expression of the value, which it calls `x`; it sees no other column.

    The language is that of a feature's `expr` and of `source.where`. A list is `x` as a whole. Nulls follow the
    expression.
    """
    bound = row_expression(parameters.expression, pa.schema([("x", _arrow_type(x.dtype))]))

    def run(series: pl.Series) -> pl.Series:
        return series.alias("x").to_frame().select(bound.polars).to_series()

    return Value(expr=mapped(x.expr, run, bound.dtype), dtype=bound.dtype)


def _arrow_type(dtype: pl.DataType) -> pa.DataType:
    return pl.Series([], dtype=dtype).to_arrow().type


def row_expression(text: str, schema: pa.Schema) -> BoundExpression:
    """An expression that gives each row a value made of that row alone. Raises ExpressionError for any other."""
    bound = bind(parse(text), schema)
    node = offending_node(bound.polars)
    if node is not None:
        raise ExpressionError(f"an expression must compute each row from that row alone: got {node} in {text!r}")
    return bound
