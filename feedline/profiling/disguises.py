"""Correlate the columns of a sample with its label, and find those that are the label in disguise.

Runs in: the process that profiles. Pure. A column seems to be the label in disguise if it, its nulls, or the lengths of
its lists tell the label nearly always: by the area under the ROC curve of a binary label (its distance from a half),
by the uncertainty coefficient of few values (Theil 1970: the share of the label's entropy that they take away), or by
Pearson's correlation with another label.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]

_AUC, _UNCERTAINTY, _PEARSON = 0.99, 0.98, 0.9999
_LEAST_ROWS = 50  # with a label; fewer say nothing
_LEAST_CLASS = 5  # rows of the rarer value of a binary label
_ROWS = 32_768  # compared, about: every so many of the sample's
_ROWS_PER_VALUE = 8  # of columns whose values are taken one by one


class LabelValues:
    """A label's values, and measures of other columns against them. is_binary: 0 and 1 alone; is_usable: it varies,
    and enough rows have it."""

    def __init__(self, label: pl.Series) -> None:
        self._step = max(len(label) // _ROWS, 1)
        values = _floats(label.gather_every(self._step))
        self._valid = np.isfinite(values)
        self._values = values[self._valid]
        self._nulls = np.isnan(values)
        self.is_binary = bool(np.isin(self._values, (0.0, 1.0)).all())
        rarer = min(np.count_nonzero(self._values == 0), np.count_nonzero(self._values == 1)) if self.is_binary else 0
        varies = rarer >= _LEAST_CLASS if self.is_binary else len(np.unique(self._values)) > 1
        self.is_usable = len(self._values) >= _LEAST_ROWS and bool(varies)

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
            found = found or self._by_numbers(values, label, what)
            return found, None if column.dtype.is_nested() else pearson(values, label)
        if not self.is_binary or column.dtype.is_nested() or distinct * _ROWS_PER_VALUE > len(self._values):
            return found, None
        counts = self._counts(column)
        return found or _by_values(*counts), cramers_v(*counts)

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

    def _by_numbers(self, values: Floats, label: Floats, what: str) -> str | None:
        if len(values) == len(self._values) and (values == label).all():
            return f"{what} is equal to the label in every row"
        if not self.is_binary:
            found = pearson(values, label)
            if found is None or abs(found) < _PEARSON:
                return None
            return f"{what} tells the label: the correlation is {found:.5f}"
        _, value, rows = np.unique(values, return_inverse=True, return_counts=True)
        ones: Floats = np.bincount(value, label, len(rows)).astype(np.float64)
        zeros = rows.astype(np.float64) - ones
        if min(zeros.sum(), ones.sum()) < _LEAST_CLASS:
            return None
        area = roc_area(zeros, ones)
        if area is not None and max(area, 1 - area) >= _AUC:
            return f"{what} tells the label: the area under its ROC curve is {max(area, 1 - area):.4f}"
        return _by_values(zeros, ones) if len(rows) * _ROWS_PER_VALUE <= len(values) else None

    def _counts(self, column: pl.Series) -> tuple[Floats, Floats]:
        """Rows with label 0 and 1 by value of a column."""
        label = pl.Series("label", self._values)
        grouped = pl.DataFrame([column.filter(pl.Series(self._valid)).alias("value"), label]).group_by("value")
        found = grouped.agg(pl.len().alias("rows"), pl.col("label").sum().alias("ones")).sort("value")
        ones = found["ones"].to_numpy()
        return found["rows"].to_numpy().astype(np.float64) - ones, ones


def _by_values(zeros: Floats, ones: Floats) -> str | None:
    share = uncertainty(zeros, ones)
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


def roc_area(zeros: Floats, ones: Floats) -> float | None:
    """The area under the ROC curve, by rows with label 0 and 1 per value, ascending: how probably a one has the larger
    value, ties by half (Mann and Whitney). None without ones or zeros."""
    pairs = float(zeros.sum()) * float(ones.sum())
    if not pairs:
        return None
    return float(np.sum(ones * (np.cumsum(zeros) - zeros / 2))) / pairs


def cramers_v(zeros: Floats, ones: Floats) -> float | None:
    """Cramer's V of a label of 0 and 1 and the values of a column, by rows per value."""
    rows, total = zeros + ones, float(zeros.sum() + ones.sum())
    share = float(ones.sum()) / total
    if not 0 < share < 1 or len(rows) < 2:
        return None
    expected = ((ones, rows * share), (zeros, rows * (1 - share)))
    chi = sum(float(np.sum((side - mean) ** 2 / mean)) for side, mean in expected)
    return math.sqrt(chi / total)


def uncertainty(zeros: Floats, ones: Floats) -> float | None:
    """The share of a label's entropy that the values of a column take away, by rows per value; None of a constant."""
    rows, total = zeros + ones, float(zeros.sum() + ones.sum())
    whole = float(_entropy(np.array([zeros.sum(), ones.sum()]) / total))
    if not whole:
        return None
    left = float(np.sum(rows / total * _entropy(np.stack([zeros, ones]) / rows)))
    return 1 - left / whole


def _entropy(shares: Floats) -> Floats:
    """The entropy of shares of two values: float64 [2] to a scalar, [2, values] to [values]."""
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    found: Floats = -np.sum(shares * logs, axis=0)
    return found
