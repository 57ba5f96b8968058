"""Compare two columns of lists, row by row.

Pure. What begins or ends both lists alike is left out; of the rest elements are matched by their value, the k-th of a
value with the k-th of it in the other list. What has no match is missing or extra; matched elements are out of order
where one comes before the one above it. Counted from the front and from the back, as a list that was cut has other k-th
elements, the smaller number is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.dataclass import dataclass

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ListDifferences:
    """How lists of a table differ from rebuilt ones, by rows: bool [rows] `equal`, int64 [rows] of elements else."""

    equal: NDArray[np.bool_]
    missing: Int64s
    extra: Int64s
    out_of_order: Int64s


def list_differences(stored: pl.Series, rebuilt: pl.Series, dtype: pl.DataType) -> ListDifferences:
    """Compare columns of lists, of as many rows. dtype: as which elements are compared; nulls equal each other."""
    lengths = [list_lengths(each) for each in (stored, rebuilt)]
    values = [list_elements(each, own).cast(dtype) for each, own in zip((stored, rebuilt), lengths, strict=True)]
    alike = _alike(values, lengths, from_back=False)
    differ = (alike < lengths[0]) | (alike < lengths[1])
    rows = int(differ.sum())
    missing, extra, falls = np.zeros((3, len(stored)), np.int64)
    if rows:
        values = [each.filter(pl.Series(np.repeat(differ, own))) for each, own in zip(values, lengths, strict=True)]
        lengths, front = [own[differ] for own in lengths], alike[differ]
        back = np.minimum(_alike(values, lengths, from_back=True), np.minimum(*lengths) - front)
        # lists [1, 2, 3, 4] and [1, 3, 5, 4]: [2, 3] and [3, 5] are left, of rows that differ alone
        places = [_ramp(own) for own in lengths]
        inside = [
            (place >= np.repeat(front, own)) & (place < np.repeat(own - back, own))
            for place, own in zip(places, lengths, strict=True)
        ]
        of_row = [np.repeat(np.arange(rows), own)[part] for own, part in zip(lengths, inside, strict=True)]
        codes = _codes([each.filter(pl.Series(part)) for each, part in zip(values, inside, strict=True)])
        matched, falls[differ] = _match(of_row, codes, rows)
        extra[differ], missing[differ] = (own - front - back - matched for own in lengths)
    return ListDifferences(~differ, missing, extra, falls)


def _alike(values: Sequence[pl.Series], lengths: Sequence[Int64s], *, from_back: bool) -> Int64s:
    """int64 [rows]: how many elements both lists begin, or end, with alike."""
    most = np.minimum(*lengths)
    place = _ramp(most)
    sides = []
    for each, own in zip(values, lengths, strict=True):
        starts = np.cumsum(own) - own + (own - most if from_back else 0)
        sides.append(each.gather(np.repeat(starts, most) + place))
    unequal = np.flatnonzero(sides[0].ne_missing(sides[1]).to_numpy())
    unequal = unequal[::-1] if from_back else unequal
    rows, first = np.unique(np.repeat(np.arange(len(most)), most)[unequal], return_index=True)
    alike, places = most.copy(), place[unequal[first]]
    alike[rows] = most[rows] - 1 - places if from_back else places
    return alike


def _ramp(lengths: Int64s) -> Int64s:
    """The place of each element in its list."""
    # lengths [2, 3] -> 0, 1, 0, 1, 2
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _codes(values: Sequence[pl.Series]) -> list[Int64s]:
    """int64 [elements] of each: the same integer for equal values, below their number. A null is a value."""
    both = pl.concat(values)
    if both.dtype.is_float():  # -0.0 is 0.0
        both = both.to_frame("v").select(pl.when(pl.col("v") == 0).then(0).otherwise("v").cast(both.dtype)).to_series()
    array = both.rechunk().to_arrow().dictionary_encode(null_encoding="encode")
    codes = array.indices.to_numpy().astype(np.int64)
    return [codes[: len(values[0])], codes[len(values[0]) :]]


def _match(of_row: Sequence[Int64s], codes: Sequence[Int64s], rows: int) -> tuple[Int64s, Int64s]:
    """int64 [rows] each: the elements that are matched, and those of them that come before the one above. of_row,
    codes: of the elements of both lists, end to end."""
    base = max(int(each.max(initial=0)) for each in codes) + 1
    runs = [_Runs.of(row * base + code) for row, code in zip(of_row, codes, strict=True)]
    common, *places = np.intersect1d(runs[0].keys, runs[1].keys, assume_unique=True, return_indices=True)
    counts = np.minimum(runs[0].counts[places[0]], runs[1].counts[places[1]])
    matched = np.bincount(np.repeat(common // base, counts), minlength=rows)
    falls = []
    for from_back in (False, True):
        left, right = (run.elements(place, counts, from_back) for run, place in zip(runs, places, strict=True))
        order = np.argsort(left)
        left, right = left[order], right[order]
        row = of_row[0][left]
        falls.append(np.bincount(row[1:][(right[1:] < right[:-1]) & (row[1:] == row[:-1])], minlength=rows))
    return matched, np.minimum(*falls)


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Elements by their key: `order` has them sorted by it, and as they come; `starts`, `counts`: of each of `keys`."""

    order: Int64s
    keys: Int64s
    starts: Int64s
    counts: Int64s

    @classmethod
    def of(cls, keys: Int64s) -> _Runs:
        order = np.argsort(keys, kind="stable")
        distinct, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
        return cls(order, distinct, starts, counts)

    def elements(self, keys: Int64s, counts: Int64s, from_back: bool) -> Int64s:
        """The first, or last, so many elements of some keys."""
        # starts [0, 5], counts [2, 1] -> 0, 1, 5
        starts = self.starts[keys] + (self.counts[keys] - counts if from_back else 0)
        return self.order[np.repeat(starts, counts) + _ramp(counts)]


def list_lengths(lists: pl.Series) -> Int64s:
    """int64 [rows]: 0 of a null."""
    return lists.list.len().fill_null(0).to_numpy().astype(np.int64)


def list_elements(lists: pl.Series, lengths: Int64s) -> pl.Series:
    """The elements of all lists, end to end."""
    filled = lists.filter(pl.Series(lengths > 0))
    return filled.explode() if len(filled) else pl.Series([], dtype=lists.dtype.inner)  # type: ignore[attr-defined]
