"""Match the ids of two lists of a row: which they have in common, how often, and with which scores.

Runs on the workers, inside the pass over a chunk. A value's row, the value, its side and its position in its list are
packed into one 64-bit key; ids that span too many bits are numbered first. Sorted keys put equal values of one row side
by side. Rows are processed in blocks that fit the caches.

numpy sorts words with SIMD instructions: 32,768 keys take 192 us with AVX-512, 455 with AVX2, 1,010 on AMD's Zen 4 with
AVX-512, which `cluster: {cpu: x86-64-v3}` turns off (Polars on one thread: 470).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.transforms.values.arrays import BLOCK_VALUES, Values
from feedline.transforms.values.ragged import Mask, Ragged

Keys = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

_BITS = 64


def row_blocks(*lists: Ragged) -> Iterator[tuple[slice, tuple[Ragged, ...]]]:
    """The lists in blocks of rows of about `BLOCK_VALUES` values, with the rows that each block holds."""
    rows = len(lists[0].offsets) - 1
    values = sum(len(ragged.values) for ragged in lists)
    step = max(1, rows * BLOCK_VALUES // max(values, 1))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield slice(start, stop), tuple(ragged.part(start, stop) for ragged in lists)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The values of several lists per row, ordered by row and value: runs of equal values of one row.

    starts, ends: of the runs. sides: the list of each value. Within a run values are ordered by side, then by position.
    """

    lists: tuple[Ragged, ...]
    keys: Keys
    value_bits: int
    position_bits: int
    starts: Positions
    ends: Positions
    sides: Keys

    @property
    def rows(self) -> Positions:
        """The row of each run."""
        return self._rows(self.keys[self.starts])

    @property
    def counts(self) -> tuple[Positions, Positions]:
        """How many values of each run are of the first and of the second of two lists."""
        ones = np.append(0, np.cumsum(self.sides == 1, dtype=np.int64))
        second = ones[self.ends] - ones[self.starts]
        return self.ends - self.starts - second, second

    def positions(self, selection: Any) -> Positions:
        """The positions of some of the ordered values among the values of their list."""
        keys = self.keys[selection]
        positions: Positions = (keys & np.uint64((1 << self.position_bits) - 1)).astype(np.int64)
        begins = [ragged.offsets[:-1] for ragged in self.lists]
        rows = self._rows(keys)
        if len(begins) == 1:
            positions += begins[0][rows]
        else:
            positions += np.stack(begins)[self.sides[selection].astype(np.intp), rows]
        return positions

    def _rows(self, keys: Keys) -> Positions:
        sides_bits = (len(self.lists) - 1).bit_length()
        return (keys >> np.uint64(self.value_bits + sides_bits + self.position_bits)).astype(np.int64)


def match_lists(*lists: Ragged) -> Matches:
    """Match lists of equally many rows, of one type and without holes."""
    keys, value_bits, position_bits = _pack(lists)
    keys.sort()
    sides_bits = (len(lists) - 1).bit_length()
    values = keys >> np.uint64(position_bits + sides_bits)
    changes = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    starts = np.flatnonzero(changes)
    return Matches(
        lists=lists,
        keys=keys,
        value_bits=value_bits,
        position_bits=position_bits,
        starts=starts,
        ends=np.append(starts[1:], len(keys)) if len(keys) else starts,
        sides=(keys >> np.uint64(position_bits)) & np.uint64((1 << sides_bits) - 1),
    )


def _pack(lists: tuple[Ragged, ...]) -> tuple[Keys, int, int]:
    """A key per value (row, value, side, position in its list), and the bits of value and position."""
    flats = [ragged.values for ragged in lists]
    rows_bits = max(len(lists[0].offsets) - 1, 1).bit_length()
    sides_bits = (len(lists) - 1).bit_length()
    position_bits = max(int(ragged.lengths.max(initial=0)) for ragged in lists).bit_length()
    nonempty = [flat for flat in flats if len(flat)]
    low = min((int(flat.min()) for flat in nonempty), default=0)
    span = max((int(flat.max()) for flat in nonempty), default=0) - low
    if rows_bits + sides_bits + position_bits + span.bit_length() > _BITS:
        distinct, codes = np.unique(np.concatenate(flats), return_inverse=True)
        flats = np.split(codes.astype(np.int64), np.cumsum([len(flat) for flat in flats])[:-1])
        low, span = 0, len(distinct)
    bits = span.bit_length()
    assert rows_bits + sides_bits + position_bits + bits <= _BITS, "a block has few values, or a single row"
    keys = []
    for side, (ragged, flat) in enumerate(zip(lists, flats, strict=True)):
        of_row = np.arange(len(ragged.offsets) - 1, dtype=np.uint64) << np.uint64(bits + sides_bits + position_bits)
        of_row |= np.uint64(side << position_bits)
        of_row -= ragged.offsets[:-1].astype(np.uint64)  # positions count from the list's beginning
        key = flat.view(np.uint64) - np.uint64(low & 0xFFFFFFFFFFFFFFFF)
        key <<= np.uint64(sides_bits + position_bits)
        key += np.repeat(of_row, ragged.lengths)
        key += np.arange(len(flat), dtype=np.uint64)
        keys.append(key)
    return np.concatenate(keys), bits, position_bits


def first_of_each(ragged: Ragged) -> Mask:
    """Which values occur for the first time in their row."""
    first = np.zeros(len(ragged.values), dtype=np.bool_)
    for rows, (part,) in row_blocks(ragged):
        runs = match_lists(part)
        first[ragged.offsets[rows.start] + runs.positions(runs.starts)] = True
    return first


def members(ragged: Ragged, other: Ragged) -> Mask:
    """Which values of `ragged` occur in the other list of their row."""
    mask = np.zeros(len(ragged.values), dtype=np.bool_)
    for rows, (others, mine) in row_blocks(other, ragged):
        runs = match_lists(others, mine)
        matching = np.repeat(runs.sides[runs.starts] == 0, runs.ends - runs.starts) & (runs.sides == 1)
        mask[ragged.offsets[rows.start] + runs.positions(matching)] = True
    return mask


def shared_counts(left: Ragged, right: Ragged) -> tuple[Positions, Positions, Positions]:
    """For each id that both lists of a row hold: the row, its count on the left, its count on the right."""
    low = min((int(ragged.values.min()) for ragged in (left, right) if len(ragged.values)), default=0)
    high = max((int(ragged.values.max()) for ragged in (left, right) if len(ragged.values)), default=0)
    bits = (high - low).bit_length()
    rows = len(left.offsets) - 1
    if bits + max(rows, 1).bit_length() + 1 > _BITS:
        runs = match_lists(left, right)
        ours, theirs = runs.counts
        both = np.flatnonzero((ours > 0) & (theirs > 0))
        return runs.rows[both], ours[both], theirs[both]
    keys = np.concatenate([_row_key(ragged, low, bits, side) for side, ragged in enumerate((left, right))])
    keys.sort()
    return _counts_of_runs(keys, bits)


def _row_key(ragged: Ragged, low: int, bits: int, side: int) -> Keys:
    """Row, value and side in one word, for callers that need no positions."""
    of_row = np.arange(len(ragged.offsets) - 1, dtype=np.uint64) << np.uint64(bits + 1)
    key = ragged.values.view(np.uint64) - np.uint64(low & 0xFFFFFFFFFFFFFFFF)
    key <<= np.uint64(1)
    key += np.repeat(of_row + np.uint64(side), ragged.lengths)
    return key


def _counts_of_runs(keys: Keys, bits: int) -> tuple[Positions, Positions, Positions]:
    # an id's left keys are even, its right ones odd and adjacent: where both occur, neighbours differ by 1:
    # id 5 twice on the left and once on the right, keys 10, 10, 11 -> counts 2 and 1
    borders = np.flatnonzero((keys[1:] ^ keys[:-1]) == 1)
    ids = keys[borders]
    single = np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)  # where runs of one id and side begin
    run_index = np.searchsorted(single, borders, side="right") - 1
    begins = single[run_index]
    ends = np.append(single, len(keys))[run_index + 2]
    return (ids >> np.uint64(bits + 1)).astype(np.int64), borders + 1 - begins, ends - borders - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The ids of each row with a number for each of two lists. shared: whether both lists hold the id."""

    rows: Positions
    left: Numbers
    right: Numbers
    shared: Mask


def reduce_scores(left: Ragged, own: Values | None, right: Ragged, theirs: Values, combine: np.ufunc = np.add) -> Sums:
    """Reduce the scores of each id in each of two lists by `combine`; without scores, count its occurrences."""
    runs = match_lists(left, right)
    ours, others = runs.counts
    middle = runs.starts + ours
    return Sums(
        rows=runs.rows,
        left=ours.astype(np.float64) if own is None else _reduce(own, runs, runs.starts, middle, combine),
        right=_reduce(theirs, runs, middle, runs.ends, combine),
        shared=(ours > 0) & (others > 0),
    )


def _reduce(scores: Values, runs: Matches, starts: Positions, ends: Positions, combine: np.ufunc) -> Numbers:
    """`combine` over the scores of each part of a run; 0 for an empty part."""
    found = np.zeros(len(starts))
    nonempty = np.flatnonzero(ends > starts)
    if not len(nonempty):
        return found
    lengths = (ends - starts)[nonempty]
    begins = np.cumsum(lengths) - lengths
    selection = np.arange(int(lengths.sum())) + np.repeat(starts[nonempty] - begins, lengths)
    numbers: Any = scores[runs.positions(selection)].astype(np.float64)
    found[nonempty] = combine.reduceat(numbers, begins)
    return found
