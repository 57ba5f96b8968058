"""Ops that make vectors: onehot, vector, pad.

Built in every process, run on the workers. A vector is a list of the same length in every row; in the group dense it
becomes adjacent columns.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import polars as pl
import pyarrow as pa
from pydantic import Field

from feedline.errors import DataError, SpecError
from feedline.expressions.types import BOOLEAN, INTEGER, INTEGER_RANGES, NUMBERS, type_name
from feedline.transforms.ops.dense import Number, as_float
from feedline.transforms.registry.op import Parameters, example, op
from feedline.transforms.values.arrays import NUMPY_TYPES, map_series
from feedline.transforms.values.kinds import Value, element_type
from feedline.transforms.values.ragged import Ragged, slice_elements, vectors_of, widen_list

MAX_WIDTH = 2**20


class Onehot(Parameters):
    size: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="The length of the vector.")]


@op(
    takes={INTEGER, BOOLEAN},
    lists="never",
    gives="a vector of `size` float32",
    parameters=Onehot,
    examples=(
        example(
            "onehot", 3, pl.Int64(), [0, 2, 3, -1, None], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3, None]
        ),
        example("onehot", 2, pl.Boolean(), [True, False], [[0.0, 1.0], [1.0, 0.0]]),
    ),
)
def onehot(x: Value, parameters: Onehot) -> Value:
    """A vector with a 1 at the position that the number gives, counted from 0, and zeros elsewhere.

    A number outside [0, size) becomes all zeros. Nulls stay null. For a float, take its bucket first: `[{bucketize: [1,
    2]}, {onehot: 3}]`.
    """
    size = parameters.size

    def run(series: pl.Series) -> pl.Series:
        absent = series.is_null().to_numpy() if series.null_count() else None
        series = series if series.dtype == pl.Int64 else series.cast(pl.Int64(), strict=False)
        positions = (series.fill_null(-1) if series.null_count() else series).to_numpy()
        matrix = np.zeros((len(positions), size), dtype=np.float32)
        inside = positions.view(np.uint64) < size  # negative numbers wrap to huge ones
        cells = np.arange(0, matrix.size, size) + positions
        matrix.ravel()[cells if inside.all() else cells[inside]] = 1
        return vectors_of(matrix, absent)

    dtype = pl.Array(pl.Float32(), size)
    return Value(expr=map_series(x.expr, run, dtype), dtype=dtype)


class Vector(Parameters):
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="The length of every list.")]


@op(
    takes=NUMBERS | {BOOLEAN},
    lists="only",
    gives="a vector of `width` elements of the same type",
    parameters=Vector,
    examples=(
        example("vector", 2, pl.List(pl.Float32()), [[0.5, 1.5], None, [2.0, 3.0]], [[0.5, 1.5], None, [2.0, 3.0]]),
    ),
)
def vector(x: Value, parameters: Vector) -> Value:
    """Declares that every list has `width` elements: a vector, which becomes `width` adjacent columns in dense.

    A list of another length is an error that names feature, row, file and row group; `pad` makes lists equally long. A
    column of fixed-size lists is a vector without this op. Nulls stay null, also as elements, which dense refuses. NaN
    stays NaN.
    """
    width = parameters.width

    def run(series: pl.Series) -> pl.Series:
        array = series.rechunk().to_arrow()
        lengths = np.diff(array.offsets.to_numpy())
        wrong = lengths != width
        if array.null_count:
            wrong &= array.is_valid().to_numpy(zero_copy_only=False)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(f"a list must have as many elements as its vector: got {lengths[row]}, expected {width}")
        if array.null_count:
            return series.list.to_array(width)
        flat = array.values.slice(array.offsets[0].as_py() if len(array) else 0, len(array) * width)
        return pl.Series(pa.FixedSizeListArray.from_arrays(flat, width))

    dtype = pl.Array(element_type(x.dtype), width)
    return Value(expr=map_series(x.expr, run, dtype), dtype=dtype)


class Pad(Parameters):
    length: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="The length of the vectors.")]
    value: Annotated[Number, Field(description="The number that fills short lists.")] = 0


@op(
    takes=NUMBERS,
    lists="only",
    gives="a vector of `length` elements: int64 or uint64, float32 or float64",
    parameters=Pad,
    examples=(
        example(
            "pad", 3, pl.List(pl.Int64()), [[5, 6, 7, 8], [9], [], None], [[5, 6, 7], [9, 0, 0], [0, 0, 0], [0, 0, 0]]
        ),
        example(
            "pad", {"length": 2, "value": -1}, pl.List(pl.Float32()), [[0.5], [None, 2.5]], [[0.5, -1.0], [None, 2.5]]
        ),
    ),
)
def pad(x: Value, parameters: Pad) -> Value:
    """Makes vectors of lists: short lists are filled at the end, long ones are cut.

    A null list counts as empty. Null elements stay null, NaN stays NaN. `[{list_slice: -5}, {pad: 5}]` keeps the last
    elements instead of the first.
    """
    x = widen_list(x)
    inner, length = element_type(x.dtype), parameters.length
    number = NUMPY_TYPES[inner]
    if inner.is_integer():
        smallest, largest = INTEGER_RANGES[type(inner)]
        if isinstance(parameters.value, float) or not smallest <= parameters.value <= largest:
            raise SpecError(
                f"the value does not fit the column: got {parameters.value}, expected type {type_name(inner)}"
            )
        fill: Number = parameters.value
    else:
        fill = as_float(parameters.value, inner, "the value")

    def run(series: pl.Series) -> pl.Series:
        ragged = Ragged.of(series)
        matrix = np.full((len(series), length), fill, dtype=number)
        inside = np.arange(length) < ragged.lengths[:, None]
        matrix[inside] = ragged.values
        if ragged.holes is None:
            return vectors_of(matrix)
        holes = np.zeros(matrix.shape, dtype=np.bool_)
        holes[inside] = ragged.holes
        return vectors_of(matrix, holes=holes)

    dtype = pl.Array(inner, length)
    return Value(expr=map_series(slice_elements(x, 0, length).expr, run, dtype), dtype=dtype)
