"""Ops that cross several columns: hashed_cross, cartesian, positive_intersect.

Built in every process, run on the workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.errors import SpecError
from feedline.expressions.types import BINARY, INTEGER, STRING, type_name
from feedline.hashing import Words, bucket_crosses, cross_terms, digest
from feedline.transforms.ops.dense import widen
from feedline.transforms.ops.id_lists import Buckets
from feedline.transforms.registry.op import Input, Parameters, example_of_several, op, same_ids
from feedline.transforms.values.arrays import BLOCK_VALUES
from feedline.transforms.values.kinds import Value
from feedline.transforms.values.matching import members
from feedline.transforms.values.ragged import (
    Mask,
    Ragged,
    either,
    filter_elements,
    lists_of,
    over_columns,
    widen_list,
)

LEFT = Input(name="ids", takes=frozenset({INTEGER}), lists="only")
RIGHT = Input(name="others", takes=frozenset({INTEGER}), lists="only")


@op(
    ids=lambda parameters, *_: parameters.buckets,
    inputs=(
        Input(name="first", takes=frozenset({INTEGER, STRING, BINARY}), lists="never"),
        Input(name="second", takes=frozenset({INTEGER, STRING, BINARY}), lists="never"),
    ),
    repeats=True,
    gives="int64",
    parameters=Buckets,
    examples=(
        example_of_several(
            "hashed_cross",
            1000,
            [(pl.Int64(), [1, 2, 1, None]), (pl.String(), ["a", "a", "b", "a"])],
            [85, 564, 177, None],
        ),
    ),
)
def hashed_cross(inputs: Sequence[Value], parameters: Buckets) -> Value:
    """Hashes the values of several columns to one id, with a hash that is the same on every machine and version.

    With mix, the hash of an integer and the sum over a string as hash_bucket defines them, modulo 2^64, and G =
    0x9E3779B97F4A7C15:

    - `h[i] = mix(v[i] + G)` of column i = 1 … n, where v is the integer, or the integer whose hash is the string's
    - `hash` of the integer `h[1] * G^(n-1) + h[2] * G^(n-2) + … + h[n]`, with the seed
    - bucket: `hash mod buckets`

    The order of the columns matters. A null in any of them gives a null. Like `HashedCross` in NVTabular, with another
    hash.
    """
    columns = [widen(x) if x.kind.element == INTEGER else x for x in inputs]

    def run(*chunk_columns: pl.Series) -> pl.Series:
        rows = len(chunk_columns[0])
        out = np.empty(rows, dtype=np.int64)
        words = [_words(series) for series in chunk_columns]
        for start in range(0, rows, BLOCK_VALUES):
            block = [cross_terms(column[start : start + BLOCK_VALUES]) for column in words]
            bucket_crosses(block, out[start : start + BLOCK_VALUES], parameters.seed, parameters.buckets)
        missing = either([series.is_null().to_numpy() for series in chunk_columns if series.null_count()])
        return pl.Series(pa.array(out, mask=missing))

    return Value(expr=over_columns([x.expr for x in columns], run, pl.Int64()), dtype=pl.Int64())


def _words(series: pl.Series) -> Words:
    """Each value as the 64 bits to hash; arbitrary under nulls."""
    if not series.dtype.is_integer():
        return digest(series.rechunk())
    without_nulls = series.fill_null(0) if series.null_count() else series
    words: Words = without_nulls.rechunk().to_numpy().view(np.uint64)
    return words


@op(
    ids=lambda parameters, *_: parameters.buckets,
    inputs=(LEFT, RIGHT),
    gives="lists of int64",
    parameters=Buckets,
    examples=(
        example_of_several(
            "cartesian",
            1000,
            [(pl.List(pl.Int64()), [[1, 2], [1], [], None]), (pl.List(pl.Int64()), [[5, 6], [6, None], [5], [5]])],
            [[689, 435, 920, 864], [435, None], [], None],
        ),
    ),
)
def cartesian(inputs: Sequence[Value], parameters: Buckets) -> Value:
    """Makes an id for each pair of an id of the first list and one of the second.

    Pairs with the first list's first id come first. The id of a pair is its hash, as hashed_cross defines it. A pair
    with a null is null; a null list gives a null list. The result's length is the product of the lists' lengths: limit
    long lists, with `inputs: [{column: a, ops: [{first_x: 10}]}, …]`.
    """
    left, right = (widen_list(x) for x in inputs)

    def run(first: pl.Series, second: pl.Series) -> pl.Series:
        mine, other = Ragged.of(first), Ragged.of(second)
        ours, theirs = mine.lengths, other.lengths
        each = np.repeat(theirs, ours)  # the number of pairs of each id on the left
        ends = np.cumsum(each)
        begins = ends - each
        total = int(ends[-1]) if len(ends) else 0
        # 2 ids on the left, 2 on the right: each [2, 2], begins [0, 2] -> positions [0, 1, 0, 1]
        positions = np.arange(total) + np.repeat(np.repeat(other.offsets[:-1], ours) - begins, each)
        words = [np.repeat(cross_terms(mine.values), each), cross_terms(other.values)[positions]]
        out = np.empty(total, dtype=np.int64)
        for start in range(0, total, BLOCK_VALUES):
            block = [word[start : start + BLOCK_VALUES] for word in words]
            bucket_crosses(block, out[start : start + BLOCK_VALUES], parameters.seed, parameters.buckets)
        holes = either(
            [
                None if mine.holes is None else np.repeat(mine.holes, each),
                None if other.holes is None else other.holes[positions],
            ]
        )
        offsets = np.concatenate(([0], np.cumsum(ours * theirs)))
        return lists_of(out, offsets, holes=holes, absent=either([mine.absent, other.absent]))

    dtype = pl.List(pl.Int64())
    return Value(expr=over_columns([left.expr, right.expr], run, dtype), dtype=dtype)


@op(
    ids=same_ids,
    inputs=(
        Input(name="ids", takes=frozenset({INTEGER}), lists="only", weighted=True),
        Input(name="others", takes=frozenset({INTEGER}), lists="only", weighted=True),
    ),
    gives="lists of the first column's ids as int64 (uint64 where it is)",
    examples=(
        example_of_several(
            "positive_intersect",
            None,
            [(pl.List(pl.Int64()), [[1, 2, 1, 3], [4], [], None]), (pl.List(pl.Int64()), [[1, 3], [5], [5], [5]])],
            [[1, 1, 3], [], [], None],
        ),
    ),
)
def positive_intersect(inputs: Sequence[Value], _: Parameters) -> Value:
    """Keeps the ids of the first list that also occur in the second one.

    Order, repetitions and weights stay. Nulls equal nothing and are left out; a null list gives a null list.
    """
    left, right = same_type([widen_list(x) for x in inputs])

    def keep(mine: Ragged, other: Ragged) -> Mask:
        mask = np.ones(len(mine.values), dtype=np.bool_) if mine.holes is None else ~mine.holes
        mask[mask] = members(mine.drop_holes(), other.drop_holes())
        return mask

    return filter_elements(left, keep, right.expr)


def same_type(lists: Sequence[Value]) -> Sequence[Value]:
    """The lists, if their ids can be compared. Raises SpecError for int64 beside uint64."""
    if len({str(x.dtype) for x in lists}) > 1:
        got = " and ".join(type_name(x.dtype) for x in lists)
        remedy = "Cast one of them: `inputs: [{column: a, ops: [{cast: uint64}]}, …]`"
        raise SpecError(f"ids must be of one type to be compared: got {got}. {remedy}")
    return lists
