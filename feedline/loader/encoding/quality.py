"""Measures of a feature's values, counted while a block is encoded and summed over blocks in any order.

Runs in: wherever blocks are encoded (Dask workers, the feeder's threads), which observe; the feeder and the trainer,
which merge. Pure. Whatever is kept is a count, a minimum or a maximum: merging is associative and the order of blocks
does not show in one bit of the result.

Lengths of lists are kept as a histogram with a bucket for each length below 1024, and 512 buckets per doubling above:
percentiles are exact there, and at most 0.2 % too low here.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.loader.encoding.layout import BatchSchema, SlotColumn

Counts = NDArray[np.int64]

COUNTS = ("nulls", "values", "nonfinite", "asked", "missed", "longest")
PERCENTILES = (50, 90, 99)
_EXACT_LENGTHS = 1024
_PER_DOUBLING = 512
_MOST, _LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quality:
    """Counts of some rows, per feature in the order of a schema's columns (F of them, S sparse ones).

    counts: int64 [len(COUNTS), F]; `longest` is a maximum, all others are sums. Minimum and maximum are int64 [2, F]
    for features whose values are integers, float64 [2, F] for others. histogram: int64, the S histograms of list
    lengths end to end, each as long as `widths` int64 [S] says.
    """

    rows: int
    counts: Counts
    integers: Counts
    floats: NDArray[np.float64]
    histogram: Counts
    widths: Counts

    def histograms(self) -> list[Counts]:
        """Rows per length bucket, of each sparse feature."""
        return np.split(self.histogram, np.cumsum(self.widths)[:-1]) if len(self.widths) else []

    def to_json(self) -> dict[str, Any]:
        """The same as plain numbers and lists."""
        return {
            "rows": self.rows,
            "counts": self.counts.tolist(),
            "integers": self.integers.tolist(),
            "floats": [[value if np.isfinite(value) else None for value in row] for row in self.floats.tolist()],
            "histogram": self.histogram.tolist(),
            "widths": self.widths.tolist(),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        floats = np.array(facts["floats"], dtype=np.float64).reshape(2, -1)
        floats[0, np.isnan(floats[0])], floats[1, np.isnan(floats[1])] = np.inf, -np.inf
        return cls(
            rows=int(facts["rows"]),
            counts=np.array(facts["counts"], dtype=np.int64).reshape(len(COUNTS), -1),
            integers=np.array(facts["integers"], dtype=np.int64).reshape(2, -1),
            floats=floats,
            histogram=np.array(facts["histogram"], dtype=np.int64),
            widths=np.array(facts["widths"], dtype=np.int64),
        )


def merge(parts: Iterable[Quality]) -> Quality:
    """The counts of all rows of some parts, of which there is one at least."""
    return functools.reduce(_merge, parts)


def _merge(one: Quality, other: Quality) -> Quality:
    counts = one.counts + other.counts
    longest = COUNTS.index("longest")
    counts[longest] = np.maximum(one.counts[longest], other.counts[longest])
    lengths = [_add(mine, theirs) for mine, theirs in zip(one.histograms(), other.histograms(), strict=True)]
    return Quality(
        rows=one.rows + other.rows,
        counts=counts,
        integers=_widest(one.integers, other.integers),
        floats=_widest(one.floats, other.floats),
        histogram=_join(lengths),
        widths=np.array([len(buckets) for buckets in lengths], dtype=np.int64),
    )


def _add(one: Counts, other: Counts) -> Counts:
    short, long = sorted((one, other), key=len)
    total = long.copy()
    total[: len(short)] += short
    return total


def _widest(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


def _join(lengths: Sequence[Counts]) -> Counts:
    return np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)


class Observer:
    """Counts the rows of one block, chunk after chunk; `quality` says what came together.

    `reads`: for each feature the columns of the source frames that it is made of.
    """

    def __init__(self, schema: BatchSchema, reads: Sequence[tuple[str, ...]]) -> None:
        self._place = {column.name: place for place, column in enumerate(schema)}
        self._list = {column.name: place for place, column in enumerate(schema.group("sparse"))}
        self._reads = reads
        self._rows = 0
        self._counts = {name: [0] * len(schema) for name in COUNTS}
        self._integers = [[int(_MOST)] * len(schema), [int(_LEAST)] * len(schema)]
        self._floats = [[np.inf] * len(schema), [-np.inf] * len(schema)]
        self._lengths: list[Counts] = [np.zeros(1, dtype=np.int64)] * len(self._list)

    def source(self, frame: pl.DataFrame) -> None:
        """Rows as they were read: a feature's row is null where one of its columns is."""
        self._rows += frame.height
        nulls = {columns: _null_rows(frame, columns) for columns in set(self._reads)}
        for place, columns in enumerate(self._reads):
            self._counts["nulls"][place] += nulls[columns]

    def looked_up(self, name: str, asked: int, missed: int) -> None:
        """An op of the feature looked `asked` values up and did not know `missed` of them."""
        self._counts["asked"][self._place[name]] += asked
        self._counts["missed"][self._place[name]] += missed

    def integers(self, column: SlotColumn, values: Counts) -> None:
        """Finished ids."""
        if not len(values):
            return
        place = self._place[column.name]
        self._counts["values"][place] += len(values)
        self._stretch(self._integers, place, int(np.minimum.reduce(values)), int(np.maximum.reduce(values)))

    def floats(self, column: SlotColumn, values: int, extremes: tuple[float, float]) -> None:
        """Finished numbers: how many, and the least and the largest of the finite ones among them."""
        place = self._place[column.name]
        self._counts["values"][place] += values
        self._stretch(self._floats, place, *extremes)

    def nonfinite(self, column: SlotColumn, values: int) -> None:
        """So many of the feature's values, or of its weights, are NaN or infinite."""
        self._counts["nonfinite"][self._place[column.name]] += values

    def lists(self, column: SlotColumn, offsets: Counts) -> None:
        """Finished lists, by their offsets."""
        lengths = offsets[1:] - offsets[:-1]
        if not len(lengths):
            return
        place, sparse = self._place[column.name], self._list[column.name]
        longest = int(np.maximum.reduce(lengths))
        if longest >= _EXACT_LENGTHS:
            lengths = _buckets(lengths)
        self._lengths[sparse] = _add(self._lengths[sparse], np.bincount(lengths))
        self._counts["longest"][place] = max(self._counts["longest"][place], longest)

    def quality(self) -> Quality:
        """What was counted."""
        return Quality(
            rows=self._rows,
            counts=np.array([self._counts[name] for name in COUNTS], dtype=np.int64),
            integers=np.array(self._integers, dtype=np.int64),
            floats=np.array(self._floats, dtype=np.float64),
            histogram=_join(self._lengths),
            widths=np.array([len(buckets) for buckets in self._lengths], dtype=np.int64),
        )

    def _stretch(self, bounds: list[list[Any]], place: int, low: float, high: float) -> None:
        if low < bounds[0][place]:
            bounds[0][place] = low
        if high > bounds[1][place]:
            bounds[1][place] = high


def _null_rows(frame: pl.DataFrame, columns: tuple[str, ...]) -> int:
    """Rows in which one of the columns is null; Arrow's counts say it, unless several columns hold nulls."""
    held = [series for name in columns if (series := frame.get_column(name)).null_count()]
    if len(held) < 2:
        return held[0].null_count() if held else 0
    return int(functools.reduce(lambda some, series: some | series.is_null(), held[1:], held[0].is_null()).sum())


def _buckets(lengths: Counts) -> Counts:
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
    """The measures of each feature by their names, as plain numbers; those that its group and kind have.

    rows, nulls, null_rate; but for extras: values, min, max (None without values); where values are floats: nonfinite,
    nonfinite_rate; where an op looks values up: oov, oov_rate; of lists: list_length_mean, _p50, _p90, _p99, _max.
    """
    sparse = {column.name: place for place, column in enumerate(schema.group("sparse"))}
    histograms = quality.histograms()
    found = {}
    for place, column in enumerate(schema):
        if only is not None and column.name not in only:
            continue
        counts = dict(zip(COUNTS, quality.counts[:, place].tolist(), strict=True))
        facts: dict[str, Any] = {"group": column.group, "rows": quality.rows, "nulls": counts["nulls"]}
        facts["null_rate"] = _rate(counts["nulls"], quality.rows)
        if column.group != "extra":
            bounds = (quality.floats if column.dtype == "float32" else quality.integers)[:, place].tolist()
            low, high = bounds if bounds[0] <= bounds[1] else (None, None)
            facts |= {"values": counts["values"], "min": low, "max": high}
        if (column.dtype == "float32" and column.group != "extra") or column.weighted:
            facts |= {"nonfinite": counts["nonfinite"], "nonfinite_rate": _rate(counts["nonfinite"], counts["values"])}
        if column.looks_up:
            facts |= {"oov": counts["missed"], "oov_rate": _rate(counts["missed"], counts["asked"])}
        if column.name in sparse:
            facts |= _lengths(histograms[sparse[column.name]], counts, quality.rows)
        found[column.name] = facts
    return found


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _lengths(buckets: Counts, counts: Mapping[str, int], rows: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"list_length_mean": _rate(counts["values"], rows)}
    ends = np.cumsum(buckets)
    for percentile in PERCENTILES:  # the least length that so many of the lists do not exceed
        wanted = -(-rows * percentile // 100)
        length = _least_length(int(np.searchsorted(ends, wanted))) if rows else None
        facts[f"list_length_p{percentile}"] = length
    return facts | {"list_length_max": counts["longest"] if rows else None}
