"""Permutations, and draws with replacement, that are the same on every machine and in every library version.

They come from raw Philox words sorted with the index in their low bits: independent of the sort algorithm, of numpy's
`Generator` and of the machine. `PLAN_VERSION` covers them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.native.rows import sort_words


def permutation(size: int, *key: int | str) -> NDArray[np.int64]:
    """A permutation of range(size), the same for the same key on every machine and library version."""
    words = random_words(size, *key)
    mask = np.uint64((1 << max(1, (size - 1).bit_length())) - 1)
    words &= ~mask
    words |= np.arange(size, dtype=np.uint64)
    sort_words(words)
    words &= mask
    return words.view(np.int64)


def permuted_runs(rows: int, run_starts: NDArray[np.int64], *key: int | str) -> NDArray[np.int64]:
    """A permutation of whole runs of a block's rows, which start at `run_starts` (the first at 0)."""
    order = permutation(len(run_starts), *key)
    lengths = np.diff(run_starts, append=rows)[order]
    landing = np.cumsum(lengths) - lengths
    # runs 0-1, 2, 3-5 in the order 2, 0, 1: they land at 0, 3, 5, and rows 3 4 5 0 1 2 come
    return np.repeat(run_starts[order] - landing, lengths) + np.arange(rows)


def draw_rows(quanta: NDArray[np.int64], draws: int, *key: int | str) -> NDArray[np.int64]:
    """int64 [draws]: the rows of a row group that are drawn, in the order of the rows. quanta: int64 [rows]."""
    ends = np.cumsum(quanta)
    if not draws:
        return np.zeros(0, np.int64)
    places = _places(random_words(draws, "draws", *key), int(ends[-1]))
    places.sort()
    return np.searchsorted(ends, places, side="right")


def _places(words: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """int64: words * total // 2^64, in halves of 32 bits. The share of words that fall on a row is that of its quanta
    within 2^-64; of words modulo 0.9 * 2^62, the first tenth of the quanta would get a fifth more."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    high, low = words >> half, words & mask
    total_high, total_low = np.uint64(total >> 32), np.uint64(total & (2**32 - 1))
    middle = high * total_low + ((low * total_low) >> half)
    carried = low * total_high + (middle & mask)
    places: NDArray[np.uint64] = high * total_high + (middle >> half) + (carried >> half)
    return places.view(np.int64)


def run_starts(groups: pl.Series) -> NDArray[np.int64]:
    """The start of each run of equal values; nulls equal each other: [3, 3, 1, None, None] -> [0, 2, 3]."""
    if groups.dtype.is_integer() and not groups.null_count():  # without queries, which Polars starts for a series
        values, changes = groups.to_numpy(), np.empty(len(groups), np.bool_)
        np.not_equal(values[1:], values[:-1], out=changes[1:])
    else:
        changes = groups.ne_missing(groups.shift(1)).to_numpy().copy()
    changes[:1] = True
    return np.flatnonzero(changes)


def random_words(size: int, *key: int | str) -> NDArray[np.uint64]:
    """Words of Philox, the same for the same key everywhere."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(size)
