"""Ops over ids and lists of ids: hash_bucket, modulo, first_x.

Built in every process, run on the workers. The hash is defined in `feedline.hashing`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import polars as pl
from pydantic import Field

from feedline.expression_types import BINARY, INTEGER, STRING
from feedline.hashing import bucket_integers, digest
from feedline.transforms.arrays import BLOCK_VALUES, NUMPY_TYPES, Values, list_heads, over_series, over_values
from feedline.transforms.dense import widened
from feedline.transforms.kinds import ANYTHING, Value
from feedline.transforms.registry import MAX_INT, Parameters, example, op


class HashBucket(Parameters):
    """Parameters of hash_bucket."""

    buckets: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids come out in [0, buckets).")]
    seed: Annotated[int, Field(ge=0, le=MAX_INT, description="Another seed, another hash.")] = 0


@op(
    takes={INTEGER, STRING, BINARY},
    gives="int64",
    parameters=HashBucket,
    examples=(
        example("hash_bucket", 1000000, pl.Int64(), [0, 1, -1, None], [607535, 822465, 443936, None]),
        example(
            "hash_bucket", {"buckets": 1000, "seed": 7}, pl.List(pl.Int32()), [[0, 1], [], None], [[940, 533], [], None]
        ),
        example("hash_bucket", 1000000, pl.String(), ["", "a", "Zürich", None], [607535, 515345, 580026, None]),
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

    An id has the same hash in columns of int32, int64 and uint64. Nulls stay null, also as elements of lists. Different
    values may share a bucket.
    """
    buckets, seed = parameters.buckets, parameters.seed

    def integers(values: Values, out: Values) -> None:
        bucket_integers(values, out, seed, buckets)

    def strings(series: pl.Series, out: Values) -> None:
        digests = digest(series)
        for start in range(0, len(out), BLOCK_VALUES):
            bucket_integers(digests[start : start + BLOCK_VALUES], out[start : start + BLOCK_VALUES], seed, buckets)

    if x.kind.element == INTEGER:
        x = widened(x)
        return Value(expr=over_values(x.expr, integers, x.dtype, pl.Int64()), dtype=pl.Int64())
    return Value(expr=over_series(x.expr, strings), dtype=pl.Int64())


class Modulo(Parameters):
    """Parameters of modulo."""

    divisor: Annotated[int, Field(ge=1, le=MAX_INT, description="Ids come out in [0, divisor).")]


@op(
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

    Nulls stay null. Also for uint64 beyond the range of int64.
    """
    x = widened(x)
    signed = x.dtype == pl.Int64()
    divisor = np.int64(parameters.divisor) if signed else np.uint64(parameters.divisor)

    def kernel(values: Values, out: Values) -> None:
        found = out if signed else out.view(np.uint64)
        # x - x // n * n: numpy divides by a constant in SIMD, its remainder does not (twice as fast)
        np.floor_divide(values, divisor, out=found)
        np.multiply(found, divisor, out=found)
        np.subtract(values, found, out=found)

    return Value(expr=over_values(x.expr, kernel, x.dtype, pl.Int64()), dtype=pl.Int64())


class FirstX(Parameters):
    """Parameters of first_x."""

    count: Annotated[int, Field(ge=1, le=MAX_INT, description="How many elements are kept at most.")]


@op(
    takes=ANYTHING,
    lists="only",
    gives="the same type",
    parameters=FirstX,
    examples=(example("first_x", 2, pl.List(pl.Int64()), [[5, 6, 7], [8], [], None], [[5, 6], [8], [], None]),),
)
def first_x(x: Value, parameters: FirstX) -> Value:
    """Keeps the first elements of a list: min(count, length) of them. As `firstx` in TorchArrow.

    Null elements count; a null list stays null.
    """
    inner = x.dtype.inner if isinstance(x.dtype, pl.List) else None
    if isinstance(inner, pl.DataType) and inner.is_numeric() and inner in NUMPY_TYPES:
        return Value(expr=list_heads(x.expr, parameters.count, x.dtype), dtype=x.dtype)
    return Value(expr=x.expr.list.head(parameters.count), dtype=x.dtype)
