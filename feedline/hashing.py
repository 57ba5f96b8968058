"""Hash ids, strings and rows to 64 bits, the same on every machine and in every version.

Buckets of ids (the op `hash_bucket`), samples of rows and folds of rows use it. Polars' own hash changes with its
version, so the hash is defined here, in numpy over 64-bit words. All arithmetic is modulo 2**64; `mix` is the finaliser
of splitmix64:

    mix(z):      z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    GOLDEN     = 0x9E3779B97F4A7C15
    hash(v)    = mix(v + (seed + 1) * GOLDEN)        v: the integer as 64-bit two's complement
    digest(s)  = len(s) + sum over i of mix(w_i + (i + 1) * GOLDEN)
                 w_i: bytes 8i .. 8i+7 of the UTF-8 string, little-endian, the last word padded with zeros
    hash(s)    = hash(digest(s))
    bucket     = hash mod n, unsigned

So `hash` of an integer is output seed + 1 of the splitmix64 generator that starts at it, and an id has the same hash in
an int32, an int64 and a uint64 column.

Several values v_1 … v_n (a cross, an n-gram) have the hash of an integer, modulo 2**64:

    cross      = h_1 * GOLDEN**(n-1) + … + h_n,    h_i = mix(v_i + GOLDEN), with digest(s) as v_i of a string
    hash       = hash(cross)

`sigrid` is another hash, TorchArrow's sigrid_hash, for ids that were hashed with it elsewhere.

Digests are compiled (`native/rows`). Without a compiler, strings are gathered from their bytes,
word by word over all strings, or all words at once if they are very long.

A row's key may consist of several columns of any types (`key_hash`): each column's value becomes a word w and v =
hash(w) with the seed, and

    h_1        = v_1
    h_j        = mix(h_(j-1) + GOLDEN) + v_j         over the columns in order

The word is an integer's 64-bit two's complement (booleans 0 and 1, dates days since 1970-01-01), `digest` of a string's
UTF-8 or of bytes, the bits of a float as float64 (-0.0 as 0.0, every NaN as 0x7FF8000000000000), `digest` of two int64
(seconds since 1970-01-01 UTC rounded down, nanoseconds of that second) for timestamps, and 0x6C6C756E for null. Integer
and float widths, units of time and encodings of strings make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.native import rows as native

Words = npt.NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN = np.uint64(GOLDEN)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_FOLLY_MULTIPLIER = np.uint64(0x9DDFEA08EB382D69)
_WORD_BYTES = 8
_NEWEST = pl.CompatLevel.newest()
_VIEW_TYPES = (pa.string_view(), pa.binary_view())
_VIEW_BYTES = 16
_OFFSET_BYTES = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}
_KEEP_BYTES = np.array([(1 << (8 * kept)) - 1 for kept in range(_WORD_BYTES + 1)], dtype=np.uint64)
_MIXED_WORDS = 32768  # words mixed at once, so that temporaries stay in the cache
BLOCK_ROWS = 8192  # temporaries of 64 KiB: larger ones are mapped again at every step, which doubles the time
_NULL = 0x6C6C756E
_NAN = np.uint64(0x7FF8000000000000)
_PER_SECOND = {"ms": 10**3, "us": 10**6, "ns": 10**9}  # Polars' units
_GATHER_BYTES = 256  # up to here one numpy round per word; beyond, rounds would cover too few strings


def mix(words: Words, scratch: Words) -> None:
    """Splitmix64's finaliser, in place; `scratch`, of the same length as `words`, is overwritten."""
    np.right_shift(words, np.uint64(30), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _FIRST_MULTIPLIER, out=words)
    np.right_shift(words, np.uint64(27), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, _SECOND_MULTIPLIER, out=words)
    np.right_shift(words, np.uint64(31), out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def bucket_integers(values: npt.NDArray[np.int64] | Words, out: npt.NDArray[np.int64], seed: int, buckets: int) -> None:
    """Write hash(value) mod `buckets` of each 64-bit integer into `out`, of the same length."""
    words = out.view(np.uint64)
    np.add(values.view(np.uint64), _multiple(seed + 1), out=words)
    scratch = np.empty_like(words)
    mix(words, scratch)
    # h - h // n * n: numpy divides by a constant in SIMD, its remainder does not (49 against 110 us for 32 k values)
    np.floor_divide(words, np.uint64(buckets), out=scratch)
    np.multiply(scratch, np.uint64(buckets), out=scratch)
    np.subtract(words, scratch, out=words)


def hash_words(words: Words, seed: int) -> Words:
    """hash(v) of each 64-bit word, as a new array."""
    hashed = words + _multiple(seed + 1)
    mix(hashed, np.empty_like(hashed))
    return hashed


def outputs(start: int, first: int, count: int) -> Words:
    """Outputs `first`, `first` + 1, … (from 0) of the splitmix64 generator seeded with `start`."""
    words = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    np.multiply(words, _GOLDEN, out=words)
    np.add(words, np.uint64(start & 0xFFFFFFFFFFFFFFFF), out=words)
    mix(words, np.empty_like(words))
    return words


def cross_terms(values: npt.NDArray[np.int64] | Words) -> Words:
    """mix(v + GOLDEN) of each 64-bit integer: the terms h_i of a cross."""
    words = np.add(values.view(np.uint64), _GOLDEN)
    scratch = np.empty(min(len(words), _MIXED_WORDS), dtype=np.uint64)
    for start in range(0, len(words), _MIXED_WORDS):
        block = words[start : start + _MIXED_WORDS]
        mix(block, scratch[: len(block)])
    return words


def bucket_crosses(parts: Sequence[Words], out: npt.NDArray[np.int64], seed: int, buckets: int) -> None:
    """Write the bucket of the cross of several values into `out`, from the `cross_terms` of each."""
    total = out.view(np.uint64)
    if len(parts) == 1:
        np.copyto(total, parts[0])
    else:
        np.multiply(parts[0], _GOLDEN, out=total)
    for part in parts[1:-1]:
        np.add(total, part, out=total)
        np.multiply(total, _GOLDEN, out=total)
    if len(parts) > 1:
        np.add(total, parts[-1], out=total)
    bucket_integers(out, out, seed, buckets)


def sigrid(values: npt.NDArray[np.int64] | Words, out: npt.NDArray[np.int64], salt: int, limit: int) -> None:
    """TorchArrow's sigrid_hash: hash_combine(salt, twang_mix64(id)) of folly, signed, modulo `limit`, floored."""
    words, scratch = out.view(np.uint64), np.empty(len(out), dtype=np.uint64)
    ids = values.view(np.uint64)

    def shift_left(source: Words, bits: int) -> Words:
        return np.left_shift(source, np.uint64(bits), out=scratch)

    def xor_shift(bits: int) -> None:
        np.bitwise_xor(words, np.right_shift(words, np.uint64(bits), out=scratch), out=words)

    np.add(~ids, shift_left(ids, 21), out=words)
    xor_shift(24)
    np.multiply(words, np.uint64(265), out=words)
    xor_shift(14)
    np.multiply(words, np.uint64(21), out=words)
    xor_shift(28)
    np.add(words, shift_left(words, 31), out=words)
    seed = np.uint64(salt & 0xFFFFFFFFFFFFFFFF)
    np.multiply(np.bitwise_xor(words, seed, out=words), _FOLLY_MULTIPLIER, out=words)
    xor_shift(47)
    np.multiply(np.bitwise_xor(words, seed, out=words), _FOLLY_MULTIPLIER, out=words)
    xor_shift(47)
    np.multiply(words, _FOLLY_MULTIPLIER, out=words)
    quotient = scratch.view(np.int64)
    np.floor_divide(out, np.int64(limit), out=quotient)
    np.multiply(quotient, np.int64(limit), out=quotient)
    np.subtract(out, quotient, out=out)


def digest(series: pl.Series) -> Words:
    """uint64 [rows]: the digest of each string or binary value; arbitrary for nulls."""
    digests = np.empty(len(series), np.uint64)
    return digests if _digest_views(series, digests) else _digest_bytes(series)


def digest_words(words: Words, offsets: npt.NDArray[np.int64]) -> Words:
    """uint64 [lists]: the digest of the bytes of each run of words; int64 [lists + 1]: where these begin and end."""
    starts = np.ascontiguousarray(offsets) * _WORD_BYTES
    digests = np.empty(len(starts) - 1, np.uint64)
    if not native.COMPILED or not len(digests):
        buffers = [None, pa.py_buffer(starts), pa.py_buffer(np.ascontiguousarray(words))]
        return _digest_bytes(pl.Series(pa.Array.from_buffers(pa.large_binary(), len(digests), buffers)))
    native.digest_strings(starts, np.ascontiguousarray(words), _WORD_BYTES, digests)
    return digests


def bucket_strings(values: pl.Series | pa.Array, out: npt.NDArray[np.int64], seed: int, buckets: int) -> None:
    """Write hash(value) mod `buckets` of each string or binary value into `out`; something in that range for nulls."""
    start = int(_multiple(seed + 1))
    if isinstance(values, pa.Array):
        if native.COMPILED and (size := _OFFSET_BYTES.get(values.type)) is not None and len(out):
            _, offsets, data = values.buffers()
            offsets = offsets.slice(size * values.offset, size * (len(out) + 1))
            native.digest_strings(offsets, data or b"", size, out, start, buckets)
            return
        values = pl.Series(values)
    if _digest_views(values, out, start, buckets):
        return
    digests = _digest_bytes(values)
    for start in range(0, len(out), _MIXED_WORDS):
        bucket_integers(digests[start : start + _MIXED_WORDS], out[start : start + _MIXED_WORDS], seed, buckets)


def _digest_views(series: pl.Series, out: npt.NDArray[Any], start: int = 0, buckets: int = 0) -> bool:
    """Set `out` as `native.digest_views` does; False where it cannot."""
    if not native.COMPILED or not len(out):
        return False
    array = series.to_arrow(compat_level=_NEWEST)
    if array.type not in _VIEW_TYPES:  # a later Polars may export others
        return False
    _, views, *data = array.buffers()
    views = views.slice(_VIEW_BYTES * array.offset, _VIEW_BYTES * len(out))
    native.digest_views(views, tuple(data), out, start, buckets)
    return True


def _multiple(factor: int) -> np.uint64:
    return np.uint64(factor * GOLDEN & 0xFFFFFFFFFFFFFFFF)


def _digest_bytes(series: pl.Series) -> Words:
    """The digests of strings of any length, from offsets and bytes."""
    array = series.to_arrow()
    starts = np.frombuffer(array.buffers()[1], np.int64, count=len(array) + 1, offset=8 * array.offset)
    begin, stop = int(starts[0]), int(starts[-1])
    # the last word is read whole: eight zeros after the bytes keep that read in bounds
    padded_bytes = np.zeros(stop - begin + _WORD_BYTES, dtype=np.uint8)
    if stop > begin:
        padded_bytes[: stop - begin] = np.frombuffer(array.buffers()[2], np.uint8, count=stop - begin, offset=begin)
    words = np.ndarray((stop - begin + 1,), "<u8", buffer=padded_bytes, strides=(1,))
    return np.concatenate(
        [
            _sum_words(words, starts[row : row + BLOCK_ROWS] - begin, np.diff(starts[row : row + BLOCK_ROWS + 1]))
            for row in range(0, max(len(array), 1), BLOCK_ROWS)
        ]
    )


def _sum_words(words: Words, first: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> Words:
    first = first[: len(length)]
    digests = length.astype(np.uint64)
    huge = np.flatnonzero(length > _GATHER_BYTES)
    if len(huge):
        digests[huge] += _sum_all_words(words, first[huge], length[huge])
        length = np.where(length > _GATHER_BYTES, 0, length)
    shortest = int(length.min(initial=_GATHER_BYTES))
    for position in range(0, int(length.max(initial=0)), _WORD_BYTES):
        if position < shortest:  # every string has this word: no rows to select
            word = words[first + position]
            if position + _WORD_BYTES > shortest:
                word &= _KEEP_BYTES.take(np.minimum(length - position, _WORD_BYTES))
            digests += _mix(word, position // _WORD_BYTES)
        else:
            rows = np.flatnonzero(length > position)
            word = words[first.take(rows) + position]
            word &= _KEEP_BYTES.take(np.minimum(length.take(rows) - position, _WORD_BYTES))
            digests[rows] += _mix(word, position // _WORD_BYTES)
    return digests


def _mix(word: Words, index: int) -> Words:
    word += _multiple(index + 1)
    mix(word, np.empty_like(word))
    return word


def _sum_all_words(words: Words, first: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> Words:
    """The sum of the mixed words of each string (of at least one word), in one round for all."""
    count = (length + _WORD_BYTES - 1) // _WORD_BYTES
    ends = np.cumsum(count)
    index = np.arange(int(ends[-1])) - np.repeat(ends - count, count)
    word = words[np.repeat(first, count) + index * _WORD_BYTES]
    word[ends - 1] &= _KEEP_BYTES.take(length - (count - 1) * _WORD_BYTES)
    word += (index + 1).astype(np.uint64) * _GOLDEN
    mix(word, np.empty_like(word))
    return np.add.reduceat(word, ends - count)


def key_hash(columns: Sequence[pl.Series], seed: int) -> Words:
    """The hash of each row over some columns, at least one, of `hashable` types."""
    hashes = hash_words(_words(columns[0]), seed)
    for series in columns[1:]:
        hashes += _GOLDEN
        mix(hashes, np.empty_like(hashes))
        hashes += hash_words(_words(series), seed)
    return hashes


def hashable(kind: pa.DataType) -> bool:
    """Whether `key_hash` accepts this type."""
    tests = (
        *(pat.is_null, pat.is_integer, pat.is_floating, pat.is_boolean, pat.is_date32, pat.is_timestamp),
        *(pat.is_string, pat.is_large_string, pat.is_string_view),
        *(pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary),
    )
    return any(test(kind) for test in tests)


def _words(series: pl.Series) -> Words:
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
