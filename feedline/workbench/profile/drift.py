"""Compare two tables, or two parts of one, column by column: the drift between a base and another sample.

Runs in: the process of `feedline profile --compare`. Both samples are bounded, so drift below their noise is not seen:
of n rows each, an unchanged column has a PSI of about 2 bins / n.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.transforms.learning.statistics import finite_numbers
from feedline.warehouse.storage.parallel import in_threads
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts
from feedline.workbench.profile.table_sample import ProfileOptions, sample_table

# --------------------------------------------------------------------------------------------------------------------
# Measure how the values of a column differ between two samples. Measures: - **PSI**, the population stability index
# (Siddiqi 2006, "Credit Risk Scorecards"; a symmetric Kullback-Leibler divergence): the sum over bins of (q - p) ln(q
# / p), with the shares p of the base and q of the other sample. Bins: tenths of the base's numbers, its most frequent
# values and all others, or tenths of its list lengths; nulls are a bin. Half a row is added to each bin, so that
# empty ones are finite. By custom, below 0.1 nothing has changed, and from 0.25 on much has. - **KS**, the
# Kolmogorov-Smirnov distance of two samples of numbers: the largest difference of their distribution functions.

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

BINS = 10  # of numbers and lengths
_FREQUENT = 20  # values that have a bin of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class BinnedCounts:
    """Rows of two samples in the same bins. labels: of each bin, for people; values are not in them, but numbers."""

    labels: tuple[str, ...]
    base: tuple[int, ...]
    other: tuple[int, ...]

    @property
    def psi(self) -> float:
        """The population stability index of the bins."""
        return stability_index(np.array(self.base), np.array(self.other))


def stability_index(base: Counts, other: Counts) -> float:
    """PSI of counts in the same bins; 0 where one sample has no rows."""
    if not base.sum() or not other.sum():
        return 0.0
    p, q = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (base, other))
    return float(np.sum((q - p) * np.log(q / p)))


def distance(base: npt.NDArray[Any], other: npt.NDArray[Any]) -> float | None:
    """The Kolmogorov-Smirnov distance of two samples of finite numbers; None where one is empty."""
    if not len(base) or not len(other):
        return None
    base, other = np.sort(base), np.sort(other)
    both = np.concatenate([base, other])
    one = np.searchsorted(base, both, side="right") / len(base)
    two = np.searchsorted(other, both, side="right") / len(other)
    return float(np.abs(one - two).max())


def bin_numbers(base: npt.NDArray[Any], other: npt.NDArray[Any], nulls: tuple[int, int]) -> BinnedCounts:
    """Count finite numbers in tenths of the base, and nulls, each of the base and of the other sample. Numbers that
    fill a tenth alone are a bin of their own."""
    edges = np.unique(np.quantile(base, np.arange(1, BINS) / BINS, method="inverted_cdf")) if len(base) else base[:0]
    # bins are (-inf, e0], (e0, e1], ...; a last bin that holds no number of the base catches what is beyond it
    if len(edges) and edges[-1] == base.max():
        edges = edges[:-1] if len(edges) > 1 and base.max() > edges[-2] else edges
    counts = [
        np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1) for values in (base, other)
    ]
    names = [f"<= {edge:.6g}" for edge in edges.tolist()] + [f"> {edges[-1]:.6g}" if len(edges) else "any"]
    return _with_nulls(names, counts[0], counts[1], nulls)


def bin_values(base: pl.Series, other: pl.Series, *, complete: bool) -> BinnedCounts:
    """Count the base's most frequent values and all others; nulls are a bin. complete: the samples have all values of
    their tables: values that the base lacks are a bin of their own."""
    counts = base.drop_nulls().value_counts(name="rows").sort("rows", descending=True)
    values = counts.columns[0]
    top = counts.head(_FREQUENT)[values]
    rest = counts.slice(_FREQUENT)[values]
    bins = []
    for sample in (base, other):
        some = sample.drop_nulls().alias("value")
        by_value = pl.DataFrame({"value": top}).join(some.value_counts(name="rows"), on="value", how="left")
        frequent = by_value["rows"].fill_null(0).to_list()
        others = len(some) - sum(frequent)
        old = int(some.is_in(rest.implode()).sum()) if complete else others
        bins.append(np.array([*frequent, old, others - old] if complete else [*frequent, others], np.int64))
    names = [f"value {index + 1}" for index in range(len(top))]
    names += ["others", "new"] if complete else ["others"]
    return _with_nulls(names, bins[0], bins[1], (base.null_count(), other.null_count()))


def _with_nulls(names: list[str], base: Counts, other: Counts, nulls: tuple[int, int]) -> BinnedCounts:
    return BinnedCounts(labels=(*names, "null"), base=(*base.tolist(), nulls[0]), other=(*other.tolist(), nulls[1]))


def missing_share(values: pl.Series, reference: pl.Series) -> float:
    """The share of values that are not null and that a reference lacks."""
    some = values.drop_nulls()
    if not len(some):
        return 0.0
    return 1 - int(some.is_in(reference.drop_nulls().unique().implode()).sum()) / len(some)


# --------------------------------------------------------------------------------------------------------------------

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
        names = ("uri", "where", "rows", "selected_rows", "sampled", "skipped")
        facts = {"base": self.base.to_json(), "other": self.other.to_json()}
        sides = {side: {name: values[name] for name in names} for side, values in facts.items()}
        return {**sides, "columns": [dataclasses.asdict(column) for column in self.columns]}


def compare_tables(
    base: str | Sequence[str],
    other: str | Sequence[str],
    options: ProfileOptions,
    other_options: ProfileOptions,
) -> TableDrift:
    """Sample both, and compare them column by column. Raises as `profile_table`."""
    samples = sample_table(base, options), sample_table(other, other_options)
    facts = table_facts_of(samples[0], options), table_facts_of(samples[1], other_options)
    ones, twos = ({column.name: column for column in side.columns} for side in facts)
    read = [set(each.sample.rows.column_names) for each in samples]

    def compare(name: str) -> ColumnDrift:
        one, two = ones.get(name), twos.get(name)
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
    names = [name for name in dict.fromkeys([*ones, *twos]) if name not in chosen and name in read[0] | read[1]]
    drifts = sorted(in_threads(compare, names), key=lambda drift: -(drift.psi if drift.psi is not None else np.inf))
    return TableDrift(base=facts[0], other=facts[1], columns=tuple(drifts))


def _group(column: ColumnProfile) -> str:
    return "number" if column.role in ("numeric", "category") else column.role


def _drift_of_facts(one: ColumnProfile, two: ColumnProfile) -> ColumnDrift:
    def pair(part: str, name: str) -> Pair:
        parts = getattr(one, part), getattr(two, part)
        return tuple(None if each is None else getattr(each, name) for each in parts)  # type: ignore[return-value]

    return ColumnDrift(
        name=one.name,
        psi=0.0,
        nulls=(one.null_rate, two.null_rate),
        mean=pair("numbers", "mean"),
        median=pair("numbers", "median"),
        length=pair("lengths", "mean"),
        distinct=pair("vocabulary", "table"),
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
