"""Measures of a feature's values, counted while a block is encoded and summed over blocks in any order.

Runs in: processes that encode blocks (Dask workers, the feeder's threads), which observe; the feeder and the trainer,
which merge. Pure. Everything kept is a count, a minimum or a maximum, so merging is associative and the result is
bit-equal in any order of blocks.

List lengths are kept as a histogram with one bucket per length below 1024 and 512 buckets per doubling above:
percentiles are exact below, and at most 0.2 % too low above.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.native.rows import count_lengths
from feedline.native.unique_rows import first_uses

if TYPE_CHECKING:  # a trainer, which merges, does not load Polars
    import polars as pl

Counts = NDArray[np.int64]

COUNTS = ("nulls", "values", "nonfinite", "longest")
PERCENTILES = (50, 90, 99)
_EXACT_LENGTHS = 1024
_PER_DOUBLING = 512
_SIZES = struct.Struct("<5q")  # rows, features, lists among them, lookups, buckets of the histogram
_MOST, _LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quality:
    """Counts of some rows, per feature in the order of a schema's columns (F of them, S sparse ones, L lookups).

    counts: int64 [len(COUNTS), F]; `longest` is a maximum, all others are sums. Minimum and maximum are int64 [2, F]
    for features whose values are integers, float64 [2, F] for others. histogram: int64, the S histograms of list
    lengths end to end, each as long as `widths` int64 [S] says. lookups: int64 [2, L], the values that each lookup of a
    chain was asked for, and those that it did not find.
    """

    rows: int
    counts: Counts
    integers: Counts
    floats: NDArray[np.float64]
    histogram: Counts
    widths: Counts
    lookups: Counts

    def histograms(self) -> list[Counts]:
        """Rows per length bucket, for each sparse feature."""
        return np.split(self.histogram, np.cumsum(self.widths)[:-1]) if len(self.widths) else []

    def to_bytes(self) -> bytes:
        """All counts, in the order of the fields after their sizes: little-endian, 8 bytes each."""
        sizes = (self.rows, self.counts.shape[1], len(self.widths), self.lookups.shape[1], len(self.histogram))
        arrays = (self.counts, self.integers, self.floats, self.histogram, self.widths, self.lookups)
        return b"".join([_SIZES.pack(*sizes), *(array.tobytes() for array in arrays)])

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The inverse of `to_bytes`; the arrays are views of `content`."""
        rows, features, lists, lookups, buckets = _SIZES.unpack_from(content)
        place = _SIZES.size

        def take(dtype: type, *shape: int) -> NDArray[Any]:
            nonlocal place
            array: NDArray[Any] = np.frombuffer(content, dtype, math.prod(shape), place).reshape(shape)
            place += array.nbytes
            return array

        return cls(
            rows=rows,
            counts=take(np.int64, len(COUNTS), features),
            integers=take(np.int64, 2, features),
            floats=take(np.float64, 2, features),
            histogram=take(np.int64, buckets),
            widths=take(np.int64, lists),
            lookups=take(np.int64, 2, lookups),
        )


def merge(parts: Iterable[Quality]) -> Quality:
    """The counts of all rows of at least one part."""
    each = list(parts)
    every = np.array([part.counts for part in each])
    counts, longest = every.sum(0), COUNTS.index("longest")
    counts[longest] = every[:, longest].max(0)
    widths: Counts = np.array([part.widths for part in each]).max(0)
    return Quality(
        rows=sum(part.rows for part in each),
        counts=counts,
        integers=_widest(np.array([part.integers for part in each])),
        floats=_widest(np.array([part.floats for part in each])),
        histogram=_histogram(each, widths),
        widths=widths,
        lookups=np.array([part.lookups for part in each]).sum(0),
    )


def _add(one: Counts, other: Counts) -> Counts:
    short, long = sorted((one, other), key=len)
    total = long.copy()
    total[: len(short)] += short
    return total


def _histogram(parts: Sequence[Quality], widths: Counts) -> Counts:
    """The sums of the parts' histograms, each as long as the longest of them: `widths`."""
    total = np.zeros(int(widths.sum()), np.int64)
    for part in parts:
        if (part.widths == widths).all():
            total += part.histogram
            continue
        for buckets, sums in zip(part.histograms(), np.split(total, np.cumsum(widths)[:-1]), strict=True):
            sums[: len(buckets)] += buckets
    return total


def _widest(ends: NDArray[Any]) -> NDArray[Any]:
    """The least and the greatest of [parts, 2, F]."""
    return np.stack([ends[:, 0].min(0), ends[:, 1].max(0)])


def _join(lengths: Sequence[Counts]) -> Counts:
    return np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)


class Observer:
    """Counts the rows of one block, chunk by chunk; `quality` returns the counts.

    reads: for each feature, the source columns that it is computed from.
    """

    def __init__(self, schema: BatchSchema, reads: Sequence[tuple[str, ...]]) -> None:
        self._index = {column.name: index for index, column in enumerate(schema)}
        self._sparse_index = {column.name: index for index, column in enumerate(schema.group("sparse"))}
        self._readers: dict[str, list[int]] = {}  # by column: the features that read it alone
        several: dict[tuple[str, ...], list[int]] = {}
        for index, columns in enumerate(reads):
            if len(columns) == 1:
                self._readers.setdefault(columns[0], []).append(index)
            else:
                several.setdefault(columns, []).append(index)
        self._several = tuple(several.items())  # counted row by row
        self._shared = {name for columns in several for name in columns}
        self._first_lookup = _lookup_starts(schema)
        self._all_lookups = sum(column.lookups for column in schema)
        self._begin()

    def _begin(self) -> None:
        features, lists = len(self._index), len(self._sparse_index)
        self._rows = 0
        self._counts = {name: [0] * features for name in COUNTS}
        self._integers = [[int(_MOST)] * features, [int(_LEAST)] * features]
        self._floats = [[np.inf] * features, [-np.inf] * features]
        self._lengths = np.zeros((lists, _EXACT_LENGTHS), np.int64)
        self._longest = [0] * lists  # of the lengths that these hold
        self._long: dict[int, Counts] = {}  # buckets of chunks with longer lists
        self._lookups = np.zeros((2, self._all_lookups), dtype=np.int64)

    def again(self) -> Observer:
        """One of the same features that has counted nothing."""
        other = copy.copy(self)
        other._begin()
        return other

    def count_rows(self, frame: pl.DataFrame, repeated: Sequence[tuple[pl.DataFrame, NDArray[np.int32]]] = ()) -> None:
        """Count source rows and nulls: a feature's row is null if one of its columns is.

        repeated: further columns, as unique rows and an inverse, int32 [rows of `frame`].
        """
        self._rows += frame.height
        of_one = dict(zip(frame.columns, frame.null_count().row(0), strict=True)) if frame.width else {}
        nulls = {name: frame.get_column(name).is_null() for name in self._shared if of_one.get(name)}
        for unique, inverse in repeated:
            repeats = np.diff(first_uses(inverse), append=len(inverse))
            for series in unique:
                is_null = _is_null(series) if series.null_count() else None
                of_one[series.name] = 0 if is_null is None else int(repeats[is_null].sum())
                if is_null is not None and series.name in self._shared:
                    nulls[series.name] = type(series)(is_null[inverse])
        counts = self._counts["nulls"]
        for name, count in of_one.items():
            if count:
                for index in self._readers.get(name, ()):
                    counts[index] += count
        for columns, readers in self._several if nulls else ():
            count = _null_rows([nulls[name] for name in columns if name in nulls])
            for index in readers:
                counts[index] += count

    def count_lookups(self, name: str, counts: Sequence[tuple[int, int]]) -> None:
        """Count, per lookup of the feature's chain, the values looked up and those that it did not find."""
        first = self._first_lookup[name]
        self._lookups[:, first : first + len(counts)] += np.array(counts, dtype=np.int64).T

    def count_integers(self, column: SlotColumn, values: Counts, count: int | None = None) -> None:
        """Count finished ids. count: how many all rows have, if more than these."""
        if len(values):
            count = len(values) if count is None else count
            self.count_extremes(column, count, np.minimum.reduce(values), np.maximum.reduce(values))

    def count_extremes(self, column: SlotColumn, count: int, low: float, high: float) -> None:
        """Count finished ids, given their minimum and maximum."""
        self.count_ids([column.name], [count], [(int(low), int(high))])

    def count_floats(self, column: SlotColumn, values: int, extremes: tuple[float, float]) -> None:
        """Count finished floats. extremes: minimum and maximum of the finite ones."""
        low, high = extremes
        self.count_float_columns([column.name], [values], [(float(low), float(high))])

    def count_ids(self, names: Iterable[str], values: Iterable[int], extremes: Iterable[Sequence[int]]) -> None:
        """Count finished ids of several features: how many each has, and their minimum and maximum."""
        self._stretch(self._integers, names, values, extremes)

    def count_float_columns(
        self, names: Iterable[str], values: Iterable[int], extremes: Iterable[Sequence[float]]
    ) -> None:
        """Count finished floats of several features: how many each has, minimum and maximum of the finite ones."""
        # of 0.0 and -0.0, always 0.0
        self._stretch(self._floats, names, values, [(low + 0.0, high + 0.0) for low, high in extremes])

    def count_nonfinite(self, column: SlotColumn, values: int) -> None:
        """Count values or weights that are NaN or infinite."""
        self._counts["nonfinite"][self._index[column.name]] += values

    def count_lists(self, column: SlotColumn, offsets: Counts, repeats: Counts | None = None) -> None:
        """Count finished lists, given their offsets. repeats: int64 [lists], how many rows have each (None: one)."""
        if repeats is None:
            self.count_list_columns([column.name], [np.ascontiguousarray(offsets, np.int64)])
            return
        lengths = offsets[1:] - offsets[:-1]
        if len(lengths):
            self._add_lengths(column.name, lengths, int(lengths.max()), repeats)

    def count_list_columns(self, names: Sequence[str], offsets: Sequence[Counts]) -> None:
        """Count finished lists of several features, different ones, given the offsets of each."""
        places = [self._sparse_index[name] for name in names]
        longest = count_lengths(offsets, places, self._lengths)
        for name, place, most, borders in zip(names, places, longest, offsets, strict=True):
            if most >= _EXACT_LENGTHS:
                self._add_lengths(name, borders[1:] - borders[:-1], most)
            elif most > self._longest[place]:
                self._longest[place] = most
                self._stretch_longest(name, most)

    def _add_lengths(self, name: str, lengths: Counts, longest: int, repeats: Counts | None = None) -> None:
        place = self._sparse_index[name]
        buckets = _buckets(lengths) if longest >= _EXACT_LENGTHS else lengths
        counts = np.bincount(buckets, repeats).astype(np.int64, copy=False)
        self._long[place] = _add(self._long[place], counts) if place in self._long else counts
        self._stretch_longest(name, longest)

    def quality(self) -> Quality:
        """The counts so far."""
        lengths = [counts[: most + 1] for counts, most in zip(self._lengths, self._longest, strict=True)]
        for place, counts in self._long.items():
            lengths[place] = _add(lengths[place], counts)
        return Quality(
            rows=self._rows,
            counts=np.array([self._counts[name] for name in COUNTS], dtype=np.int64),
            integers=np.array(self._integers, dtype=np.int64),
            floats=np.array(self._floats, dtype=np.float64),
            histogram=_join(lengths),
            widths=np.array([len(buckets) for buckets in lengths], dtype=np.int64),
            lookups=self._lookups.copy(),
        )

    def _stretch(
        self,
        bounds: list[list[Any]],
        names: Iterable[str],
        values: Iterable[int],
        extremes: Iterable[Sequence[float]],
    ) -> None:
        (least, most), counts = bounds, self._counts["values"]
        for name, count, (low, high) in zip(names, values, extremes, strict=True):
            place = self._index[name]
            counts[place] += count
            if low < least[place]:
                least[place] = low
            if high > most[place]:
                most[place] = high

    def _stretch_longest(self, name: str, longest: int) -> None:
        place = self._index[name]
        self._counts["longest"][place] = max(self._counts["longest"][place], longest)


def _lookup_starts(schema: BatchSchema) -> dict[str, int]:
    """The index of each feature's first lookup among those of all features."""
    ends = itertools.accumulate((column.lookups for column in schema), initial=0)
    return {column.name: first for column, first in zip(schema, ends, strict=False)}


def _is_null(series: pl.Series) -> NDArray[np.bool_]:
    """bool [rows]; Polars would start a query of its own for this."""
    array = series.rechunk().to_arrow()
    nulls: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _null_rows(columns: Sequence[pl.Series]) -> int:
    """Rows in which at least one of some columns is null. columns: for each whether it is."""
    if not columns:
        return 0
    return int(functools.reduce(lambda nulls, column: nulls | column, columns).sum())


def _buckets(lengths: Counts) -> Counts:
    # Lengths 1023, 1024, 1025, 1026, 2048, 4096 -> buckets 1023, 1024, 1024, 1025, 1536, 2048: two lengths in each from
    # 1024 on, four from 2048 on.
    _, exponents = np.frexp(lengths.astype(np.float64))
    shift = np.maximum(exponents - 10, 0).astype(np.int64)
    return np.where(
        shift > 0, _EXACT_LENGTHS + (shift - 1) * _PER_DOUBLING + (lengths >> shift) - _PER_DOUBLING, lengths
    )


def _least_length(bucket: int) -> int:
    if bucket < _EXACT_LENGTHS:
        return bucket
    shift, rest = divmod(bucket - _EXACT_LENGTHS, _PER_DOUBLING)
    return (rest + _PER_DOUBLING) << (shift + 1)


def measures(quality: Quality, schema: BatchSchema, only: Container[str] | None = None) -> dict[str, dict[str, Any]]:
    """The measures of each feature by name, as plain numbers. only: the features to measure (default: all).

    All features: rows, nulls, null_rate. All but extras: values, min, max (None without values). Floats: nonfinite,
    nonfinite_rate. Features with lookups: oov, oov_rate, of that lookup of the chain which misses most. Lists:
    list_length_mean, _p50, _p90, _p99, _max.
    """
    sparse = {column.name: index for index, column in enumerate(schema.group("sparse"))}
    histograms, first_lookup = quality.histograms(), _lookup_starts(schema)
    result = {}
    for index, column in enumerate(schema):
        if only is not None and column.name not in only:
            continue
        counts = dict(zip(COUNTS, quality.counts[:, index].tolist(), strict=True))
        facts: dict[str, Any] = {"group": column.group, "rows": quality.rows, "nulls": counts["nulls"]}
        facts["null_rate"] = _rate(counts["nulls"], quality.rows)
        if column.group != "extra":
            bounds = (quality.floats if column.dtype == "float32" else quality.integers)[:, index].tolist()
            low, high = bounds if bounds[0] <= bounds[1] else (None, None)
            facts |= {"values": counts["values"], "min": low, "max": high}
        if (column.dtype == "float32" and column.group != "extra") or column.weighted:
            facts |= {"nonfinite": counts["nonfinite"], "nonfinite_rate": _rate(counts["nonfinite"], counts["values"])}
        if column.looks_up:
            first = first_lookup[column.name]
            asked, missed = quality.lookups[:, first : first + column.lookups].tolist()
            rates = [(_rate(*pair) or 0.0, pair) for pair in zip(missed, asked, strict=True)]
            worst = max(rates)[1]
            facts |= {"oov": worst[0], "oov_rate": _rate(*worst)}
        if column.name in sparse:
            facts |= _lengths(histograms[sparse[column.name]], counts, quality.rows)
        result[column.name] = facts
    return result


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _lengths(buckets: Counts, counts: Mapping[str, int], rows: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"list_length_mean": _rate(counts["values"], rows)}
    ends = np.cumsum(buckets)
    for percentile in PERCENTILES:  # the least length that at least this share of the lists does not exceed
        rank = -(-rows * percentile // 100)
        length = _least_length(int(np.searchsorted(ends, rank))) if rows else None
        facts[f"list_length_p{percentile}"] = length
    return facts | {"list_length_max": counts["longest"] if rows else None}
