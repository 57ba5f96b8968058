"""Ops that look up vectors in an array: embedding.

Built in every process, run on the workers. The array is opened once per process and read block by block
(`artifacts.external`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from feedline.config.sections import Bytes
from feedline.errors import DataError, SpecError
from feedline.expressions.types import INTEGER, STRING
from feedline.transforms.learning.learner import Artifact, Reading
from feedline.transforms.registry.op import Parameters, example, op
from feedline.transforms.values.arrays import map_series
from feedline.transforms.values.key_index import key_index
from feedline.transforms.values.kinds import Value, element_type
from feedline.transforms.values.lookup_counts import hold_lookup
from feedline.transforms.values.ragged import Ragged, over_flat, vectors_of

Text = Annotated[str, Field(min_length=1)]
Floats = npt.NDArray[np.float32]

# Numbers pooled at a time, 16 MiB: 32,768 lists of 20 ids and 64 numbers each would take 160 MiB.
_POOLED_VALUES = 2**22
_ARRAY = {"array": ((0.5, 1.0), (1.5, 2.0))}


class Embedding(Parameters):
    array: Annotated[Text, Field(description="A zarr array [ids, width]: a path or URI of its folder.")]
    ids: Annotated[
        Text | None, Field(description="The rows' ids, a zarr array or Parquet; null: an id is a row's number.")
    ] = None
    ids_column: Annotated[Text, Field(description="The column of the ids, where they are Parquet.")] = "id"
    pooling: Annotated[
        Literal["mean", "sum"] | None, Field(description="How to reduce a list of ids (default: lists are an error).")
    ] = None
    missing: Annotated[
        Literal["zero", "error"], Field(description="What a missing id becomes: zeros, or an error.")
    ] = "zero"
    max_memory: Annotated[
        Bytes, Field(exclude=True, description="Memory limit for the cached part of the array, per process.")
    ] = 2**30  # changes no value, so fingerprints leave it out


class EmbeddingRows(Protocol):
    """The array's rows, by number."""

    rows: int
    width: int

    def take(self, indices: npt.NDArray[np.int64]) -> Floats: ...


def _reading(parameters: Embedding) -> Reading:
    options = json.dumps({"ids": parameters.ids, "ids_column": parameters.ids_column})
    return Reading(kind="zarr", uri=parameters.array, options=options, max_memory=parameters.max_memory)


def _refuse_unopened() -> EmbeddingRows:
    raise AssertionError("an embedding's array was not opened")


@op(
    takes={INTEGER, STRING},
    lists="whole",
    gives="a vector of float32, as wide as the array",
    parameters=Embedding,
    reads=_reading,
    examples=(
        example(
            "embedding",
            "items.zarr",
            pl.Int64(),
            [1, 0, 2, None],
            [[1.5, 2.0], [0.5, 1.0], [0.0, 0.0], [0.0, 0.0]],
            _ARRAY,
        ),
        example(
            "embedding",
            {"array": "items.zarr", "pooling": "mean"},
            pl.List(pl.Int32()),
            [[0, 1], [1, 9], [], None],
            [[1.0, 1.5], [1.5, 2.0], [0.0, 0.0], [0.0, 0.0]],
            _ARRAY,
        ),
    ),
)
def embedding(x: Value, parameters: Embedding, artifact: Artifact, _: Mapping[str, Value]) -> Value:
    """Replaces an id by its row of a two-dimensional zarr array, as a vector.

    An id is the row's number, counted from 0, or, with `ids`, an integer or string that names the row, each in one row
    only. A null, or an id that is not in the array, becomes zeros, or an error. With `pooling` a list becomes the
    sum or the mean of its ids' rows, without missing ones; an empty or null list becomes zeros. Uncompressed chunks in
    local files are memory-mapped; others are decoded and kept up to `max_memory`.
    """
    if x.kind.listed and parameters.pooling is None:
        raise SpecError(f"a list of ids needs pooling: got {x.kind}. Write `pooling: mean` or `pooling: sum`")
    if not x.kind.listed and parameters.pooling is not None:
        raise SpecError(f"pooling needs lists: got {x.kind}. Leave pooling out")
    rows: EmbeddingRows = artifact.derive("rows", _refuse_unopened)
    numbers = _numbering(element_type(x.dtype), parameters, artifact, rows)
    dtype = pl.Array(pl.Float32(), rows.width)
    mean = parameters.pooling == "mean"

    def gather(found: pl.Series) -> pl.Series:
        return vectors_of(_pool(rows, Ragged.of(found), mean) if x.kind.listed else _vectors(rows, found.to_numpy()))

    positions = over_flat(x.expr, numbers, pl.Int64()) if x.kind.listed else map_series(x.expr, numbers, pl.Int64())
    positions, lookup = hold_lookup(positions, range(-1, 0))
    return Value(expr=map_series(positions, gather, dtype), dtype=dtype, lookup=lookup)


def _numbering(
    dtype: pl.DataType, parameters: Embedding, artifact: Artifact, rows: EmbeddingRows
) -> Callable[[pl.Series], pl.Series]:
    """Map ids to row numbers, int64 without nulls; -1 stands for a missing row."""
    if artifact.table is None:
        if not dtype.is_integer():
            raise SpecError("without ids, an id is a row's number: got strings. Name the rows' ids with `ids`")

        def find(series: pl.Series) -> npt.NDArray[np.int64]:
            numbers = series.cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
            return np.where((numbers >= 0) & (numbers < rows.rows), numbers, -1)

    else:
        table = pl.DataFrame(artifact.table)
        name = str(parameters.ids)
        index = artifact.derive(f"ids of {dtype}", lambda: key_index(table, [dtype], "error", name))

        def find(series: pl.Series) -> npt.NDArray[np.int64]:
            found = index.find([series]) - 1
            return np.where(found < 0, found, index.rows[found]) if len(index.rows) else found

    def numbers(series: pl.Series) -> pl.Series:
        found = find(series)
        if parameters.missing == "error" and len(found) and found.min() < 0:
            first = int(found.argmin())
            raise DataError(f"{parameters.array} has no row for an id: got {series[first]!r}. Write `missing: zero`")
        return pl.Series(found)

    return numbers


def _vectors(rows: EmbeddingRows, numbers: npt.NDArray[np.int64]) -> Floats:
    present = numbers >= 0
    if present.all():
        return rows.take(numbers)
    matrix = np.zeros((len(numbers), rows.width), dtype=np.float32)
    matrix[present] = rows.take(numbers[present])
    return matrix


def _pool(rows: EmbeddingRows, lists: Ragged, mean: bool) -> Floats:
    """The sum or mean of each list's rows, added in the list's order."""
    found_ids = lists.where(lists.values >= 0)
    matrix = np.zeros((len(lists.lengths), rows.width), dtype=np.float32)
    step = max(1, _POOLED_VALUES // rows.width)
    start = 0
    while start < len(matrix):
        stop = int(np.searchsorted(found_ids.offsets, found_ids.offsets[start] + step, side="right")) - 1
        stop = min(max(stop, start + 1), len(matrix))
        part = found_ids.part(start, stop)
        full = np.flatnonzero(part.lengths)
        if len(full):
            sums = np.add.reduceat(rows.take(part.values), part.offsets[full], axis=0)
            if mean:
                sums /= part.lengths[full, None].astype(np.float32)
            matrix[start + full] = sums
        start = stop
    return matrix
