"""Measure how the values of a column differ between two samples.

Runs in: the process of `feedline profile --compare`. Pure. Measures:

- **PSI**, the population stability index (Siddiqi 2006, "Credit Risk Scorecards"; a symmetric Kullback-Leibler
  divergence): the sum over bins of (q - p) ln(q / p), with the shares p of the base and q of the other sample. Bins:
  tenths of the base's numbers, its most frequent values and all others, or tenths of its list lengths; nulls are a bin.
  Half a row is added to each bin, so that empty ones are finite. By custom, below 0.1 nothing has changed, and from
  0.25 on much has.
- **KS**, the Kolmogorov-Smirnov distance of two samples of numbers: the largest difference of their distribution
  functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

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
    found = []
    for sample in (base, other):
        some = sample.drop_nulls()
        own = some.filter(some.is_in(top.implode())).value_counts(name="rows")
        by_value = pl.DataFrame({"value": top}).join(own.rename({own.columns[0]: "value"}), on="value", how="left")
        frequent = by_value["rows"].fill_null(0).to_list()
        others = len(some) - sum(frequent)
        old = int(some.is_in(rest.implode()).sum()) if complete else others
        found.append(np.array([*frequent, old, others - old] if complete else [*frequent, others], np.int64))
    names = [f"value {index + 1}" for index in range(len(top))]
    names += ["others", "new"] if complete else ["others"]
    return _with_nulls(names, found[0], found[1], (base.null_count(), other.null_count()))


def _with_nulls(names: list[str], base: Counts, other: Counts, nulls: tuple[int, int]) -> BinnedCounts:
    return BinnedCounts(labels=(*names, "null"), base=(*base.tolist(), nulls[0]), other=(*other.tolist(), nulls[1]))


def missing_share(values: pl.Series, reference: pl.Series) -> float:
    """The share of values that are not null and that a reference lacks."""
    some = values.drop_nulls()
    if not len(some):
        return 0.0
    return 1 - int(some.is_in(reference.drop_nulls().unique().implode()).sum()) / len(some)
