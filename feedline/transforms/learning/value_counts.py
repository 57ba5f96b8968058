"""Count ids and strings, and make a vocabulary of them.

Observed and merged on the workers, finished in the process that fits. Pure. A state is a frame of `value` and `count`
with every value once, including null. Ids widen to int64 or uint64 and are counted by sorting and run lengths; strings
are hashed. The vocabulary takes two passes over the merged states: the first finds the lowest count within `max_size`,
the second collects the values, which have to fit into `max_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions.types import BINARY, INTEGER, STRING
from feedline.transforms.learning.learner import Artifact, Parts
from feedline.transforms.values.key_index import LARGEST, bytes_of_integers, bytes_of_strings

LAYOUT = 1
_TYPES: dict[str, pl.DataType] = {INTEGER: pl.Int64(), STRING: pl.String(), BINARY: pl.Binary()}
_LARGEST_SIGNED = 2**63 - 1
_FREQUENT_SHOWN = 5

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCounts:
    """Learns a vocabulary from the counts of values of one kind: `reserved` ids, then the values kept."""

    element: str
    min_count: int
    max_size: int | None
    reserved: int
    max_memory: int = field(compare=False)
    keys: tuple[str, ...] = ("value",)

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        values = columns[0].alias("value")
        if isinstance(values.dtype, pl.List):
            values = values.drop_nulls().explode(empty_as_null=False)
        if self.element != INTEGER:
            counts = values.to_frame().group_by("value").agg(pl.len().cast(pl.Int64).alias("count"))
            return counts.select("value", "count")
        if values.dtype not in (pl.Int64(), pl.UInt64()):
            values = values.cast(pl.Int64)
        runs = values.sort().rle()
        return pl.DataFrame([runs.struct.field("value"), runs.struct.field("len").cast(pl.Int64).alias("count")])

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        if self.element != INTEGER:
            return pl.concat(states).group_by("value").agg(pl.col("count").sum()).select("value", "count")
        ordered = pl.concat(_of_one_type(states)).sort("value")
        runs = ordered["value"].rle()
        # values 3, 3, 7 with counts 1, 2, 5: runs end at [1, 2], where counts have added up to [3, 8] -> [3, 5]
        last = np.cumsum(runs.struct.field("len").to_numpy(), dtype=np.int64) - 1
        sums = np.diff(np.cumsum(ordered["count"].to_numpy())[last], prepend=0)
        return pl.DataFrame([runs.struct.field("value"), pl.Series("count", sums)])

    def finish(self, parts: Parts) -> Artifact:
        tally = _tally(parts, self.element)
        kept_values = _keep(tally, self.min_count, self.max_size)
        self._check_memory(tally, kept_values)
        values = (
            _integers(parts, kept_values, tally.dtype)
            if self.element == INTEGER
            else _strings(parts, kept_values, tally.dtype)
        )
        counts = pl.Series("count", np.repeat(kept_values.counts, kept_values.sizes))
        covered = int(np.dot(kept_values.counts, kept_values.sizes))
        return self._artifact(pl.DataFrame([values, counts]), tally.rows, tally.nulls, tally.distinct, covered)

    def blank(self) -> Artifact:
        empty = pl.DataFrame(schema={"value": _TYPES[self.element], "count": pl.Int64()})
        return self._artifact(empty, 0, 0, 0, 0)

    def show(self, artifact: Artifact) -> dict[str, Any]:
        facts, table = artifact.facts, artifact.table
        assert table is not None
        top = table.slice(0, _FREQUENT_SHOWN).to_pydict()
        frequent = [f"{value} ({count:,})" for value, count in zip(top["value"], top["count"], strict=True)]
        rows = facts["seen"]
        return {
            "ids": facts["ids"],
            "values": facts["values"],
            "distinct values seen": facts["distinct"],
            "rarest kept": table["count"][-1].as_py() if table.num_rows else None,
            "values seen": rows,
            "nulls seen": facts["nulls"],
            "out of vocabulary": f"{1 - facts['covered'] / rows:.2%}" if rows else None,
            "most frequent": ", ".join(frequent),
        }

    def _artifact(self, table: pl.DataFrame, rows: int, nulls: int, distinct: int, covered: int) -> Artifact:
        facts = {
            "layout": LAYOUT,
            "ids": self.reserved + table.height,
            "values": table.height,
            "distinct": distinct,
            "seen": rows,
            "covered": covered,
            "nulls": nulls,
        }
        return Artifact(facts=facts, table=table.to_arrow())

    def _check_memory(self, tally: _Tally, kept_values: _KeptValues) -> None:
        count = int(kept_values.sizes.sum())
        texts = tally.text_bytes(kept_values)
        span = tally.largest - tally.smallest + 1
        table = bytes_of_integers(count, span) if self.element == INTEGER else bytes_of_strings(count, texts)
        size = table + 16 * count + texts
        ids = self.reserved + count
        if size > self.max_memory or ids > LARGEST:
            expected = f"{self.max_memory:,} bytes" if size > self.max_memory else f"{LARGEST:,} ids"
            raise DataError(
                f"the vocabulary is larger than {'max_memory' if size > self.max_memory else 'any can be'}: got "
                f"{count:,} values, {size:,} bytes, expected at most {expected}. Raise min_count, set max_size"
                f"{', or raise max_memory' if size > self.max_memory else ', or use hash_bucket'}"
            )


@dataclass(frozen=True, kw_only=True)
class _Tally:
    """The result of the first pass. by_count: the number of `values` and their `bytes` per `count`, descending."""

    by_count: pl.DataFrame
    nulls: int
    smallest: int
    largest: int
    dtype: pl.DataType

    @cached_property
    def distinct(self) -> int:
        return int(self.by_count["values"].sum())

    @cached_property
    def rows(self) -> int:
        return int((self.by_count["count"] * self.by_count["values"]).sum())

    def text_bytes(self, kept_values: _KeptValues) -> int:
        """The bytes of the kept strings; for those as frequent as the rarest one, an estimate by their mean."""
        groups = self.by_count.head(len(kept_values.sizes))
        whole = int(groups["bytes"].sum())
        if not kept_values.cut:
            return whole
        rarest, values = int(groups["bytes"][-1]), int(groups["values"][-1])
        return whole - rarest + rarest * int(kept_values.sizes[-1]) // values


@dataclass(frozen=True, kw_only=True)
class _KeptValues:
    """The number of values kept (`sizes`) of each count (`counts`, descending); cut: not all of the lowest count."""

    counts: Integers
    sizes: Integers
    cut: bool


def _tally(parts: Parts, element: str) -> _Tally:
    lengths = pl.lit(0, dtype=pl.Int64)
    if element != INTEGER:
        length = pl.col("value").str.len_bytes() if element == STRING else pl.col("value").bin.size()
        lengths = length.cast(pl.Int64).sum()
    tallies, nulls, dtypes = [], 0, []
    smallest, largest = 0, -1
    for part in parts:
        rows = part.drop_nulls("value")
        nulls += int(part["count"].sum()) - int(rows["count"].sum())
        by_count = rows.group_by("count").agg(pl.len().cast(pl.Int64).alias("values"), lengths.alias("bytes"))
        tallies.append(by_count)
        dtypes.append(part["value"].dtype)
        if element == INTEGER and rows.height:
            low, high = _range(rows)
            first = largest < smallest
            smallest, largest = (low, high) if first else (min(low, smallest), max(high, largest))
    total = pl.concat(tallies).group_by("count").agg(pl.col("values", "bytes").sum()).sort("count", descending=True)
    dtype = _TYPES[element]
    if element == INTEGER and largest > _LARGEST_SIGNED:
        if smallest < 0:
            raise _too_wide(smallest, largest)
        dtype = pl.UInt64()
    return _Tally(by_count=total, nulls=nulls, smallest=smallest, largest=largest, dtype=dtype)


def _keep(tally: _Tally, min_count: int, max_size: int | None) -> _KeptValues:
    often = tally.by_count.filter(pl.col("count") >= min_count)
    counts, sizes = often["count"].to_numpy(), often["values"].to_numpy().copy()
    ends = np.cumsum(sizes)
    if max_size is None or not len(ends) or ends[-1] <= max_size:
        return _KeptValues(counts=counts, sizes=sizes, cut=False)
    last = int(np.searchsorted(ends, max_size))
    excess = int(ends[last]) - max_size
    sizes[last] -= excess
    return _KeptValues(counts=counts[: last + 1], sizes=sizes[: last + 1], cut=excess > 0)


def _integers(parts: Parts, kept_values: _KeptValues, dtype: pl.DataType) -> pl.Series:
    """The kept ids in order, without further memory: each is written directly to the range of its count."""
    wide = np.dtype(np.uint64 if dtype == pl.UInt64() else np.int64)
    values = np.empty(int(kept_values.sizes.sum()), dtype=wide)
    ends = np.cumsum(kept_values.sizes)
    if not len(ends):
        return pl.Series("value", values)
    free = ends - kept_values.sizes
    rarest, ties = int(kept_values.counts[-1]), _Smallest(int(kept_values.sizes[-1]), wide)
    for part in parts:
        rows = part.filter(pl.col("value").is_not_null(), pl.col("count") >= rarest)
        if kept_values.cut:
            ties.add(rows.filter(pl.col("count") == rarest)["value"].cast(dtype).to_numpy())
            rows = rows.filter(pl.col("count") > rarest)
        ordered = rows.sort("count", descending=True)
        group = len(kept_values.counts) - 1 - np.searchsorted(kept_values.counts[::-1], ordered["count"].to_numpy())
        first, sizes = np.unique(group, return_index=True, return_counts=True)[1:]
        positions = np.arange(len(group)) + np.repeat(free[group[first]] - first, sizes)
        values[positions] = ordered["value"].cast(dtype).to_numpy()
        free[group[first]] += sizes
    if kept_values.cut:
        values[len(values) - ties.count :] = ties.take()
    for start, end in zip((ends - kept_values.sizes).tolist(), ends.tolist(), strict=True):
        values[start:end].sort()
    return pl.Series("value", values)


class _Smallest:
    """The smallest of many numbers, by a bounded buffer."""

    def __init__(self, count: int, dtype: np.dtype[Any]) -> None:
        self.count = count
        self._held = np.empty(0, dtype=dtype)

    def add(self, values: npt.NDArray[Any]) -> None:
        self._held = np.concatenate((self._held, values))
        if len(self._held) > 2 * self.count:  # each cut drops half of the buffer, so a number is examined few times
            self._held = self.take()

    def take(self) -> npt.NDArray[Any]:
        if len(self._held) <= self.count:
            return self._held
        return np.partition(self._held, self.count - 1)[: self.count].copy()


def _strings(parts: Parts, kept_values: _KeptValues, dtype: pl.DataType) -> pl.Series:
    """The kept strings in order; Polars compares them by their bytes."""
    if not len(kept_values.sizes):
        return pl.Series("value", [], dtype=dtype)
    rarest, ties = int(kept_values.counts[-1]), int(kept_values.sizes[-1])
    often = [pl.DataFrame(schema={"value": dtype, "count": pl.Int64()})]
    rare = often[0]
    for part in parts:
        rows = part.filter(pl.col("value").is_not_null(), pl.col("count") >= rarest)
        if kept_values.cut:
            rare = pl.concat([rare, _alone(rows.filter(pl.col("count") == rarest))])
            if rare.height > 2 * ties:
                rare = _alone(rare.sort("value").head(ties))
            rows = rows.filter(pl.col("count") > rarest)
        often.append(_alone(rows))
    ordered = pl.concat(often).sort("count", "value", descending=[True, False])["value"]
    return ordered.append(rare.sort("value").head(ties)["value"]).rechunk() if kept_values.cut else ordered.rechunk()


def _alone(rows: pl.DataFrame) -> pl.DataFrame:
    """Copy rows with their own strings only: Polars would keep those of all rows that they were filtered from."""
    return pl.DataFrame(rows.to_arrow())


def _of_one_type(states: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """States of int64 and uint64 in a type that holds both. Raises DataError if there is none."""
    if len({state["value"].dtype for state in states}) < 2:
        return list(states)
    ranges = [_range(state) for state in states]
    smallest, largest = min(low for low, _ in ranges), max(high for _, high in ranges)
    if smallest < 0 and largest > _LARGEST_SIGNED:
        raise _too_wide(smallest, largest)
    dtype = pl.Int64() if smallest < 0 else pl.UInt64()
    return [state.with_columns(pl.col("value").cast(dtype)) for state in states]


def _range(state: pl.DataFrame) -> tuple[int, int]:
    low, high = state.select(pl.col("value").min().alias("low"), pl.col("value").max().alias("high")).row(0)
    return low or 0, high or 0


def _too_wide(smallest: int, largest: int) -> DataError:
    return DataError(
        f"a vocabulary's ids must fit int64 or uint64 together: got {smallest} and {largest}. "
        "Give the features vocabularies of their own, or put hash_bucket before them"
    )
