"""The random values of generated tables: pure functions of 64-bit words drawn from Philox.

Runs in the generator's Dask tasks. A stream of words is identified by a key (two words) and a counter (three words);
streams never overlap. Each word yields one value: its top 14 bits choose a bucket of the distribution's quantile
function, the next 24 interpolate in it, and the low 20 decide whether the value is null.
"""

from __future__ import annotations

import functools
import math
import statistics

import numpy as np
import numpy.typing as npt

from feedline.hashing import hash_words

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_BUCKET_BITS, _FRACTION_BITS, _NULL_BITS = 14, 24, 20
_POINT_BITS = 16  # fraction bits of a Zipf border: border (< 2**40) times fraction fits 63 bits
_ZIPF_EXPONENT = 1.05
_PERMUTATION_ROUNDS = 4


def draw_words(key: tuple[int, int], counter: tuple[int, int, int], count: int) -> Words:
    """Return the first `count` words of a stream."""
    philox = np.random.Philox(key=np.array(key, np.uint64), counter=np.array((0, *counter), np.uint64))
    # over the full range, words come unchanged; unlike random_raw, this releases the GIL
    return np.random.Generator(philox).integers(0, (1 << 64) - 1, count, np.uint64, endpoint=True)


def unit(words: Words) -> Float64s:
    """Uniform in [0, 1), from the top 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def nulls(words: Words, share: float) -> npt.NDArray[np.bool_]:
    """True for a share of the words, by bits that no value uses."""
    return (words & np.uint64((1 << _NULL_BITS) - 1)) < np.uint64(round(share * (1 << _NULL_BITS)))


def zipf(words: Words, cardinality: int, exponent: float = _ZIPF_EXPONENT) -> Int64s:
    """Ids 0 .. cardinality-1 by a Zipf law, frequent ones first."""
    borders = _zipf_borders(cardinality, exponent)
    bucket, fraction = _split(words)
    low = borders[bucket]
    ids: Int64s = (low + ((borders[bucket + 1] - low) * fraction >> _FRACTION_BITS)) >> _POINT_BITS
    return ids


def lognormal(words: Words, sigma: float) -> Float32s:
    """exp(sigma * normal) - 0.1: a heavy tail, with a few negative values."""
    borders = _lognormal_borders(sigma)
    bucket, fraction = _split(words)
    low = borders[bucket]
    return (low + (borders[bucket + 1] - low) * (fraction * 2.0**-_FRACTION_BITS)).astype(np.float32)


def geometric(words: Words, mean: float) -> Int64s:
    """Geometric integers >= 1 with the given mean."""
    if mean <= 1:
        return np.ones(len(words), np.int64)
    return 1 + np.floor(np.log(1.0 - unit(words)) / math.log(1.0 - 1.0 / mean)).astype(np.int64)


def effect(ids: Int64s) -> Float64s:
    """A fixed value in [-1, 1) per id, by its hash."""
    return unit(hash_words(ids.astype(np.uint64), 0)) * 2.0 - 1.0


def _split(words: Words) -> tuple[Int64s, Int64s]:
    """Return (bucket, fraction within the bucket) from the top bits of each word."""
    top = (words >> np.uint64(64 - _BUCKET_BITS - _FRACTION_BITS)).astype(np.int64)
    return top >> _FRACTION_BITS, top & ((1 << _FRACTION_BITS) - 1)


@functools.cache
def _zipf_borders(cardinality: int, exponent: float) -> Int64s:
    """Return the continuous law's quantile function at each bucket's border, in fixed point."""
    share = np.arange((1 << _BUCKET_BITS) + 1) / (1 << _BUCKET_BITS)
    power = 1.0 - exponent
    place = ((1.0 - share) + share * (cardinality + 1.0) ** power) ** (1.0 / power) - 1.0
    borders: Float64s = np.minimum(np.floor(place * (1 << _POINT_BITS)), (cardinality << _POINT_BITS) - 1)
    return borders.astype(np.int64)


@functools.cache
def _lognormal_borders(sigma: float) -> Float64s:
    buckets, normal = 1 << _BUCKET_BITS, statistics.NormalDist()
    shares = (min(max(k / buckets, 0.25 / buckets), 1 - 0.25 / buckets) for k in range(buckets + 1))
    return np.array([math.exp(sigma * normal.inv_cdf(share)) - 0.1 for share in shares])


def permute(values: Int64s, size: int, key: tuple[int, int]) -> Int64s:
    """Map integers 0 .. size-1 one to one to 0 .. size-1; the stream `key` of words decides the order.

    Each round is one to one on the bits of size-1; what is then not below `size`, less than half, goes round again.
    """
    bits = max(1, (size - 1).bit_length())
    mask, half = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    rounds = draw_words(key, (0, 0, 0), 2 * _PERMUTATION_ROUNDS).reshape(-1, 2)
    words = values.astype(np.uint64)
    outside = np.arange(len(words))
    while len(outside):
        moved = words[outside]
        for term, factor in rounds:
            moved = (moved + term) * (factor | np.uint64(1)) & mask
            moved ^= moved >> half
        words[outside] = moved
        outside = outside[moved >= np.uint64(size)]
    return words.view(np.int64)
