"""Gather, slice, compare and hash rows of columns: one call for many columns, with the interpreter's lock released.

Runs in: every process that transforms, encodes or writes slots. The functions are compiled (`_rows.c`) when the package
is installed, if there is a C compiler. Without them, `COMPILED` is False, the functions must not be called, and callers
use numpy and Arrow instead, with the same result bit by bit. Arrays are C-contiguous and of the types named; their
sizes, parts and offsets are checked, indices are not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_compiled: Any = None
with suppress(ImportError):  # installed without a compiler
    from feedline.native import _rows as _compiled  # type: ignore[attr-defined,no-redef]

VERSION = 19  # of the functions: of an older build, left in a checkout, nothing is called
COMPILED = _compiled is not None and getattr(_compiled, "VERSION", 1) == VERSION

# One thread at a time, for stretches of many short calls, which release the interpreter's lock for microseconds each: a
# second thread in the same stretch makes each of them wait to get it back. Two threads took 1.4 times the CPU time of
# one, and together were no faster. Long calls, and whatever reads files, run outside of it.
TURN = threading.RLock()

_MANY_WORDS = 2**25  # of more, too many are alike in 22 bits
_FEW = 16  # parts that are found faster by comparing with the start of each than by a search: 14 and 316 us for two
Array = NDArray[Any]
# int32 or uint16 [N].
Codes = NDArray[np.int32] | NDArray[np.uint16]
# Target (flat), its first value, the distance of its values, values of the same size (or int32 of int64), the code of
# each, whether the least and the greatest are found, of int64 values.
CodedTarget = tuple[Array, int, int, Array, Codes, bool]

# Where lengths, offsets and values of a list feature begin in a slot, bytes of a value, where weights begin (-1: none).
ListPlace = tuple[int, int, int, int, int]
# Where dense rows begin and their bytes; the same of labels; where ids begin, and marks of valid rows (-1: no marks);
# the rows of all pieces; the list features.
SlotPlaces = tuple[int, int, int, int, int, int, int, tuple[ListPlace, ...]]
# Rows [start, stop) of arrays, and whether they are valid: dense, labels, ids, values of lists (or their codes and a
# table, as of a target), their weights and offsets.
Arrays = tuple[Array, ...]
ListValues = tuple[Array | tuple[Codes, Array], ...]
CopiedPiece = tuple[int, int, bool, Array, Array, Arrays, ListValues, tuple[Array | None, ...], Arrays]
# The same arrays of parts laid end to end, each a tuple with one for each part.
PartArrays = tuple[
    Arrays, Arrays, tuple[Arrays, ...], tuple[Arrays, ...], tuple[Arrays | None, ...], tuple[Arrays, ...]
]
# The rows of the parts in another order: int64 and uint16 [N], the row among all of them, and its part; int64 [parts],
# the first row of each part; and for each list feature the offsets in this order.
PartOrder = tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64], Arrays]
GatheredPiece = tuple[
    int,
    int,
    bool,
    Arrays,
    Arrays,
    tuple[Arrays, ...],
    tuple[Arrays, ...],
    tuple[Arrays | None, ...],
    tuple[Arrays, ...],
    PartOrder,
]
SlotPiece = CopiedPiece | GatheredPiece
SlotPart = tuple[SlotPlaces, list[SlotPiece]]


def slice_lists(offsets: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """The offsets, from 0, of `list[start:stop]` of each list. start, stop: of 32 bits."""
    # list[1:3] of lists of 3 and 1 values, offsets [0, 3, 4] -> [0, 2, 2]
    sliced = np.empty(len(offsets), dtype=np.int64)
    _compiled.slice_offsets(offsets, start, stop, sliced)
    return sliced


def slice_values(
    offsets: NDArray[np.int64],
    values: Any,
    size: int,
    start: int,
    sliced: NDArray[np.int64],
    out: Any,
    order: NDArray[np.int32] | None = None,
) -> None:
    """Copy the values of `list[start:stop]` of each list, of `size` bytes each; `sliced`: what `slice_lists` returns.

    values, out: buffers; `out` holds exactly the slices' values. order: int32 [lists], the list whose slice comes
    first, second and so on; `sliced` are then the offsets in that order.
    """
    _compiled.slice_values(offsets, values, size, start, sliced, out, order)


def sort_words(words: NDArray[np.uint64]) -> None:
    """Sort words whose high bits are random, in place."""
    if COMPILED and len(words) < _MANY_WORDS:
        _compiled.sort_words(words)
    else:
        words.sort()


def last_events(
    rows: NDArray[np.int64],
    known: NDArray[np.int64] | None,
    pools: NDArray[np.uint32] | None,
    lasts: NDArray[np.int64],
    *,
    tagged: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint32] | None]:
    """The last events of rows: offsets int64 [rows + 1] of their lists, positions int32, and their pools as bits,
    uint32, if they are to be tagged.

    rows: int64 [3, rows], the first of its events, their end, and the time at which they are known to it. known: int64
    [events], when each became so (None: all were). pools: uint32 [events], as bits (None: all are in the first). lasts:
    int64 [pools, rows]: of each pool a row takes so many, at most.
    """
    # one row of the events [0, 4), the last two of pool 0, which event 1 is not in, and the last of pool 1, which
    # event 0 and 3 are in -> positions [2, 3], pools [0b01, 0b11]
    most = np.minimum(np.maximum(rows[1] - rows[0], 0), lasts.sum(axis=0))
    room = int(most.sum())
    offsets, positions = np.empty(rows.shape[1] + 1, np.int64), np.empty(room, np.int32)
    tags = np.empty(room if tagged else 0, np.uint32)
    if COMPILED:
        empty = np.empty(0, np.int64)
        found = (empty if known is None else known, empty if pools is None else pools)
        count = _compiled.last_events(rows, *found, lasts, offsets, positions, tags)
    else:
        count = _last_events(rows, known, pools, lasts, offsets, positions, tags if tagged else None)
    return offsets, positions[:count], tags[:count] if tagged else None


def _last_events(
    rows: NDArray[np.int64],
    known: NDArray[np.int64] | None,
    pools: NDArray[np.uint32] | None,
    lasts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    positions: NDArray[np.int32],
    tags: NDArray[np.uint32] | None,
) -> int:
    """As the compiled function."""
    count = 0
    offsets[0] = 0
    for row, (start, stop, at) in enumerate(rows.T.tolist()):
        events = np.arange(start, stop)
        events = events if known is None else events[known[events] <= at]
        of_events = np.ones(len(events), np.uint32) if pools is None else pools[events]
        taken = np.zeros(len(events), np.uint32)
        for pool, last in enumerate(lasts[:, row].tolist()):
            of_pool = np.flatnonzero(of_events >> np.uint32(pool) & np.uint32(1))
            of_pool = of_pool[max(0, len(of_pool) - last) :]
            taken[of_pool] |= np.uint32(1 << pool)
        seen = np.flatnonzero(taken)
        positions[count : count + len(seen)] = events[seen]
        if tags is not None:
            tags[count : count + len(seen)] = taken[seen]
        count += len(seen)
        offsets[row + 1] = count
    return count


def bisect(
    values: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64], bounds: NDArray[np.int64]
) -> NDArray[np.int64]:
    """int64 [rows]: the first of values [low, high), which ascend, that is not below a bound; `high` where all are."""
    # of values [2, 4, 4, 7], within [1, 4): bound 4 -> 1, bound 5 -> 3, bound 9 -> 4
    if not COMPILED:
        return _bisect(values, low, high, bounds)
    found = np.empty(len(low), np.int64)
    _compiled.bisect(*map(np.ascontiguousarray, (values, low, high, bounds)), found)
    return found


def _bisect(
    values: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64], bounds: NDArray[np.int64]
) -> NDArray[np.int64]:
    """As the compiled function."""
    low, high = low.copy(), high.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        below = values[middle] < bounds[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
    return low


def equal_neighbours(offsets: NDArray[np.int64], values: Any, size: int) -> NDArray[np.bool_]:
    """bool [lists - 1]: whether each list but the first has the bytes of the one before.

    values: a buffer of values of `size` bytes.
    """
    equal = np.empty(len(offsets) - 2, dtype=np.bool_)
    _compiled.equal_neighbours(offsets, values, size, equal)
    return equal


def digest_views(views: Any, data: tuple[Any, ...], out: Array, start: int = 0, buckets: int = 0) -> None:
    """Set `out` to the digests (see `hashing`) of strings, in the buffers of an Arrow array of string views.

    buckets: if not 0, to mix(digest + start) modulo it. out: of 64-bit integers.
    """
    _compiled.digest_views(views, data, out, start, buckets)


def digest_strings(offsets: Any, data: Any, size: int, out: Array, start: int = 0, buckets: int = 0) -> None:
    """As `digest_views`, of strings in the buffers of an Arrow array of strings with offsets of `size` bytes."""
    _compiled.digest_strings(offsets, data, size, out, start, buckets)


def count_codes(codes: Codes, entries: int) -> NDArray[np.int64]:
    """int64 [entries]: how often each code occurs."""
    counts = np.zeros(entries, dtype=np.int64)
    if COMPILED:
        _compiled.count_codes(codes, counts)
    else:
        np.add.at(counts, codes, 1)
    return counts


def mark_codes(codes: Codes, entries: int) -> NDArray[np.bool_]:
    """bool [entries]: whether each code occurs."""
    marks = np.zeros(entries, dtype=np.bool_)
    if COMPILED:
        _compiled.count_codes(codes, marks)
    else:
        marks[codes] = True
    return marks


def used_extremes(pairs: list[tuple[NDArray[np.int64], Codes | None]]) -> list[tuple[int, int, int, int]]:
    """Of each table of values, and codes into it (None: all of it), none of them empty: the least and the greatest
    value of the table, and of those that codes stand for.
    """
    if COMPILED:
        found: list[tuple[int, int, int, int]] = _compiled.used_extremes(pairs)
        return found
    used = [table if codes is None else table[mark_codes(codes, len(table))] for table, codes in pairs]
    return [
        (int(table.min()), int(table.max()), int(values.min()), int(values.max()))
        for (table, _), values in zip(pairs, used, strict=True)
    ]


def gather_codes(columns: list[CodedTarget], order: NDArray[np.int32] | None = None) -> list[tuple[int, int]]:
    """Set each column's values to those that its codes stand for. Returns the extremes of the columns that ask for
    them, which have at least one value.

    order: int32 [rows], the row whose values come first, second and so on. Without the compiled function there is none.
    """
    if COMPILED:
        ends: list[tuple[int, int]] = _compiled.gather_codes(columns, order)
        return ends
    found = []
    for target, first, step, table, codes, is_counted in columns:
        values = target[first : first + step * len(codes) : step]
        values[:] = table[codes]
        if is_counted:
            found.append((int(values.min()), int(values.max())))
    return found


def extremes(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The least and the greatest value of each array, [arrays, 2]: int64 of int64; float64 of float32, of which both
    are NaN if any value is.

    Arrays are all of one type, and have at least one value.
    """
    out = np.empty((len(arrays), 2), np.float64 if len(arrays) and arrays[0].dtype == np.float32 else np.int64)
    if COMPILED:
        _compiled.extremes(tuple(arrays), out)
    else:
        for each, pair in zip(arrays, out, strict=True):
            pair[:] = each.min(), each.max()
    return out


def count_lengths(offsets: Sequence[NDArray[np.int64]], rows: Sequence[int], counts: NDArray[np.int64]) -> list[int]:
    """Add to a row of `counts`, [R, W], how often each length occurs, for each array of offsets; rows: which one.

    Nothing is added of those of which a list has W elements or more. Returns the longest of each, -1 without lists.
    """
    if COMPILED:
        found: list[int] = _compiled.count_lengths(tuple(offsets), tuple(rows), counts, counts.shape[1])
        return found
    lengths = [np.diff(each) for each in offsets]
    longest = [int(each.max(initial=-1)) for each in lengths]
    for row, each, most in zip(rows, lengths, longest, strict=True):
        if 0 <= most < counts.shape[1]:
            counts[row, : most + 1] += np.bincount(each)
    return longest


def lay_columns(matrix: NDArray[np.float32], columns: Mapping[int, NDArray[np.float32]]) -> None:
    """Set columns of a row-major matrix [N, W], by number. columns: each [N]."""
    if COMPILED and matrix.size:
        _compiled.lay_columns(matrix, matrix.shape[1], tuple(columns), tuple(columns.values()))
        return
    for number, values in columns.items():
        matrix[:, number] = values


def take_columns(matrix: NDArray[np.float32], numbers: Sequence[int]) -> list[NDArray[np.float32]]:
    """Columns of a row-major matrix [N, W], each [N]."""
    columns = list(np.empty((len(numbers), len(matrix)), np.float32))
    if COMPILED and matrix.size:
        _compiled.take_columns(matrix, matrix.shape[1], tuple(numbers), tuple(columns))
        return columns
    for number, values in zip(numbers, columns, strict=True):
        values[:] = matrix[:, number]
    return columns


class SlotContent(NamedTuple):
    """What is written into a slot's bytes: a header, zeros in the gaps, the rows of each part, and bytes at places.

    Sections begin at the bytes that the places say; see `loader.encoding.slot`. Rows in another order are gathered.
    Lists are copied, or gathered from codes, with their offsets, which continue from piece to piece, and their lengths.
    """

    header: bytes
    gaps: tuple[tuple[int, int], ...]
    parts: list[SlotPart]
    copies: list[tuple[int, Any]]


def write_slot(
    target: Any,
    header: bytes,
    gaps: tuple[tuple[int, int], ...],
    parts: list[SlotPart],
    copies: Sequence[tuple[int, Any]] = (),
) -> None:
    """Write a batch into a slot's bytes: see `SlotContent`."""
    _compiled.write_slot(target, header, gaps, parts, list(copies))


class SlotQueue(Protocol):
    """The batches of a ring that are being written, by threads of this process that never take the interpreter's lock.

    Each batch is announced once it and all before it are written: its packet is sent over the connection. `wake`, an
    eventfd, is written to when all are, or one cannot be. Methods are called by one thread.
    """

    seconds: float
    cpu_seconds: float

    def write(
        self,
        target: Any,
        header: bytes,
        gaps: tuple[tuple[int, int], ...],
        parts: list[SlotPart],
        copies: list[tuple[int, Any]],
        packet: bytes,
    ) -> None:
        """Let a thread write a batch, or, if it is small and none is being written, write it now. packet: of READY."""

    def take(self) -> tuple[int, bytes, bool]:
        """How many batches, after those taken before, are announced, or are to be by the caller; the packets of the
        latter; and whether the next one could not be written, because a code is out of range. If there are packets,
        nothing is sent until the caller says so with `hold`."""

    def hold(self, is_held: bool, /) -> None:
        """Whether batches that are written wait for `take`, since messages before them are not sent."""

    def wait(self) -> None:
        """Wait until all batches are written."""

    def drop(self) -> int:
        """Forget all batches, once none is being written; returns how many of those not taken were announced."""


def slot_queue(connection: int, wake: int, threads: int) -> SlotQueue:
    """A queue for a ring whose trainer is at the other end of a connection. Descriptors must outlive it. threads: that
    write for all queues of this process, at most."""
    queue: SlotQueue = _compiled.SlotQueue(connection, wake, threads)
    return queue


def parts_of(index: NDArray[np.int64], starts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint16]:
    """The number of the part that each row is of, given the first row of each part."""
    # Rows 5, 0, 6 of parts that start at 0, 4, 6 -> parts 1, 0, 2
    if len(starts) > _FEW:
        return (np.searchsorted(np.asarray(starts), index, side="right") - 1).astype(np.uint16)
    parts = np.zeros(len(index), np.uint16)
    for start in starts[1:]:
        parts += index >= start
    return parts
