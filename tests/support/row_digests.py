"""Digest each row of a batch: 64 bits that tell rows apart by all their features, wherever the rows stand.

The digest of a row is the sum, modulo 2**64, of a hash of each
feature's value, seeded with the feature's place: of the bits of numbers (so 0.0 and -0.0 differ), of each value of a
list with its index, and its weight. It covers no padding between tensors and no position, so equal rows have equal
digests in any batch, lane and world size.
"""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from feedline.hashing import GOLDEN, Words, hash_words, key_hash
from feedline.loader.batch import Batch
from feedline.loader.encoding.encoded_rows import EncodedRows, expand
from feedline.loader.encoding.slot import encoded_rows

_WEIGHT_SEED = 1 << 32  # apart from the seeds of features, which count from 0


def row_digests(rows: EncodedRows) -> Words:
    """uint64 [rows]: the digest of each row."""
    total = np.zeros(rows.rows, np.uint64)
    seeds = itertools.count()
    for column in (*rows.dense.T, *rows.labels.T, *rows.categorical):
        total += hash_words(_bits(column), next(seeds))
    for values, weights, offsets in zip(rows.values, rows.weights, rows.offsets, strict=True):
        total += _lists(np.asarray(values), weights, offsets, next(seeds))
    for array in rows.extra:
        total += _array_words(pl.from_arrow(array), next(seeds))
    return total


def batch_digest(digests: Words, valid: NDArray[np.bool_]) -> str:
    """The digest of a batch, 16 hexadecimal digits: of its rows in their order, and of which are padding."""
    whole = xxhash.xxh3_64(np.ascontiguousarray(digests).tobytes())
    whole.update(np.ascontiguousarray(valid, np.bool_).tobytes())
    return whole.hexdigest()


def digest_of(batch: Batch) -> str:
    """A digest of all features of all rows in their order, and of which are padding: the same on any device and for
    equal rows of any epoch and step."""
    here = batch.to("cpu")
    rows = expand(encoded_rows(here._layout, pa.py_buffer(here._root)), here._layout.schema)
    return batch_digest(row_digests(rows), here.valid.numpy())


def _bits(values: NDArray[np.generic]) -> Words:
    """The bits of numbers of 32 or 64 bits as words."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(np.uint64)


def _lists(
    values: NDArray[np.generic], weights: NDArray[np.float32] | None, offsets: NDArray[np.int64], seed: int
) -> Words:
    """The digest of each list; 0 of an empty one."""
    first, last = int(offsets[0]), int(offsets[-1])
    words = hash_words(_bits(values[first:last]), seed)
    if weights is not None:
        words += hash_words(_bits(weights[first:last]), seed + _WEIGHT_SEED)
    return _sum_of_lists(words, offsets - first, seed)


def _sum_of_lists(words: Words, offsets: NDArray[np.int64], seed: int) -> Words:
    """The sum over each list of its values' words, hashed with their indices in it."""
    index = np.arange(len(words)) - np.repeat(offsets[:-1], np.diff(offsets))
    hashed = hash_words(words + (index + 1).astype(np.uint64) * np.uint64(GOLDEN), seed)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(hashed, dtype=np.uint64)))
    return sums[offsets[1:]] - sums[offsets[:-1]]


def _array_words(series: pl.Series, seed: int) -> Words:
    """The digest of each value of an extra: of a list by its values and their indices, of a struct by its fields."""
    kind = series.dtype
    if isinstance(kind, pl.Struct):
        total = hash_words(series.is_not_null().to_numpy().astype(np.uint64), seed)
        for index, name in enumerate(kind.to_schema()):
            total += _array_words(series.struct.field(name), seed + 1 + index) * np.uint64(2 * index + 3)
        return total
    if isinstance(kind, pl.Array):
        series = series.arr.to_list()
    if isinstance(series.dtype, pl.List):
        lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
        values = series.filter(pl.Series(lengths > 0)).explode()
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        lists = _sum_of_lists(_array_words(values, seed + 1), offsets, seed)
        lists += hash_words(series.is_not_null().to_numpy().astype(np.uint64), seed)
        return lists
    if isinstance(kind, pl.Decimal | pl.Enum | pl.Categorical):
        series = series.cast(pl.String)
    elif isinstance(kind, pl.Map):
        series = pl.select(pl.struct(series.alias("map")).struct.json_encode()).to_series()
    return key_hash([series], seed)
