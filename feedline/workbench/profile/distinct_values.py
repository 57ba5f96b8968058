"""Count the distinct values of a sample, and estimate those of the table that it was taken of.

Runs in: the process that profiles. Pure. A sample has runs of rows, and values that repeat within a run say little
about the rest of the table. So the estimate is the one for samples of places. With T runs, S distinct values, Q1 of
them in one run and Q2 in two, the values that any number of further runs would have are at least

    Q0 = (T - 1) / T * Q1 (Q1 - 1) / (2 (Q2 + 1))

(Chao 1987, "Estimating the population size for capture-recapture data with unequal catchability", Biometrics 43), and
those of the table, which is as large as T + t runs, are

    table = S + Q0 (1 - (1 - Q1 / (T Q0 + Q1))^t)

(Colwell et al. 2012, "Models and estimators linking individual-based and sample-based rarefaction, extrapolation and
comparison of assemblages", Journal of Plant Ecology 5); where no run shares a value with another, it is as many times S
as the table has rows of the sample. The standard error is Chao's of Q0, of the ratio Q1 / Q2, times
the part of Q0 that is in the table, and at most 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.expressions.moments import python_values
from feedline.workbench.profile.table_facts import DistinctCount, FrequentValue

_FREQUENT = 5  # values whose shares are kept
Runs = npt.NDArray[np.int64]


def count_distinct(values: pl.Series, runs: Runs | None, table_rows: int) -> tuple[DistinctCount, pl.DataFrame]:
    """Count the values that are not null; returns each with its count as well: `value`, `count`, in any order.

    runs: int64 [values], the run of the sample that each is of (None: all rows of the table were read); where all are
    of one run, rows are runs.
    """
    values, growth = values.alias("value"), max(table_rows / max(len(values), 1), 1.0)
    if values.null_count():
        runs = None if runs is None else runs[values.is_not_null().to_numpy()]
        values = values.drop_nulls()
    counts = values.value_counts(name="count")
    sample = counts.height
    once = int(np.count_nonzero(counts["count"].to_numpy() == 1))
    table, error = sample, 0.0
    if runs is not None and len(values):
        table, error = _estimate(values, runs if runs[0] != runs[-1] else np.arange(len(runs)), sample, growth)
    return DistinctCount(sample=sample, table=table, error=error, once=once / max(sample, 1)), counts


def frequent_values(counts: pl.DataFrame, *, shown: bool, most: int = _FREQUENT) -> tuple[FrequentValue, ...]:
    """The shares of the most frequent values, of `count_distinct`'s counts; equal ones in the order of values. shown:
    with the values, as text; most: how many."""
    if not counts.height:
        return ()
    sizes = counts["count"].to_numpy()
    total, rank = int(sizes.sum()), max(len(sizes) - most, 0)
    is_frequent = pl.Series(sizes >= np.partition(sizes, rank)[rank])  # a filter of series: frames take longer
    top = pl.DataFrame([each.filter(is_frequent) for each in counts]).sort("count", "value", descending=[True, False])
    top = top.head(most)
    names: list[str] | list[None] = _texts(top["value"]) if shown else [None] * top.height
    return tuple(
        FrequentValue(share=count / total, value=name)
        for name, count in zip(names, top["count"].to_list(), strict=True)
    )


def _texts(values: pl.Series) -> list[str]:
    """Values as strings."""
    if values.dtype == pl.Binary:
        return [value.decode(errors="replace") for value in values.to_list()]
    return [str(value) for value in python_values(values)]


def _estimate(values: pl.Series, runs: Runs, sample: int, growth: float) -> tuple[int, float]:
    """The distinct values of a table that is so many times as large, and the relative standard error."""
    pairs = pl.DataFrame([values, pl.Series("run", runs)]).unique()
    counts = pairs.group_by("value").len()["len"]
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    places = int(np.unique(runs).size)
    if places < 2 or not ones:
        return sample, 0.0
    if ones == sample:
        return round(sample * growth), 1.0
    share = (places - 1) / places
    unseen = share * ones * (ones - 1) / (2 * (twos + 1))
    part = 1 - (1 - ones / (places * unseen + ones)) ** (places * (growth - 1))
    found = sample + unseen * part
    ratio = ones / max(twos, 1)
    variance = max(twos, 1) * (0.5 * share * ratio**2 + share**2 * ratio**3 + 0.25 * share**2 * ratio**4)
    return round(found), min(math.sqrt(variance) * part / found, 1.0)
