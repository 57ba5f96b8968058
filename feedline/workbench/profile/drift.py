"""Compare two tables, or two parts of one, column by column: the drift between a base and another sample.

Runs in: the process of `feedline profile --compare`. Both samples are bounded, so drift below their noise is not seen:
of n rows each, an unchanged column has a PSI of about 2 bins / n.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from feedline.transforms.learning.statistics import finite_numbers
from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.drift_measures import BinnedCounts, bin_numbers, bin_values, distance, missing_share
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts
from feedline.workbench.profile.table_sample import (
    ProfileOptions,
    TableSample,
    sample_table,
)

_SATURATED = 1.05  # a sample has all values of its table, if the estimate for the table is at most so much larger
Pair = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """How a column differs. Pairs: of the base and of the other sample; None: unknown, or it has none.

    psi: the largest PSI of its values, of its list lengths and of its lists' elements; None where the samples cannot be
    compared: `note` says why. ks: of numbers. new: the share of the other sample's values that the base lacks;
    vanished: of the base's that the other lacks; None where the samples do not hold all values. bins: those of `psi`.
    """

    name: str
    psi: float | None
    note: str | None = None
    ks: float | None = None
    nulls: Pair = (None, None)
    mean: Pair = (None, None)
    median: Pair = (None, None)
    length: Pair = (None, None)
    distinct: Pair = (None, None)
    new: float | None = None
    vanished: float | None = None
    bins: BinnedCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDrift:
    """The drift of all columns of which rows were read, the largest first; those that cannot be compared come before
    all. base, other: the facts of both."""

    base: TableFacts
    other: TableFacts
    columns: tuple[ColumnDrift, ...]

    def above(self, limit: float) -> tuple[ColumnDrift, ...]:
        """The columns whose PSI exceeds a limit, and those that cannot be compared."""
        return tuple(column for column in self.columns if column.psi is None or column.psi > limit)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document, without the columns' facts."""
        sides = {}
        for side in ("base", "other"):
            facts = getattr(self, side).to_json()
            sides[side] = {
                name: facts[name] for name in ("uri", "where", "rows", "selected_rows", "sampled", "skipped")
            }
        return {**sides, "columns": [dataclasses.asdict(column) for column in self.columns]}


def compare_tables(
    base: str | Sequence[str],
    other: str | Sequence[str],
    options: ProfileOptions,
    other_options: ProfileOptions,
) -> TableDrift:
    """Sample both, and compare them column by column. Raises as `profile_table`."""
    samples = sample_table(base, options), sample_table(other, other_options)
    facts = (
        table_facts_of(samples[0], options),
        table_facts_of(samples[1], other_options),
    )
    return drift_between(samples, facts)


def drift_between(samples: tuple[TableSample, TableSample], facts: tuple[TableFacts, TableFacts]) -> TableDrift:
    """Compare two samples, whose facts are known."""
    base, other = ({column.name: column for column in side.columns} for side in facts)
    read = [set(each.sample.rows.column_names) for each in samples]

    def compare(name: str) -> ColumnDrift:
        one, two = base.get(name), other.get(name)
        if one is None or two is None:
            return ColumnDrift(name=name, psi=None, note=f"only in the {'other' if one is None else 'base'}")
        if _group(one) != _group(two) and not (one.all_null or two.all_null):
            return ColumnDrift(name=name, psi=None, note=f"{one.type} in the base, {two.type} in the other")
        drift = _drift_of_facts(one, two)
        if name not in read[0] or name not in read[1] or not (one.rows and two.rows):
            return replace(drift, psi=None, note="no rows were sampled")
        columns = tuple(frame_column(each.sample.rows[name]) for each in samples)
        return _drift_of_values(drift, one, two, columns[0], columns[1])

    chosen = frozenset[str]().union(*(each.where.columns for each in samples if each.where is not None))
    names = [name for name in dict.fromkeys([*base, *other]) if name not in chosen and name in read[0] | read[1]]
    found = list(in_threads(compare, names))
    order = sorted(found, key=lambda drift: -(drift.psi if drift.psi is not None else np.inf))
    return TableDrift(base=facts[0], other=facts[1], columns=tuple(order))


def _group(column: ColumnProfile) -> str:
    """What columns have to have in common to be compared."""
    return "number" if column.role in ("numeric", "category") else column.role


def _drift_of_facts(one: ColumnProfile, two: ColumnProfile) -> ColumnDrift:
    def pair(take: Any) -> Pair:
        return take(one), take(two)

    return ColumnDrift(
        name=one.name,
        psi=0.0,
        nulls=pair(lambda each: each.null_rate),
        mean=pair(lambda each: None if each.numbers is None else each.numbers.mean),
        median=pair(lambda each: None if each.numbers is None else each.numbers.median),
        length=pair(lambda each: None if each.lengths is None else each.lengths.mean),
        distinct=pair(lambda each: None if each.vocabulary is None else each.vocabulary.table),
    )


def _drift_of_values(
    drift: ColumnDrift, one: ColumnProfile, two: ColumnProfile, base: pl.Series, other: pl.Series
) -> ColumnDrift:
    nulls = base.null_count(), other.null_count()
    bins = [_bin_nulls(len(base), len(other), nulls)]
    if one.role == "list":
        lists = _lists(base), _lists(other)
        lengths = [each.list.len().to_numpy() for each in lists]
        bins.append(bin_numbers(lengths[0], lengths[1], nulls))
        base, other = (each.explode(empty_as_null=False, keep_nulls=False) for each in lists)
    compared = one.role in ("numeric", "category", "string", "list") and not (one.id_like and two.id_like)
    if compared and not isinstance(base.dtype, pl.Struct):
        drift, values = _compare_values(drift, one, two, base, other)
        bins.append(values)
    most = max(bins, key=lambda each: each.psi)
    return replace(drift, psi=most.psi, bins=most)


def _compare_values(
    drift: ColumnDrift, one: ColumnProfile, two: ColumnProfile, base: pl.Series, other: pl.Series
) -> tuple[ColumnDrift, BinnedCounts]:
    """The drift of single values, and their bins."""
    nulls = base.null_count(), other.null_count()
    if base.dtype.is_numeric() and other.dtype.is_numeric():
        numbers = finite_numbers(base).values, finite_numbers(other).values
        drift = replace(drift, ks=distance(*numbers))
        if one.role == "numeric" or not base.dtype.is_integer():
            return drift, bin_numbers(*numbers, nulls)
    if base.dtype != other.dtype:
        base, other = (each.cast(pl.Int64 if each.dtype.is_numeric() else pl.String) for each in (base, other))
    sizes = [side.vocabulary.table / max(side.vocabulary.sample, 1) for side in (one, two) if side.vocabulary]
    complete = len(sizes) == 2 and max(sizes) <= _SATURATED
    if complete:
        drift = replace(drift, new=missing_share(other, base), vanished=missing_share(base, other))
    return drift, bin_values(base, other, complete=complete)


def _bin_nulls(base: int, other: int, nulls: tuple[int, int]) -> BinnedCounts:
    values = (base - nulls[0], other - nulls[1])
    return BinnedCounts(labels=("value", "null"), base=(values[0], nulls[0]), other=(values[1], nulls[1]))


def _lists(column: pl.Series) -> pl.Series:
    if isinstance(column.dtype, pl.Array):
        column = column.cast(pl.List(column.dtype.inner))
    return column.drop_nulls()
