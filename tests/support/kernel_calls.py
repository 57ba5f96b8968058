"""A valid call of each function of the kernels `rows`, `ring` and `parquet`, with arguments of its own each time."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from page_bytes import packed, repeated, sized, zigzag

from feedline.native import parquet, ring, rows

Call = tuple[Callable[..., Any], list[Any]]

HEADER = bytes(range(64))
# dense [3, 2] f32 at 64, labels [3, 1] f32 at 128, ids [2, 3] i64 at 192, valid at 256, lengths at 320, offsets at 384,
# values (i64) at 448, weights at 576.
PLACES = (64, 8, 128, 4, 192, 256, 3, ((320, 384, 448, 8, 576),))
SLOT_BYTES = 640


def piece(start: int, stop: int, rows_before: int, *, coded: bool = False) -> tuple[Any, ...]:
    """Rows of a slot. coded: the values of lists are codes and a table."""
    dense = np.arange(rows_before, rows_before + 8, dtype=np.float32).reshape(4, 2)
    ids = tuple(np.arange(4, dtype=np.int64) + 10 * column + rows_before for column in range(2))
    offsets = np.array([0, 2, 3, 3, 7], np.int64)
    values, weights = np.arange(7, dtype=np.int64) + 100 * rows_before, np.linspace(0, 1, 7, dtype=np.float32)
    lists = (np.arange(7, dtype=np.uint16), values) if coded else values
    return start, stop, rows_before == 0, dense, dense[:, :1].copy(), ids, (lists,), (weights,), (offsets,)


def copied_slot(*, coded: bool = False) -> list[Any]:
    """The arguments of `write_slot`: two pieces, laid end to end."""
    pieces = [piece(1, 3, 0, coded=coded), piece(0, 1, 5, coded=coded)]
    return [np.full(SLOT_BYTES, 7, np.uint8), HEADER, ((88, 128), (140, 192)), [(PLACES, pieces)]]


def gathered_slot() -> list[Any]:
    """Arguments whose one piece is a list: the rows of two parts in another order, the last of the first, then all of
    the second.
    """
    one, two = piece(0, 4, 0), piece(0, 4, 20)
    index, part = np.array([3, 4, 5, 6, 7], np.int64), np.array([0, 1, 1, 1, 1], np.uint16)
    ends = np.array([0, 4, 6, 7, 7, 11], np.int64)
    parts = [
        tuple(zip(*pair, strict=True)) if isinstance(pair[0], tuple) else pair for pair in zip(one, two, strict=True)
    ]
    order = [index, part, np.array([0, 4], np.int64), (ends,)]
    return [np.full(SLOT_BYTES, 7, np.uint8), HEADER, ((88, 128), (140, 192)), [0, 3, True, *parts[3:], order]]


def _written(arguments: list[Any]) -> list[Any]:
    return [*arguments, [(632, b"12345678")]]


def _gathered() -> list[Any]:
    target, header, gaps, own = gathered_slot()
    return _written([target, header, gaps, [(PLACES, [(*own[:-1], tuple(own[-1]))])]])


def row_calls() -> dict[str, Call]:
    """Those of `rows`."""
    kernel = rows._compiled
    offsets = np.array([0, 3, 3, 5, 9], np.int64)
    values, table = np.arange(9, dtype=np.int64), np.array([5, -7, 11, 2, 40], np.int64)
    short, wide = np.array([1, 0, 3, 3], np.uint16), np.array([2, 1, 2, 3], np.int32)
    matrix, column = np.arange(12, dtype=np.float32), np.zeros(4, np.float32)
    own, order = np.array([[0, 2], [2, 6], [9, 9]], np.int64), np.array([2, 0, 1, 3], np.int32)
    lasts, known = np.array([[2, 2], [1, 1]], np.int64), np.array([1, 9, 20, 3, 4, 5], np.int64)
    pools = np.array([1, 2, 3, 2, 1, 3], np.uint32)
    offsets_of_events, places, tags = np.zeros(3, np.int64), np.zeros(6, np.int32), np.zeros(6, np.uint32)
    views = np.frombuffer(_view(b"short") + _view(b"") + _long_view(20, 1, 3), np.int32).copy()
    text, long_offsets = b"a word, and a longer one", np.array([0, 6, 6, 24], np.int64)
    digests, words = np.zeros(3, np.uint64), np.array([2**63, 5, 2**40, 7], np.uint64)
    three, few, sums = np.array([0, 1, 3], np.int64), np.array([0, 2, 4], np.int64), np.zeros((2, 5), np.int64)
    floats = np.array([0.5, -np.inf, 3], np.float32)
    return {
        "write_slot": (kernel.write_slot, _written(copied_slot())),
        "write_slot of codes": (kernel.write_slot, _written(copied_slot(coded=True))),
        "write_slot of parts": (kernel.write_slot, _gathered()),
        "slice_offsets": (kernel.slice_offsets, [offsets, 1, -1, np.zeros(5, np.int64)]),
        "slice_values": (
            kernel.slice_values,
            [offsets, values, 8, 0, np.array([0, 2, 2, 4, 6]), np.zeros(6, np.int64), None],
        ),
        "slice_values in an order": (
            kernel.slice_values,
            [offsets, values, 8, 0, np.array([0, 2, 4, 4, 7]), np.zeros(7, np.int64), order],
        ),
        "sort_words": (kernel.sort_words, [words]),
        "last_events": (kernel.last_events, [own, known, pools, lasts, offsets_of_events, places, tags]),
        "last_events of one pool": (
            kernel.last_events,
            [own, known[:0], pools[:0], lasts[:1], offsets_of_events, places, tags],
        ),
        "bisect": (
            kernel.bisect,
            [values, np.array([0, 2]), np.array([9, 7]), np.array([4, 9]), np.zeros(2, np.int64)],
        ),
        "equal_neighbours": (kernel.equal_neighbours, [offsets, values, 8, np.zeros(3, np.bool_)]),
        "digest_views": (kernel.digest_views, [views, (b"unused", text), digests, 7, 100]),
        "digest_strings": (kernel.digest_strings, [long_offsets, text, 8, digests, 7, 100]),
        "digest_strings of short offsets": (
            kernel.digest_strings,
            [long_offsets.astype(np.int32), text, 4, digests, 0, 0],
        ),
        "count_codes": (kernel.count_codes, [short, np.zeros(5, np.int64)]),
        "count_codes marks": (kernel.count_codes, [wide, np.zeros(5, np.bool_)]),
        "used_extremes": (kernel.used_extremes, [[(table, short), (table, wide), (table, None)]]),
        "gather_codes": (
            kernel.gather_codes,
            [
                [
                    (np.zeros(9, np.int64), 1, 2, table, short, True),
                    (np.zeros(4, np.float32), 0, 1, matrix, wide, False),
                ],
                None,
            ],
        ),
        "gather_codes in an order": (
            kernel.gather_codes,
            [[(np.zeros(4, np.int64), 0, 1, table.astype(np.int32), wide, True)], order],
        ),
        "extremes of integers": (kernel.extremes, [(table, values), np.zeros((2, 2), np.int64)]),
        "extremes of floats": (kernel.extremes, [(floats, column), np.zeros((2, 2))]),
        "count_lengths": (kernel.count_lengths, [(three, few), (1, 0), sums, 5]),
        "lay_columns": (kernel.lay_columns, [matrix, 3, (2, 0), (column, column)]),
        "take_columns": (kernel.take_columns, [matrix, 3, (0, 1, 2), tuple(np.zeros((3, 4), np.float32))]),
    }


def _view(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text.ljust(12, b"\0")


def _long_view(length: int, buffer: int, start: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in (length, 0, buffer, start))


def data_page(kind: int, values: int, body: bytes, encoding: int) -> bytes:
    """A page of the first version, or a dictionary, not compressed: its header and its bytes."""
    numbers = [values, encoding] if kind == parquet.DICTIONARY_PAGE else [values, encoding, parquet.RLE, parquet.RLE]
    own = b"".join(b"\x15" + zigzag(number) for number in numbers) + b"\0"
    sizes = b"".join(b"\x15" + zigzag(number) for number in (kind, len(body), len(body)))
    return sizes + (b"\x4c" if kind == parquet.DICTIONARY_PAGE else b"\x2c") + own + b"\0" + body


def list_chunk() -> bytes:
    """Lists of strings, coded: ["ab", null], null, [], ["c", "ab"]."""
    entries = b"\x02\0\0\0ab" + b"\x01\0\0\0c"
    levels = sized(packed([0, 1, 0, 0, 0, 1], 1)) + sized(packed([3, 2, 0, 1, 3, 3], 2))
    codes = b"\x01" + repeated(0, 1, 1) + packed([1, 0], 1)
    return data_page(parquet.DICTIONARY_PAGE, 2, entries, 0) + data_page(parquet.DATA_PAGE, 6, levels + codes, 8)


LIST_LAYOUT = (6, 0, 2, 3, 0, True, True)  # large lists, which may be null, of large strings that may be


def parquet_calls() -> dict[str, Call]:
    """Those of `parquet`, functions and methods of cursors."""
    kernel = parquet._compiled
    chunk = np.frombuffer(list_chunk(), np.uint8).copy()
    table = kernel.page_table(chunk, 6).pages
    request = (chunk, 0, len(chunk), 6, 4, 0, False, 0, 0, LIST_LAYOUT)
    entries, count = list_chunk()[-len(list_chunk()) :], 2
    start = parquet.pages_of(table)[0].start
    entries = entries[start : start + 11]

    def cursor(*, sourced: bool = True) -> Any:
        made = kernel.Cursor(6, 0, 2, 3, 0, 0)
        if sourced:
            made.source(chunk, table, 0)
        return made

    def opened(**changes: Any) -> Any:
        return kernel.open_chunks([request])[0][0]

    coded = kernel.Cursor(6, 0, 2, 3, 4, 0)
    coded.dictionary(entries, count)
    filled, second = cursor(), cursor()
    kernel.read_chunks((filled, second), 4)
    begun = kernel.Cursor(6, 0, 2, 3, 0, 0)
    page = parquet.pages_of(table)[1]
    body = bytes(chunk[page.start :])
    begun.dictionary(entries, count)
    begun.begin(None, body, 6, 8, -1, -1)
    ready = kernel.Cursor(6, 0, 2, 3, 0, 0)
    ready.dictionary(entries, count)
    strings = kernel.Cursor(6, 0, 2, 3, 0, 0)
    strings.dictionary(entries, count)
    alone = cursor()
    kernel.read_chunks((alone,), -1)
    codes, truths = np.array([0, 2, 1], np.uint16), np.array([1, 0, 1], np.bool_)
    return {
        "page_table": (kernel.page_table, [chunk, 6]),
        "open_chunks": (kernel.open_chunks, [[request]]),
        "open_chunks for the caller's codec": (kernel.open_chunks, [[(*request[:5], -1, *request[6:])]]),
        "take_rows": (kernel.take_rows, [(opened(), opened()), 1, 4]),
        "read_chunks": (kernel.read_chunks, [(cursor(), cursor()), 4]),
        "read_chunks of dictionaries": (kernel.read_chunks, [(cursor(),), -1]),
        "look_up": (kernel.look_up, [codes, 2, b"\x05", 0, 3, truths]),
        "look_up of wide codes": (kernel.look_up, [codes.astype(np.int32), 4, None, 1, 2, truths]),
        "crc32": (kernel.crc32, [b"bytes"]),
        "Cursor": (kernel.Cursor, [6, 0, 2, 3, 0, 0]),
        "Cursor.source": (cursor(sourced=False).source, [chunk, table, 0]),
        "Cursor.flags": (cursor().flags, [np.ones(4, np.bool_)]),
        "Cursor.dictionary": (cursor(sourced=False).dictionary, [entries, count]),
        "Cursor.dictionary_strings": (strings.dictionary_strings, []),
        "Cursor.dictionary_bytes": (alone.dictionary_bytes, []),
        "Cursor.begin": (ready.begin, [None, body, 6, 8, -1, -1]),
        "Cursor.advance": (begun.advance, [4]),
        "Cursor.take": (filled.take, []),
    }


@contextmanager
def ring_calls() -> Iterator[dict[str, Call]]:
    """Those of `ring`, over a pair of sockets, and of the queue of slots in `rows`."""
    kernel = ring._compiled
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    generation = SimpleNamespace(number=7, closed=False, tear=lambda: None)
    books = ring.Books(generation, set(), [], deque(), ours, lambda *slot: None)
    reports = [ring.FREE.pack(b"F", 7, slot) for slot in range(3)]
    theirs.send(ring.READY.pack(b"R", 1, 2, 3, 4, 5, 6, 7) * 2)
    theirs.send(b"S")
    queue = rows._compiled.SlotQueue(theirs.fileno(), theirs.fileno(), 1)
    announcement = ring.READY.pack(b"R", 1, 2, 3, 4, 5, 6, 7)
    with ours, theirs:
        yield {
            "receive": (kernel.receive, [ours, bytearray(1000), deque()]),
            "send": (kernel.send, [ours, b"packet"]),
            "flush": (kernel.flush, [ours, reports]),
            "lease": (kernel.lease, [bytearray(100), 8, 16, books, 3]),
            "forget_leases": (kernel.forget_leases, []),
            "SlotQueue": (rows._compiled.SlotQueue, [theirs.fileno(), theirs.fileno(), 1]),
            "SlotQueue.write": (queue.write, [*_written(copied_slot()), announcement]),
            "SlotQueue.take": (queue.take, []),
            "SlotQueue.hold": (queue.hold, [True]),
            "SlotQueue.wait": (queue.wait, []),
            "SlotQueue.drop": (queue.drop, []),
        }
        del queue
