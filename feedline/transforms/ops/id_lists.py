"""Ops over ids and lists of ids: hash_bucket, sigrid_hash, modulo, map_id, first_x, list_slice, id_list_transform.

Built in every process, run on the workers. The hash is defined in `feedline.hashing`.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Annotated

import numpy as np
import polars as pl
import pyarrow as pa
from pydantic import Field, model_validator

from feedline.errors import SpecError
from feedline.expressions.types import BINARY, INTEGER, INTEGER_RANGES, STRING
from feedline.hashing import bucket_integers, bucket_strings, sigrid
from feedline.transforms.ops.dense import widen
from feedline.transforms.registry.op import MAX_INT, Parameters, example, op, same_ids
from feedline.transforms.values.arrays import Values
from feedline.transforms.values.kinds import ANYTHING, Value
from feedline.transforms.values.matching import first_of_each
from feedline.transforms.values.ragged import Mask, Ragged, filter_elements, slice_elements, widen_list


class Buckets(Parameters):
    buckets: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids are in [0, buckets).")]
    seed: Annotated[int, Field(ge=0, le=MAX_INT, description="Another seed gives another hash.")] = 0


class HashBucket(Buckets):
    null_bucket: Annotated[
        bool, Field(exclude_if=operator.not_, description="Nulls become the id `buckets`, which no value shares.")
    ] = False  # omitted from fingerprints unless set: they are older than this parameter


@op(
    per_value=True,
    ids=lambda parameters, *_: parameters.buckets + parameters.null_bucket,
    takes={INTEGER, STRING, BINARY},
    gives="int64",
    parameters=HashBucket,
    examples=(
        example("hash_bucket", 1000000, pl.Int64(), [0, 1, -1, None], [607535, 822465, 443936, None]),
        example(
            "hash_bucket", {"buckets": 1000, "seed": 7}, pl.List(pl.Int32()), [[0, 1], [], None], [[940, 533], [], None]
        ),
        example("hash_bucket", 1000000, pl.String(), ["", "a", "Zürich", None], [607535, 515345, 580026, None]),
        example("hash_bucket", {"buckets": 9, "null_bucket": True}, pl.Int64(), [0, 1, None], [7, 5, 9]),
    ),
)
def hash_bucket(x: Value, parameters: HashBucket) -> Value:
    """Maps ids and strings to [0, buckets) by a hash that is the same on every machine and in every version.

    Arithmetic is modulo 2^64, on unsigned words:

    - `mix(z)`: `z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31`
    - integer v, as 64-bit two's complement: `hash = mix(v + (seed + 1) * 0x9E3779B97F4A7C15)`, which is output
      seed + 1 of the splitmix64 generator started at v
    - string s of n bytes of UTF-8 (or binary), cut into little-endian words w of 8 bytes, the last one filled up with
      zeros: `hash` of the integer `n + sum over i = 0, 1, … of mix(w[i] + (i + 1) * 0x9E3779B97F4A7C15)`
    - bucket: `hash mod buckets`

    | value | seed | hash |
    |---|---|---|
    | `0` | 0 | 16294208416658607535 |
    | `1` | 0 | 10451216379200822465 |
    | `1234567` | 0 | 6457827717110365317 |
    | `1234567` | 1 | 3203168211198807973 |
    | `-1` | 0 | 16490336266968443936 |
    | `""` | 0 | 16294208416658607535 |
    | `"a"` | 0 | 15295030668532515345 |
    | `"12345678"` | 0 | 1344103748282676816 |
    | `"123456789"` | 0 | 5864485854665714674 |
    | `"Zürich, Bahnhofstrasse 1"` | 0 | 13709498184340734823 |

    An id has the same hash in columns of int32, int64 and uint64. Different values may share a bucket. Nulls stay null,
    also as elements of lists; with `null_bucket` they become the id `buckets` (a null list stays null), and an
    embedding needs buckets + 1 rows; the ids of values do not change.
    """
    buckets, seed = parameters.buckets, parameters.seed

    def integers(values: Values, out: Values) -> None:
        bucket_integers(values, out, seed, buckets)

    def strings(series: pl.Series | pa.Array, out: Values) -> None:
        bucket_strings(series, out, seed, buckets)

    if x.kind.element == INTEGER:
        found = widen(x).apply_kernel(integers, pl.Int64())
    else:
        found = x.apply_to_series(strings, of_arrow=True)
    return found.fill_nulls(buckets) if parameters.null_bucket else found


class Modulo(Parameters):
    divisor: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids are in [0, divisor).")]


@op(
    per_value=True,
    ids=lambda parameters, *_: parameters.divisor,
    takes={INTEGER},
    gives="int64",
    parameters=Modulo,
    examples=(
        example("modulo", 10, pl.Int64(), [7, 12, -1, None], [7, 2, 9, None]),
        example("modulo", 10, pl.List(pl.Int64()), [[-10, 25], []], [[0, 5], []]),
    ),
)
def modulo(x: Value, parameters: Modulo) -> Value:
    """The remainder of a floored division, never negative: x - divisor * floor(x / divisor).

    Nulls stay null. uint64 values beyond the range of int64 work, too.
    """
    x = widen(x)
    signed = x.dtype == pl.Int64()
    divisor = np.int64(parameters.divisor) if signed else np.uint64(parameters.divisor)

    def kernel(values: Values, out: Values) -> None:
        found = out if signed else out.view(np.uint64)
        # x - x // n * n: numpy's division by a constant uses SIMD, its remainder does not (twice as fast)
        np.floor_divide(values, divisor, out=found)
        np.multiply(found, divisor, out=found)
        np.subtract(values, found, out=found)

    return x.apply_kernel(kernel, pl.Int64())


class FirstX(Parameters):
    count: Annotated[int, Field(ge=1, le=MAX_INT, description="The largest number of elements to keep.")]


@op(
    slices=lambda parameters: slice(parameters.count),
    ids=same_ids,
    takes=ANYTHING,
    lists="only",
    weighted=True,
    gives="the same type",
    parameters=FirstX,
    examples=(example("first_x", 2, pl.List(pl.Int64()), [[5, 6, 7], [8], [], None], [[5, 6], [8], [], None]),),
)
def first_x(x: Value, parameters: FirstX) -> Value:
    """Keeps the first `count` elements of a list, with their weights. Like `firstx` in TorchArrow.

    Null elements count; a null list stays null.
    """
    return slice_elements(x, 0, parameters.count)


class ListSlice(Parameters):
    start: Annotated[
        int, Field(ge=-MAX_INT, le=MAX_INT, description="The first position to keep; negative: from the end.")
    ] = 0
    stop: Annotated[
        int | None, Field(ge=-MAX_INT, le=MAX_INT, description="The first position to leave out (default: the end).")
    ] = None


@op(
    slices=lambda parameters: slice(parameters.start, parameters.stop),
    ids=same_ids,
    takes=ANYTHING,
    lists="only",
    weighted=True,
    gives="the same type",
    parameters=ListSlice,
    examples=(
        example("list_slice", -2, pl.List(pl.Int64()), [[5, 6, 7], [8], [], None], [[6, 7], [8], [], None]),
        example("list_slice", {"start": 1, "stop": -1}, pl.List(pl.String()), [["a", "b", "c"], ["d"]], [["b"], []]),
    ),
)
def list_slice(x: Value, parameters: ListSlice) -> Value:
    """Keeps a slice of a list, with its weights: `list[start:stop]` as in Python.

    Null elements count; a null list stays null. Like `ListSlice` in NVTabular; short lists stay short (see pad).
    """
    return slice_elements(x, parameters.start, parameters.stop)


class SigridHash(Parameters):
    salt: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT, description="Another salt gives another hash.")]
    max_value: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids are in [0, max_value).")]


@op(
    per_value=True,
    ids=lambda parameters, *_: parameters.max_value,
    takes={INTEGER},
    gives="int64",
    parameters=SigridHash,
    examples=(
        example("sigrid_hash", {"salt": 0, "max_value": 100}, pl.Int64(), [0, 1, 2, 3, None], [6, 60, 54, 54, None]),
        example(
            "sigrid_hash",
            {"salt": 0, "max_value": 100},
            pl.List(pl.Int64()),
            [[1], [14, 15, 16], []],
            [[60], [83, 66, 2], []],
        ),
    ),
)
def sigrid_hash(x: Value, parameters: SigridHash) -> Value:
    """Maps ids to [0, max_value) by the hash of TorchArrow's `sigrid_hash`, for models trained on it.

    The hash is folly's `hash_combine(salt, twang_mix64(id))` as a signed number, reduced by a floored modulo. Nulls
    stay null. An id of uint64 is hashed by its 64 bits. For new models use hash_bucket, which is faster.
    """
    kernel = partial(sigrid, salt=parameters.salt, limit=parameters.max_value)
    return widen(x).apply_kernel(kernel, pl.Int64())


class MapId(Parameters):
    keys: Annotated[
        tuple[int, ...] | tuple[str, ...], Field(min_length=1, description="The ids to look up, each once.")
    ]
    values: Annotated[tuple[int, ...], Field(description="The id for each key.")]
    default: Annotated[int | None, Field(description="The id for all others (default: null).")] = None

    @model_validator(mode="after")
    def _pair(self) -> MapId:
        if len(self.keys) != len(self.values):
            raise ValueError(
                f"there must be a value for each key: got {len(self.keys)} keys, {len(self.values)} values"
            )
        if len(set(self.keys)) < len(self.keys):
            twice = next(key for key in self.keys if self.keys.count(key) > 1)
            raise ValueError(f"keys must differ: got {twice!r} twice")
        return self


def _mapped_ids(parameters: MapId, *_: object) -> int | None:
    values = [*parameters.values, *(() if parameters.default is None else (parameters.default,))]
    return None if min(values) < 0 else max(values) + 1


@op(
    ids=_mapped_ids,
    takes={INTEGER, STRING},
    gives="int64",
    parameters=MapId,
    examples=(
        example("map_id", {"keys": [7, 9], "values": [1, 2]}, pl.Int64(), [7, 9, 8, None], [1, 2, None, None]),
        example(
            "map_id",
            {"keys": ["DE", "US"], "values": [1, 2], "default": 0},
            pl.List(pl.String()),
            [["US", "FR"], None],
            [[2, 0], None],
        ),
    ),
)
def map_id(x: Value, parameters: MapId) -> Value:
    """Replaces ids by those of a mapping in pipeline.yaml.

    An id that is not among the keys becomes the default, or a null. Nulls stay null.
    """
    kind = x.kind.element
    if isinstance(parameters.keys[0], str) is not (kind == STRING):
        raise SpecError(f"keys must be of the column's type: got {parameters.keys[0]!r}, expected type {kind}")
    x = widen(x) if kind == INTEGER else x
    smallest, largest = INTEGER_RANGES.get(type(x.dtype), (0, 0))
    table: list[tuple[int | str, int]] = list(zip(parameters.keys, parameters.values, strict=True))
    pairs = [(key, value) for key, value in table if isinstance(key, str) or smallest <= key <= largest]
    if any(not -MAX_INT <= value <= MAX_INT for value in (*parameters.values, parameters.default or 0)):
        raise SpecError("values must fit int64")
    keys = pl.Series([key for key, _ in pairs], dtype=x.dtype)
    values = pl.Series([value for _, value in pairs], dtype=pl.Int64())
    found = x.expr.replace_strict(keys, values, default=parameters.default, return_dtype=pl.Int64())
    if parameters.default is not None:
        found = pl.when(x.expr.is_not_null()).then(found)
    return Value(expr=found, dtype=pl.Int64())


class IdListTransform(Parameters):
    min: Annotated[int | None, Field(description="Smaller ids are removed (default: no bound).")] = None
    max: Annotated[int | None, Field(description="Larger ids are removed (default: no bound).")] = None
    unique: Annotated[bool, Field(description="Whether to remove repetitions.")] = False


@op(
    ids=same_ids,
    takes={INTEGER},
    lists="only",
    weighted=True,
    gives="lists of int64 (of uint64 where the column is)",
    parameters=IdListTransform,
    examples=(
        example(
            "id_list_transform", {"min": 1}, pl.List(pl.Int64()), [[3, 0, -1, None, 3], [], None], [[3, 3], [], None]
        ),
        example("id_list_transform", {"unique": True}, pl.List(pl.Int32()), [[3, 1, 3, 1, 2]], [[3, 1, 2]]),
    ),
)
def id_list_transform(x: Value, parameters: IdListTransform) -> Value:
    """Removes elements of a list: nulls always, ids outside [min, max], and optionally repetitions.

    The others keep their order and their weights. A null list stays null. To change ids, use an op over elements, such
    as modulo or map_id.
    """
    x = widen_list(x)

    def keep(ragged: Ragged) -> Mask:
        mask = np.ones(len(ragged.values), dtype=np.bool_) if ragged.holes is None else ~ragged.holes
        if parameters.min is not None:
            mask &= ragged.values >= parameters.min
        if parameters.max is not None:
            mask &= ragged.values <= parameters.max
        if parameters.unique:
            mask[mask] = first_of_each(ragged.where(mask))
        return mask

    return filter_elements(x, keep)
