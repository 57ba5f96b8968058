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
from typing import Any

import numpy as np
from numpy.typing import NDArray

_compiled: Any = None
with suppress(ImportError):  # installed without a compiler
    from feedline.native import _rows as _compiled  # type: ignore[attr-defined,no-redef]

VERSION = 14  # of the functions: of an older build, left in a checkout, nothing is called
COMPILED = _compiled is not None and getattr(_compiled, "VERSION", 1) == VERSION

# One thread at a time, for stretches of many short calls, which release the interpreter's lock for microseconds each: a
# second thread in the same stretch makes each of them wait to get it back. Two threads took 1.4 times the CPU time of
# one, and together were no faster. Long calls, and whatever reads files, run outside of it.
TURN = threading.RLock()

_FEW = 16  # parts that are found faster by comparing with the start of each than by a search: 14 and 316 us for two
Array = NDArray[Any]
# int32 or uint16 [N].
Codes = NDArray[np.int32] | NDArray[np.uint16]
# Target (flat), its first value, the distance of its values, values of the same size (or int32 of int64), the code of
# each; int64 [2], set to the least and the greatest of int64 values, or None.
CodedTarget = tuple[Array, int, int, Array, Codes, NDArray[np.int64] | None]

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


def equal_neighbours(offsets: NDArray[np.int64], values: Any, size: int) -> NDArray[np.bool_]:
    """bool [lists - 1]: whether each list but the first has the bytes of the one before.

    values: a buffer of values of `size` bytes.
    """
    equal = np.empty(len(offsets) - 2, dtype=np.bool_)
    _compiled.equal_neighbours(offsets, values, size, equal)
    return equal


def digest_views(views: Any, data: tuple[Any, ...], out: NDArray[np.uint64]) -> None:
    """Set `out` to the digests (see `hashing`) of strings, in the buffers of an Arrow array of string views."""
    _compiled.digest_views(views, data, out)


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


def has_code(codes: Codes, code: int) -> bool:
    """Whether a code occurs."""
    return bool(_compiled.has_code(codes, code)) if COMPILED else bool((codes == code).any())


def gather_codes(columns: list[CodedTarget], order: NDArray[np.int32] | None = None) -> None:
    """Set each column's values to those that its codes stand for.

    order: int32 [rows], the row whose values come first, second and so on. Without the compiled function there is none.
    """
    if COMPILED:
        _compiled.gather_codes(columns, order)
        return
    for target, first, step, table, codes, extremes in columns:
        values = target[first : first + step * len(codes) : step]
        values[:] = table[codes]
        if extremes is not None:
            extremes[:] = values.min(), values.max()


def extremes(arrays: Sequence[NDArray[Any]]) -> Sequence[tuple[float, float]]:
    """The least and the greatest value of each array: of int64, or float32, of which both are NaN if any value is.

    Arrays have at least one value.
    """
    if not COMPILED:
        return [(each.min().item(), each.max().item()) for each in arrays]
    ends: Sequence[tuple[float, float]] = _compiled.extremes(tuple(arrays))
    return ends


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


def write_slot(target: Any, header: bytes, gaps: tuple[tuple[int, int], ...], parts: list[SlotPart]) -> None:
    """Write a batch into a slot's bytes: its header, zeros in the gaps, and the rows of each part.

    Sections begin at the bytes that the places say; see `loader.encoding.slot`. Rows in another order are gathered.
    Lists are copied, or gathered from codes, with their offsets, which continue from piece to piece, and their lengths.
    """
    _compiled.write_slot(target, header, gaps, parts)


def parts_of(index: NDArray[np.int64], starts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint16]:
    """The number of the part that each row is of, given the first row of each part."""
    # Rows 5, 0, 6 of parts that start at 0, 4, 6 -> parts 1, 0, 2
    if len(starts) > _FEW:
        return (np.searchsorted(np.asarray(starts), index, side="right") - 1).astype(np.uint16)
    parts = np.zeros(len(index), np.uint16)
    for start in starts[1:]:
        parts += index >= start
    return parts
