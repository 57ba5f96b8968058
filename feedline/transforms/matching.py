"""Which ids do two lists of one row have in common, how often, and with which scores?

Runs on the workers, inside the pass over a chunk. All rows at once: a value and its row become one 64-bit key, keys are
sorted, and equal ones lie side by side. Where the ids of a chunk lie so far apart that they do not fit a key beside the
row, they are numbered first. Results depend on a row's own lists alone, whatever its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.transforms.arrays import Values
from feedline.transforms.ragged import Mask, Ragged

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]

_KEY_BITS = 63  # one is left for the side that a key comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The distinct ids of each row, ascending: their keys, how often they stand there, and a number for each."""

    keys: Keys
    counts: npt.NDArray[np.int64]
    scores: Numbers


def row_keys(*lists: Ragged) -> tuple[list[Keys], int]:
    """A key per value, equal for equal values of one row, and how many bits to shift it by to get the row.

    The lists have as many rows, values of one type, and no holes.
    """
    rows_bits = max(len(lists[0].offsets) - 1, 1).bit_length()
    flats = [held.values for held in lists]
    filled = [flat for flat in flats if len(flat)]
    low = min((int(flat.min()) for flat in filled), default=0)
    span = max((int(flat.max()) for flat in filled), default=0) - low
    if rows_bits + span.bit_length() > _KEY_BITS:
        distinct, codes = np.unique(np.concatenate(flats), return_inverse=True)
        flats = np.split(codes, np.cumsum([len(flat) for flat in flats])[:-1])
        low, span = 0, len(distinct)
    bits = span.bit_length()
    start = np.uint64(low & 0xFFFFFFFFFFFFFFFF)
    return [
        np.repeat(np.arange(len(held.offsets) - 1, dtype=np.uint64) << np.uint64(bits), held.lengths)
        | (flat.view(np.uint64) - start)
        for held, flat in zip(lists, flats, strict=True)
    ], bits


def first_of_each(held: Ragged) -> Mask:
    """Which values stand in their row for the first time."""
    [keys], _ = row_keys(held)
    order = np.argsort(keys, kind="stable")
    first = np.zeros(len(keys), dtype=np.bool_)
    first[order[_starts(keys[order])]] = True
    return first


def members(held: Ragged, other: Ragged) -> Mask:
    """Which values of `held` stand in the other list of their row."""
    (keys, others), _ = row_keys(held, other)
    mask: Mask = np.isin(keys, others)
    return mask


def shared_counts(left: Ragged, right: Ragged) -> tuple[npt.NDArray[np.int64], Any, Any]:
    """For each id that both lists of a row hold: the row, how often it stands left, how often right."""
    (mine, others), bits = row_keys(left, right)
    one = np.uint64(1)
    both = np.concatenate((mine << one, others << one | one))
    both.sort()
    ids = both >> one
    starts = _starts(ids)
    if not len(starts):
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    ends = np.append(starts[1:], len(both))
    shared = np.flatnonzero((both[starts] ^ both[ends - 1]) & one)  # begins with one of the left, ends with a right one
    starts, ends = starts[shared], ends[shared]
    borders = np.append(0, np.cumsum(both & one, dtype=np.int64))
    on_the_right = borders[ends] - borders[starts]
    return (ids[starts] >> np.uint64(bits)).astype(np.int64), ends - starts - on_the_right, on_the_right


def scored(keys: Keys, scores: Values | None, combine: np.ufunc = np.add) -> Scored:
    """The distinct keys with what `combine` makes of their scores; without scores, each counts 1."""
    if scores is None:
        distinct, counts = np.unique(keys, return_counts=True)
        return Scored(keys=distinct, counts=counts, scores=counts.astype(np.float64))
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    starts = _starts(in_order)
    counts = np.diff(np.append(starts, len(keys)))
    numbers = scores[order].astype(np.float64)
    made = combine.reduceat(numbers, starts) if len(starts) else numbers
    return Scored(keys=in_order[starts], counts=counts, scores=made)


def shared_scores(left: Scored, right: Scored, bits: int) -> tuple[npt.NDArray[np.int64], Numbers, Numbers]:
    """For each id that both lists of a row hold: the row and its two scores."""
    keys, mine, others = np.intersect1d(left.keys, right.keys, assume_unique=True, return_indices=True)
    return rows_of(keys, bits), left.scores[mine], right.scores[others]


def rows_of(keys: Keys, bits: int) -> npt.NDArray[np.int64]:
    """The row of each key."""
    return (keys >> np.uint64(bits)).astype(np.int64)


def _starts(ordered: Keys) -> npt.NDArray[np.int64]:
    """Where runs of equal keys begin."""
    changes = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=changes[1:])
    return np.flatnonzero(changes)
