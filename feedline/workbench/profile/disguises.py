"""Correlate the columns of a sample with its label, and find those that are the label in disguise.

Runs in: the process that profiles. Pure. A column seems to be the label in disguise if it, its nulls, or the lengths of
its lists tell the label nearly always: by the area under the ROC curve of a binary label (its distance from a half),
by Pearson's or Spearman's correlation with another label, or by the uncertainty coefficient of few values and a label
of few values (Theil 1970: the share of the label's entropy that they take away). A label of strings is one of classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_AUC, _UNCERTAINTY, _PEARSON, _SPEARMAN = 0.99, 0.98, 0.9999, 0.9999
_LEAST_ROWS = 50  # with a label; fewer say nothing
_LEAST_CLASS = 5  # rows of other values of a label than its most frequent one
_NEARLY = 0.05  # Pearson's correlation of numbers whose ranks may be alike: less is that of few extreme ones
_ROWS = 32_768  # compared, about: every so many of the sample's
_ROWS_PER_VALUE = 8  # of columns whose values are taken one by one
_MOST_CLASSES = 100  # of a label whose values are taken one by one


class LabelValues:
    """A label's values, and measures of other columns against them. is_binary: 0 and 1 alone, or two strings;
    has_classes: few values; is_usable: it varies, and enough rows have it; strings need few values, too."""

    def __init__(self, label: pl.Series) -> None:
        self._step = max(len(label) // _ROWS, 1)
        label = label.gather_every(self._step)
        is_named = not (label.dtype.is_numeric() or label.dtype == pl.Boolean)
        values = _floats(label.rank("dense").cast(pl.Int64) - 1 if is_named else label)
        self._valid = np.isfinite(values)
        self._values = values[self._valid]
        self._nulls = np.isnan(values)
        self.is_binary = bool(np.isin(self._values, (0.0, 1.0)).all())
        _, self._classes, rows = np.unique(self._values, return_inverse=True, return_counts=True)
        self._class_count = len(rows)
        self.has_classes = self._class_count <= _MOST_CLASSES
        self.is_usable = len(self._values) >= _LEAST_ROWS and _varies(rows) and (self.has_classes or not is_named)
        self._is_nominal = is_named and not self.is_binary  # the order of its values means nothing

    def compare(self, column: pl.Series, distinct: int) -> tuple[str | None, float | None]:
        """Why a column seems to be the label in disguise (None if it does not), and its correlation with the label:
        Pearson's of numbers and Booleans, Cramer's V of strings. distinct: the values that it has, about."""
        column = column.gather_every(self._step) if self._step > 1 else column
        what, numbers = "it", None
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            numbers = _floats(column)[self._valid]
        elif isinstance(column.dtype, pl.List):
            what, numbers = "the length of its lists", _floats(column.list.len())[self._valid]
        found = self._by_nulls(column) if column.null_count() else None
        if numbers is not None:
            finite = np.isfinite(numbers)
            if np.count_nonzero(finite) < _LEAST_ROWS:
                return found, None
            values, label = numbers[finite], self._values[finite]
            found = found or self._by_numbers(values, finite, what)
            if column.dtype.is_nested():
                return found, None
            if self._is_nominal:
                return found, correlation_ratio(values, self._classes[finite])
            return found, pearson(values, label)
        if not self.has_classes or column.dtype.is_nested() or distinct * _ROWS_PER_VALUE > len(self._values):
            return found, None
        counts = self._counts(column.filter(pl.Series(self._valid)).rank("dense").fill_null(0).to_numpy())
        return found or _by_values(counts), cramers_v(counts)

    def shared_nulls(self, column: pl.Series) -> float | None:
        """Pearson's correlation of the nulls of a column with those of the label; None where one has none."""
        if not column.null_count() or not self._nulls.any():
            return None
        nulls = column.gather_every(self._step).is_null().to_numpy().astype(np.float64)
        return pearson(nulls, self._nulls.astype(np.float64))

    def _by_nulls(self, column: pl.Series) -> str | None:
        nulls = column.is_null().to_numpy()[self._valid]
        if not self.is_binary or min(np.count_nonzero(nulls), np.count_nonzero(~nulls)) < _LEAST_CLASS:
            return None
        found = pearson(nulls.astype(np.float64), self._values)
        if found is None or abs(found) < 2 * _AUC - 1:
            return None
        return f"it has values nearly only where the label is {1 if found < 0 else 0}"

    def _by_numbers(self, values: Floats, finite: Flags, what: str) -> str | None:
        label = self._values[finite]
        if len(values) == len(self._values) and (values == label).all():
            return f"{what} is equal to the label in every row"
        if not _varies(np.bincount(self._classes[finite])):
            return None
        if not self.is_binary:
            found = pearson(values, label)
            if found is not None and abs(found) >= _PEARSON and not self._is_nominal:
                return f"{what} tells the label: the correlation is {found:.5f}"
            found = pearson(_ranks(values), _ranks(label)) if self._is_likely(found) else None
            if found is not None and abs(found) >= _SPEARMAN:
                return f"{what} tells the label: the correlation of ranks is {found:.5f}"
        if not self.has_classes:
            return None
        distinct, value = np.unique(values, return_inverse=True)
        is_few = len(distinct) * _ROWS_PER_VALUE <= len(values)
        if not (self.is_binary or is_few):
            return None
        counts = self._counts(value, finite)
        area = roc_area(*counts) if self.is_binary else None
        if area is not None and max(area, 1 - area) >= _AUC:
            return f"{what} tells the label: the area under its ROC curve is {max(area, 1 - area):.4f}"
        return _by_values(counts) if is_few else None

    def _is_likely(self, correlation: float | None) -> bool:
        """Whether ranks may be alike where values have this correlation: numbers rise with each other, about."""
        return not self.has_classes and (correlation is None or abs(correlation) >= _NEARLY)

    def _counts(self, value: npt.NDArray[np.integer[Any]], rows: Flags | slice = slice(None)) -> Floats:
        """Rows by value of the label and of a column: float64 [classes, values]. value: [rows], numbered from 0."""
        size = int(value.max()) + 1
        cells = np.bincount(self._classes[rows] * size + value, minlength=self._class_count * size)
        return cells.astype(np.float64).reshape(self._class_count, size)


def _varies(rows: npt.NDArray[Any]) -> bool:
    """Whether enough rows have another value than the most frequent one. rows: by value."""
    return bool(rows.sum() - rows.max(initial=0) >= _LEAST_CLASS)


def _by_values(counts: Floats) -> str | None:
    share = uncertainty(counts)
    if share is None or share < _UNCERTAINTY:
        return None
    return f"its values tell the label: they take away {share:.2%} of its entropy"


def _floats(column: pl.Series) -> Floats:
    """Numbers as float64, nulls as NaN."""
    values: Floats = column.cast(pl.Float64).to_numpy()
    return values


def pearson(one: Floats, other: Floats) -> float | None:
    """Pearson's correlation; None where one of them does not vary, or exceeds float64."""
    with np.errstate(all="ignore"):
        left, right = one - one.mean(), other - other.mean()
        # no `np.dot`: the threads of BLAS take longer to start than this
        size = float(np.sum(left * left)) * float(np.sum(right * right))
        found = float(np.sum(left * right)) / math.sqrt(size or math.nan)
    return found if math.isfinite(size) and math.isfinite(found) else None


def correlation_ratio(values: Floats, classes: npt.NDArray[np.integer[Any]]) -> float | None:
    """The root of the share of the variance of numbers that classes tell; None where they do not vary."""
    rows, off = np.bincount(classes), values - values.mean()
    sums = np.bincount(classes, weights=off)
    with np.errstate(all="ignore"):
        share = float(np.sum(sums[rows > 0] ** 2 / rows[rows > 0]) / np.sum(off * off))
    return math.sqrt(min(share, 1.0)) if math.isfinite(share) else None


def _ranks(values: Floats) -> Floats:
    """The mean rank of each value among equal ones."""
    # [7, 3, 7] -> [2.5, 1, 2.5]
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def roc_area(zeros: Floats, ones: Floats) -> float | None:
    """The area under the ROC curve, by rows with label 0 and 1 per value, ascending: how probably a one has the larger
    value, ties by half (Mann and Whitney). None without ones or zeros."""
    # zeros [2, 1] and ones [0, 1] of two values: the one is above two zeros and level with one -> 2.5 / 3
    pairs = float(zeros.sum()) * float(ones.sum())
    if not pairs:
        return None
    return float(np.sum(ones * (np.cumsum(zeros) - zeros / 2))) / pairs


def cramers_v(counts: Floats) -> float | None:
    """Cramer's V of a label and a column. counts: rows by value of both, float64 [classes, values]."""
    counts = counts[np.ix_(counts.any(axis=1), counts.any(axis=0))]
    if min(counts.shape) < 2:
        return None
    total = float(counts.sum())
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    chi = float(np.sum((counts - expected) ** 2 / expected))
    return math.sqrt(chi / (total * (min(counts.shape) - 1)))


def uncertainty(counts: Floats) -> float | None:
    """The share of a label's entropy that the values of a column take away; None of a constant label. counts: rows by
    value of both, float64 [classes, values]."""
    values, total = counts.sum(axis=0), float(counts.sum())
    whole = float(_entropy(counts.sum(axis=1) / total))
    if not whole:
        return None
    left = float(np.sum(values / total * _entropy(counts / np.maximum(values, 1))))
    return 1 - left / whole


def _entropy(shares: Floats) -> Floats:
    """The entropy of shares: float64 [classes] to a scalar, [classes, values] to [values]."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    found: Floats = -np.sum(shares * logs, axis=0)
    return found
