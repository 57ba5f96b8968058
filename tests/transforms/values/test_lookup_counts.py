"""Looked-up and unknown ids are counted as Python counts them, however often rows repeat."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.values.lookup_counts import count_lookups, lookups_of_rows, sum_of_lookups

IDS = st.none() | st.integers(-2, 6)
UNKNOWN = range(2, 4)


def counted(values: list[int | None], times: list[int]) -> tuple[int, int]:
    pairs = [(value, often) for value, often in zip(values, times, strict=True) if value is not None]
    return sum(often for _, often in pairs), sum(often for value, often in pairs if value in UNKNOWN)


@given(st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=12), st.booleans())
def test_ids(rows: list[tuple[int | None, int]], repeated: bool):
    values, times = [value for value, _ in rows], [often if repeated else 1 for _, often in rows]
    repeats = np.array(times, np.int64) if repeated else None
    found = count_lookups(pl.Series(values, dtype=pl.Int64), UNKNOWN, repeats)
    assert found == counted(values, times)


@given(st.lists(st.tuples(st.none() | st.lists(IDS, max_size=4), st.integers(0, 3)), max_size=8), st.booleans())
def test_elements_of_lists(rows: list[tuple[list[int | None] | None, int]], repeated: bool):
    lists, times = [values for values, _ in rows], [often if repeated else 1 for _, often in rows]
    repeats = np.array(times, np.int64) if repeated else None
    flat = [(value, often) for values, often in zip(lists, times, strict=True) for value in values or []]
    found = count_lookups(pl.Series(lists, dtype=pl.List(pl.Int64)), UNKNOWN, repeats)
    assert found == counted([value for value, _ in flat], [often for _, often in flat])


@given(st.lists(st.none() | st.lists(IDS, max_size=4), max_size=8))
def test_each_row_has_counts_of_its_own(lists: list[list[int | None] | None]):
    expected = [counted(values or [], [1] * len(values or [])) for values in lists]
    found = lookups_of_rows(pl.Series(lists, dtype=pl.List(pl.Int64)), UNKNOWN)
    assert [*zip(*(each.tolist() for each in found), strict=True)] == expected
    for repeats in (None, np.arange(len(lists))):
        series = pl.Series(lists, dtype=pl.List(pl.Int64))
        assert sum_of_lookups(found, repeats) == count_lookups(series, UNKNOWN, repeats)
    ids = [values[0] if values else None for values in lists]
    found = lookups_of_rows(pl.Series(ids, dtype=pl.Int64), UNKNOWN)
    assert [*zip(*(each.tolist() for each in found), strict=True)] == [counted([value], [1]) for value in ids]
