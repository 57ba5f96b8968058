"""Count the distinct values of a sample, and estimate those of the table that it was taken of.

Runs in: the process that profiles. Pure. A sample has runs of rows, and values that repeat within a run say little
about the rest of the table. So the estimate is the one for samples of places: with m runs, S distinct values, Q1 of
them in one run and Q2 in two,

    table = S + (m - 1) / m * Q1 (Q1 - 1) / (2 (Q2 + 1))

the bias-corrected lower bound of Chao (1987, "Estimating the population size for capture-recapture data with unequal
catchability", Biometrics 43), at most S * rows of the table / rows of the sample. Its standard error is the one of the
same paper, of the ratio Q1 / Q2, at most 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.profiling.table_facts import DistinctCount, FrequentValue

_FREQUENT = 5  # values whose shares are kept
Runs = npt.NDArray[np.int64]


def count_distinct(values: pl.Series, runs: Runs | None, table_rows: int) -> tuple[DistinctCount, pl.DataFrame]:
    """Count the values that are not null; returns each with its count as well: `value`, `count`, in any order.

    runs: int64 [values], the run of the sample that each is of (None: all rows of the table were read).
    """
    values = values.alias("value")
    is_value = values.is_not_null()
    if not is_value.all():
        values = values.filter(is_value)
        runs = None if runs is None else runs[is_value.to_numpy()]
    counts = values.value_counts(name="count")
    sample = counts.height
    once = int((counts["count"] == 1).sum())
    table, error = sample, 0.0
    if runs is not None and len(values):
        table, error = _estimate(values, runs, sample)
        most = max(sample, round(sample * table_rows / len(values)))
        table = min(table, most)
    return DistinctCount(sample=sample, table=table, error=error, once=once / max(sample, 1)), counts


def frequent_values(counts: pl.DataFrame, *, shown: bool) -> tuple[FrequentValue, ...]:
    """The shares of the most frequent values, of `count_distinct`'s counts; equal ones in the order of values. shown:
    with the values, as text."""
    if not counts.height:
        return ()
    sizes = counts["count"].to_numpy()
    total, rank = int(sizes.sum()), max(len(sizes) - _FREQUENT, 0)
    most = counts.filter(pl.Series(sizes >= np.partition(sizes, rank)[rank]))
    top = most.sort("count", "value", descending=[True, False]).head(_FREQUENT)
    names: list[str] | list[None] = _texts(top["value"]) if shown else [None] * top.height
    return tuple(
        FrequentValue(share=count / total, value=name)
        for name, count in zip(names, top["count"].to_list(), strict=True)
    )


def _texts(values: pl.Series) -> list[str]:
    """Values as text. Times by Polars: Python's calendar ends in the year 9999."""
    if values.dtype == pl.Binary:
        return [value.decode(errors="replace") for value in values.to_list()]
    return values.cast(pl.String).to_list() if values.dtype.is_temporal() else [str(each) for each in values.to_list()]


def _estimate(values: pl.Series, runs: Runs, sample: int) -> tuple[int, float]:
    """The distinct values of the table, and the relative standard error."""
    pairs = pl.DataFrame([values, pl.Series("run", runs)]).unique()
    counts = pairs.group_by("value").len()["len"]
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    places = int(np.unique(runs).size)
    if places < 2 or not ones:
        return sample, 0.0
    share = (places - 1) / places
    found = sample + share * ones * (ones - 1) / (2 * (twos + 1))
    ratio = ones / max(twos, 1)
    variance = max(twos, 1) * (0.5 * share * ratio**2 + share**2 * ratio**3 + 0.25 * share**2 * ratio**4)
    return round(found), min(math.sqrt(variance) / found, 1.0)
