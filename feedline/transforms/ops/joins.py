"""Ops that look up values in an external table: join_external.

Built in every process, run on the workers. The table is read once per process and stays in memory
(`artifacts.external`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import polars as pl
import pyarrow as pa
from pydantic import Field

from feedline.config.sections import Bytes
from feedline.errors import SpecError
from feedline.expressions.types import BOOLEAN, INTEGER, NUMBERS, STRING, instance, kind
from feedline.transforms.learning.learner import Artifact, Reading
from feedline.transforms.ops.dense import FillNull, Number, fill_null
from feedline.transforms.registry.op import Input, Parameters, example, op
from feedline.transforms.values.arrays import map_series
from feedline.transforms.values.key_index import KeyIndex, key_index
from feedline.transforms.values.kinds import Value, element_type
from feedline.transforms.values.lookup_counts import hold_lookup
from feedline.transforms.values.ragged import over_flat, over_keys

Text = Annotated[str, Field(min_length=1)]
Names = Text | Annotated[list[Text], Field(min_length=1)]


class JoinExternal(Parameters):
    table: Annotated[Text, Field(description="Parquet: a path or URI of a file, folder or glob.")]
    on: Annotated[Names, Field(description="The key column, or the columns of a compound key.")]
    take: Annotated[Names, Field(description="The column to take; several columns of numbers become a vector.")]
    missing: Annotated[Number | bool | str | None, Field(description="The value of a miss (default: null).")] = None
    duplicates: Annotated[
        Literal["error", "first"], Field(description="A key in two rows: raise an error, or use the first row.")
    ] = "error"
    max_memory: Annotated[Bytes, Field(exclude=True, description="Memory limit for the columns read, per process.")] = (
        2**30
    )  # changes no value, so fingerprints leave it out

    @property
    def keys(self) -> list[str]:
        return [self.on] if isinstance(self.on, str) else self.on

    @property
    def takes(self) -> list[str]:
        return [self.take] if isinstance(self.take, str) else self.take


def _reading(parameters: JoinExternal) -> Reading:
    columns = list(dict.fromkeys([*parameters.keys, *parameters.takes]))
    options = json.dumps({"columns": columns})
    return Reading(kind="table", uri=parameters.table, options=options, max_memory=parameters.max_memory)


_MISS = range(1)  # the position that stands for a miss
_ITEMS = {"item": (7, 8), "price": (0.5, 1.5), "age": (20, 30)}


@op(
    per_value=True,
    gives="the type of the column `take`; lists of it for lists; a vector for several columns",
    inputs=(Input(name="key", takes=frozenset({INTEGER, STRING}), lists="elements", weighted=True),),
    repeats=True,
    parameters=JoinExternal,
    reads=_reading,
    examples=(
        example(
            "join_external",
            {"table": "items.parquet", "on": "item", "take": "price"},
            pl.Int32(),
            [7, 9, 8, None],
            [0.5, None, 1.5, None],
            outside=_ITEMS,
        ),
        example(
            "join_external",
            {"table": "items.parquet", "on": "item", "take": "price", "missing": 0},
            pl.List(pl.Int64()),
            [[8, 9], [], None],
            [[1.5, 0.0], [], None],
            outside=_ITEMS,
        ),
        example(
            "join_external",
            {"table": "items.parquet", "on": "item", "take": ["price", "age"]},
            pl.Int64(),
            [8, None],
            [[1.5, 30.0], None],
            outside=_ITEMS,
        ),
    ),
)
def join_external(keys: Sequence[Value], parameters: JoinExternal, artifact: Artifact, _: Mapping[str, Value]) -> Value:
    """Replaces a key by the value of `take` in the row of an external table whose `on` equals the key.

    The table is any Parquet, with a path relative to pipeline.yaml or a URI; every process reads the named columns
    once. A key that is not in the table, and a null, is a miss: it becomes `missing`, or a null. Nulls of the table
    stay null. Lists are looked up element by element. For a key of several columns write `{op: {join_external: {…}},
    inputs: [a, b]}`. Keys are integers of any width or strings; rows of the table with a null key are ignored. Like
    `JoinExternal` in NVTabular, except that it never drops rows.
    """
    if len(keys) != len(parameters.keys):
        raise SpecError(f"on must name a column for each input: got {parameters.keys} for {len(keys)} of them")
    listed = [x.kind.listed for x in keys]
    if any(listed) and len(keys) > 1:
        raise SpecError("a key of several columns takes one value of each: got a list. Join by one column")
    assert artifact.table is not None
    taken = _values_of(artifact.table, parameters)
    if listed[0] and isinstance(taken.dtype, pl.List | pl.Array):
        raise SpecError(
            f"a list of keys needs one value per key: got {parameters.takes}, a list or vector per key. Take one "
            "column of numbers or strings"
        )
    dtypes = [element_type(x.dtype) for x in keys]
    frame = pl.DataFrame(artifact.table.select(parameters.keys))
    identity = json.dumps([parameters.keys, [str(dtype) for dtype in dtypes], parameters.duplicates])
    index = artifact.derive(
        f"keys of {identity}", lambda: key_index(frame, dtypes, parameters.duplicates, parameters.table)
    )
    values = _miss_and_values(taken, index, parameters)
    positions, lookup = hold_lookup(over_keys(keys, lambda *series: pl.Series(index.find(series))), _MISS)
    expr = (over_flat if listed[0] else map_series)(positions, values.gather, values.dtype)
    dtype = pl.List(values.dtype) if listed[0] else values.dtype
    return Value(expr=expr, dtype=dtype, weights=keys[0].weights, lookup=lookup)


def _values_of(table: pa.Table, parameters: JoinExternal) -> pl.Series:
    columns = [pl.Series(name, table[name]) for name in parameters.takes]
    columns = [
        column.cast(pl.String) if isinstance(column.dtype, pl.Categorical | pl.Enum) else column for column in columns
    ]
    if len(columns) == 1:
        return columns[0]
    for column in columns:
        if kind(column.dtype) not in (*NUMBERS, BOOLEAN):
            raise SpecError(
                f"several columns become a vector of numbers: got {kind(column.dtype)} in {column.name!r} of "
                f"{parameters.table}. Take it in a separate feature"
            )
    dtypes = {instance(column.dtype) for column in columns}
    small = dtypes <= {pl.Float32(), pl.Float16(), pl.Boolean(), pl.Int8(), pl.Int16(), pl.UInt8(), pl.UInt16()}
    whole = all(dtype.is_integer() and dtype != pl.UInt64() for dtype in dtypes)
    common = pl.Int64() if whole else pl.Float32() if small else pl.Float64()
    frame = pl.DataFrame([column.cast(common) for column in columns])
    return frame.select(pl.concat_arr(pl.all())).to_series()


def _miss_and_values(taken: pl.Series, index: KeyIndex, parameters: JoinExternal) -> pl.Series:
    """The taken values in the order of the index, after the one for misses."""
    dtype = instance(taken.dtype)
    missing = pl.Series([None], dtype=dtype)
    if parameters.missing is not None:
        missing = _missing(dtype, parameters.missing)
    return pl.concat([missing, taken.gather(index.rows).alias("")]).rechunk()


def _missing(dtype: pl.DataType, value: Any) -> pl.Series:
    inner = dtype.inner if isinstance(dtype, pl.Array) and len(dtype.shape) == 1 else dtype
    inner = instance(inner)
    if kind(inner) not in (*NUMBERS, BOOLEAN, STRING):
        raise SpecError(
            f"missing must replace numbers, booleans or strings: got {value!r} for {kind(inner)}. Leave it out"
        )
    filled_value = fill_null(Value(expr=pl.lit(None, dtype=inner), dtype=inner), FillNull(value=value))
    one = pl.select(filled_value.expr.cast(inner)).to_series()
    if dtype == inner:
        return one.alias("")
    return pl.Series([[one[0]] * dtype.size], dtype=dtype)  # type: ignore[attr-defined]
