"""Pack the pieces of a block for the scheduler: columns of numbers instead of an object per piece.

Pure; runs in the feeder and on workers. A scheduler holds the arguments of every task that is in flight, so that a task
must stay small, also where a block consists of many small files: pickled one by one, a piece takes about 160 bytes,
packed about 50, of which 32 are the digest of its file's footer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np

from feedline.warehouse.reading.fragment import Fragment

# A fragment, its rows to skip and its rows to read.
Piece: TypeAlias = tuple[Fragment, int, int]
Packed: TypeAlias = tuple[Any, ...]

_END = "\0"  # no path or tag holds it


def pack_pieces(pieces: Sequence[Piece]) -> Packed:
    """The pieces as few plain values; `unpack_pieces` returns them."""
    fragments = [fragment for fragment, _, _ in pieces]
    tables = tuple(dict.fromkeys(_shared(fragment) for fragment in fragments))
    keys = {repr(fragment.partition): fragment.partition for fragment in fragments}  # 1 equals True
    table_index = {table: index for index, table in enumerate(tables)}
    key_index = {text: index for index, text in enumerate(keys)}
    numbers = [
        [fragment.bytes for fragment in fragments],
        [fragment.mtime_ns for fragment in fragments],
        [fragment.footer_bytes for fragment in fragments],
        [skip for _, skip, _ in pieces],
        [rows for _, _, rows in pieces],
        [table_index[_shared(fragment)] for fragment in fragments],
        [key_index[repr(fragment.partition)] for fragment in fragments],
        [len(fragment.footer_digest) for fragment in fragments],
        [len(fragment.row_groups) for fragment in fragments],
        [len(fragment.proofs) for fragment in fragments],
        chain.from_iterable(fragment.row_groups for fragment in fragments),
        chain.from_iterable(fragment.expected for fragment in fragments),
        chain.from_iterable(fragment.proofs for fragment in fragments),
    ]
    return (
        len(pieces),
        tables,
        tuple(keys.values()),
        zlib.compress(_END.join([each.path for each in fragments] + [each.tag for each in fragments]).encode()),
        b"".join(fragment.footer_digest for fragment in fragments),
        zlib.compress(np.array(list(chain.from_iterable(numbers)), "<i8").tobytes()),
        tuple(fragment.excluded for fragment in fragments) if any(fragment.excluded for fragment in fragments) else (),
    )


def unpack_pieces(packed: Packed) -> list[Piece]:
    """The pieces that `pack_pieces` packed."""
    count, tables, keys, strings, digests, compressed, excluded = packed
    texts = zlib.decompress(strings).decode().split(_END)
    values: list[int] = np.frombuffer(zlib.decompress(compressed), "<i8").tolist()
    columns = [values[start : start + count] for start in range(0, 10 * count, count)]
    sizes, mtimes, footers, skips, rows, table_of, key_of, digest_bytes, group_counts, proof_counts = columns
    groups, proofs = sum(group_counts), sum(proof_counts)
    first = 10 * count
    row_groups, expected = values[first : first + groups], values[first + groups : first + 2 * groups]
    proved = values[first + 2 * groups : first + 2 * groups + proofs]
    each = zip(
        texts[:count],
        texts[count:],
        _slices(digests, digest_bytes),
        _slices(row_groups, group_counts),
        _slices(expected, group_counts),
        _slices(proved, proof_counts),
        excluded or ((),) * count,
        strict=True,
    )
    return [
        (
            Fragment(
                table=tables[table_of[index]][0],
                path=path,
                bytes=sizes[index],
                mtime_ns=mtimes[index],
                tag=tag,
                footer_digest=bytes(digest),
                footer_bytes=footers[index],
                row_groups=tuple(own_groups),
                expected=tuple(own_expected),
                partition=keys[key_of[index]],
                proofs=tuple(own_proofs),
                excluded=own_excluded,
                stored_names=tables[table_of[index]][1],
                decoder=tables[table_of[index]][2],
                source_cache=tables[table_of[index]][3],
            ),
            skips[index],
            rows[index],
        )
        for index, (path, tag, digest, own_groups, own_expected, own_proofs, own_excluded) in enumerate(each)
    ]


def _shared(fragment: Fragment) -> tuple[Any, ...]:
    """What fragments of one table have in common."""
    return fragment.table, fragment.stored_names, fragment.decoder, fragment.source_cache


def _slices(values: Any, counts: Sequence[int]) -> list[Any]:
    return [values[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]
