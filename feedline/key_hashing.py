"""Which 64 bits stand for a row's key, whatever the types and files its columns come in?

Runs wherever rows are: samples by key and folds of rows are made of it. In the words of `feedline.hashing`, modulo
2**64, each column's value becomes a word w and `v = hash(w)` with the seed; the row's hash is `h_1 = v_1`,
`h_j = mix(h_(j-1) + GOLDEN) + v_j` over the columns as they are listed. The word is an integer's 64-bit two's
complement (booleans 0 and 1, dates days since 1970-01-01), `digest` of a text's UTF-8 or of bytes, the bits of a float
as float64 (-0.0 as 0.0, every NaN as 0x7FF8000000000000), `digest` of two int64 (seconds since 1970-01-01 UTC rounded
down, nanoseconds of that second) for timestamps, and 0x6C6C756E for null.

Integer and float widths, units of time and encodings of text make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.hashing import GOLDEN, Words, digest, hash_words, mix

_NULL = 0x6C6C756E
_NAN = np.uint64(0x7FF8000000000000)
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}  # Polars' units


def key_hash(columns: Sequence[pl.Series], seed: int) -> Words:
    """The hash of each row of some columns, one at least, of types that are `hashable`."""
    combined: Words | None = None
    for series in columns:
        value = hash_words(_words(series), seed)
        if combined is None:
            combined = value
            continue
        combined += np.uint64(GOLDEN)
        mix(combined, np.empty_like(combined))
        combined += value
    assert combined is not None
    return combined


def hashable(kind: pa.DataType) -> bool:
    """Whether values of that type have a hash."""
    tests = (
        *(pat.is_null, pat.is_integer, pat.is_floating, pat.is_boolean, pat.is_date32, pat.is_timestamp),
        *(pat.is_string, pat.is_large_string, pat.is_string_view),
        *(pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary),
    )
    return any(test(kind) for test in tests)


def _words(series: pl.Series) -> Words:
    """One 64-bit word per value."""
    kind = series.dtype
    if isinstance(kind, pl.String | pl.Binary):
        words = digest(series)
    elif kind.is_float():
        words = _float_words(series)
    elif isinstance(kind, pl.Datetime):
        words = _moment_words(series, _PER_SECOND[kind.time_unit])
    elif kind == pl.UInt64:
        words = series.fill_null(0).to_numpy().copy()
    else:
        words = series.to_physical().cast(pl.Int64).fill_null(0).to_numpy().copy().view(np.uint64)
    if series.null_count():
        words[series.is_null().to_numpy()] = _NULL
    return words


def _float_words(series: pl.Series) -> Words:
    values = series.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
    words: Words = values.view(np.uint64)
    words[np.isnan(values)] = _NAN
    return words


def _moment_words(series: pl.Series, per_second: int) -> Words:
    seconds, rest = np.divmod(series.to_physical().fill_null(0).to_numpy(), per_second)
    pair = np.stack([seconds, rest * (10**9 // per_second)]).astype("<i8")
    first, second = hash_words(pair.view(np.uint64)[0], 0), hash_words(pair.view(np.uint64)[1], 1)
    return np.uint64(16) + first + second
