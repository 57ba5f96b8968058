"""Digest whole rows of any types to 64 bits: which rows of a log are equal, and an order of those that are not.

Pure. The digest does not depend on files, chunks or the width of offsets:

    row         = h_n;  h_0 = 0;  h_j = mix(h_(j-1) + word_j + GOLDEN)      over the columns in order
    word        of a value: its digest, as in `parquet.key_hashes`; of a struct: h_n over its fields; of a list: the
                digest of its elements' words as bytes (`hashing.digest_words`); of a map: as of a list of structs; NULL
                for a null

Rows of a log are compared only where their key and time are equal, so that 64 bits suffice.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from feedline.hashing import GOLDEN, Words, digest_words, mix
from feedline.warehouse.parquet.key_hashes import series_of, value_digests
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.snapshot.column_facts import contiguous

_NULL = np.uint64(0xD1B54A32D192ED03)  # which no value but by intent has, unlike a small number
_RUN_ROWS = 8192  # of lists at once: words of all elements of a million rows take a gigabyte, and twice the time


def row_digests(table: pa.Table) -> Words:
    """uint64 [rows]: the digest of each row over all columns."""
    digests = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        array = contiguous(column)
        size = _RUN_ROWS if pat.is_nested(array.type) else max(1, len(array))
        for first in range(0, len(array), size):
            run = array.slice(first, size)
            _add(digests[first : first + len(run)], _words(run))
    return digests


def _words(array: pa.Array) -> Words:
    kind = array.type
    if not len(array):
        return np.zeros(0, np.uint64)
    if pat.is_dictionary(kind):
        return _words(array.cast(kind.value_type))
    if pat.is_struct(kind):
        words = np.zeros(len(array), np.uint64)
        for index in range(kind.num_fields):
            _add(words, _words(pa.StructArray.field(array, index)))
    elif pat.is_map(kind):
        offsets = np.asarray(array.offsets).astype(np.int64)
        held = offsets[-1] - offsets[0]
        pairs = np.zeros(held, np.uint64)
        for part in (array.keys, array.items):
            _add(pairs, _words(part.slice(offsets[0], held)))
        words = digest_words(pairs, offsets - offsets[0])
    elif pat.is_fixed_size_list(kind):
        words = digest_words(_words(_values_of_fixed(array)), np.arange(len(array) + 1) * kind.list_size)
    elif is_list(kind):
        offsets = np.asarray(array.offsets).astype(np.int64)
        words = digest_words(_words(array.values.slice(offsets[0], offsets[-1] - offsets[0])), offsets - offsets[0])
    elif pat.is_null(kind):
        words = np.zeros(len(array), np.uint64)
    else:
        words = value_digests(series_of(array))
    if array.null_count:
        words = words if words.flags.writeable else words.copy()
        words[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return words


def _values_of_fixed(array: pa.FixedSizeListArray) -> pa.Array:
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _add(digests: Words, words: Words) -> None:
    digests += words
    digests += np.uint64(GOLDEN)
    mix(digests, np.empty_like(digests))
