"""Measure the numbers of a column: moments, quantiles, shares of zeros and of what is not finite, a histogram.

Runs in: the process that profiles. Pure. Quantiles are numbers of the column: the smallest that is not below its share
of all of them (the inverted distribution function).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.transforms.learning.statistics import finite_numbers
from feedline.workbench.profile.table_facts import QUANTILES, Histogram, Number, NumberFacts

BINS = 20
_FAR = 2.0  # widths of the middle 98 % of numbers from which on those beyond are far out
_SKEWED = 2.0  # from this skewness on, a histogram of positive numbers has edges that grow by a factor
Values = npt.NDArray[Any]


def number_facts(series: pl.Series) -> NumberFacts | None:
    """Measure a column of numbers or Booleans, or of lists of them; None without any value that is not null."""
    if series.dtype == pl.Boolean:
        series = series.cast(pl.Int8)
    numbers = finite_numbers(series)
    values, count = numbers.values, len(numbers.values) + numbers.nonfinite
    if not count:
        return None
    nans = int(series.is_nan().sum()) if series.dtype.is_float() and numbers.nonfinite else 0
    if series.dtype.is_nested() and numbers.nonfinite:
        nans = int(series.explode(empty_as_null=False, keep_nulls=False).is_nan().sum())
    mean, std, skewness = moments(values)
    return NumberFacts(
        min=_number(values.min()) if len(values) else None,
        max=_number(values.max()) if len(values) else None,
        mean=mean,
        std=std,
        skewness=skewness,
        quantiles=quantiles_of(values, QUANTILES),
        zero_rate=np.count_nonzero(values == 0) / count,
        negative_rate=np.count_nonzero(values < 0) / count,
        nan_rate=nans / count,
        inf_rate=(numbers.nonfinite - nans) / count,
        histogram=histogram_of(values, skewness),
    )


def moments(values: Values) -> tuple[float | None, float | None, float | None]:
    """Mean, standard deviation (of the population) and skewness; None where they exceed float64."""
    if not len(values):
        return None, None, None
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        mean = float(wide.mean())
        off = wide - mean
        squares = off * off
        std = float(np.sqrt(np.mean(squares)))
        if not math.isfinite(mean) or not math.isfinite(std):
            return (mean if math.isfinite(mean) else None), None, None
        # a constant's deviations are rounding errors of its mean
        if std <= 1e-12 * abs(mean):
            return mean, 0.0 if values.min() == values.max() else std, 0.0
        off /= std
        squares /= std * std
        skewness = float(np.mean(off * squares))  # `** 3` takes ten times as long
    return mean, std, skewness if math.isfinite(skewness) else None


def quantiles_of(values: Values, shares: tuple[float, ...]) -> tuple[Number, ...]:
    """The values at these shares of the sorted ones; none of no values."""
    if not len(values):
        return ()
    # a share of 0.05 is a little more than a twentieth: the rank of 1,000 values would be one too high
    ranks = [max(math.ceil(share * len(values) - 1e-9) - 1, 0) for share in shares]
    ordered = np.partition(values, sorted(set(ranks)))
    return tuple(_number(ordered[rank]) for rank in ranks)


def histogram_of(values: Values, skewness: float | None) -> Histogram | None:
    """Counts of finite numbers in `BINS` bins, or fewer for few integers; None where there is no range."""
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    width = high - low
    if not math.isfinite(width):
        return None
    if low == high:
        return Histogram(edges=(low, high), counts=(len(values),))
    positive = values[values > 0] if low >= 0 and (skewness or 0) > _SKEWED else values[:0]
    log = len(positive) > 0 and float(positive.max()) / float(positive.min()) > BINS
    if log:
        edges = np.geomspace(float(positive.min()), high, BINS if low == 0 else BINS + 1)
        edges = np.concatenate([[0.0], edges]) if low == 0 else edges
    else:
        whole = values.dtype.kind in "iu" and width < BINS
        edges = np.arange(low, high + 2) - 0.5 if whole else _edges(values, low, high)
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    edges = np.unique(edges)  # of numbers that are a few units of the last place apart, some edges are equal
    counts, _ = np.histogram(values.astype(np.float64), edges)
    return Histogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()), log=bool(log))


def _edges(values: Values, low: float, high: float) -> npt.NDArray[np.float64]:
    """Edges of equal steps; where few numbers are far out, steps within the middle, and two bins for what is beyond."""
    first, last = (float(edge) for edge in quantiles_of(values, (0.01, 0.99)))
    if not first < last or high - low < _FAR * (last - first):
        return np.linspace(low, high, BINS + 1)
    return np.concatenate([[low], np.linspace(first, last, BINS - 1), [high]])


def _number(value: Any) -> Number:
    number: Number = value.item()
    return number + 0  # of -0.0 and 0.0, always 0.0
