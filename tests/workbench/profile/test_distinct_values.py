"""Distinct values of a sample and of its table, compared with pandas and with tables that are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile.column_measures import count_distinct, frequent_values


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=200))
def test_counts_are_those_of_pandas(values: list[int | None]):
    distinct, counts = count_distinct(pl.Series(values, dtype=pl.Int64), None, len(values))
    expected = pd.Series([value for value in values if value is not None], dtype="int64").value_counts()
    assert dict(zip(counts["value"], counts["count"], strict=True)) == expected.to_dict()
    shares = [value.share for value in frequent_values(counts, shown=False)]
    assert shares == pytest.approx((expected / expected.sum()).head(5).to_list())
    assert (distinct.sample, distinct.table, distinct.error) == (len(expected), len(expected), 0.0)
    assert distinct.once == pytest.approx((expected == 1).mean() if len(expected) else 0.0)


def test_frequent_values_are_shown_on_request_alone():
    _, counts = count_distinct(pl.Series(["a", "b", "a", "c", "b", "a"]), None, 6)
    assert [value.share for value in frequent_values(counts, shown=False)] == [3 / 6, 2 / 6, 1 / 6]
    assert {value.value for value in frequent_values(counts, shown=False)} == {None}
    assert [value.value for value in frequent_values(counts, shown=True)] == ["a", "b", "c"]


def test_ties_are_in_the_order_of_values():
    _, counts = count_distinct(pl.Series(list("hgfedcba")), None, 8)
    assert [value.value for value in frequent_values(counts, shown=True)] == list("abcde")


def sampled(table: np.ndarray, places: int, rows: int) -> tuple[pl.Series, np.ndarray]:
    starts = np.linspace(0, len(table) - rows, places).astype(int)
    index = np.concatenate([np.arange(start, start + rows) for start in starts])
    return pl.Series(table[index]), np.repeat(np.arange(places), rows)


def test_few_values_are_all_in_the_sample():
    values, runs = sampled(np.random.default_rng(0).integers(0, 50, 1_000_000), 20, 1000)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert (distinct.sample, distinct.table, distinct.error) == (50, 50, 0.0)


def test_the_estimate_for_equally_frequent_values_is_within_a_few_errors():
    values, runs = sampled(np.random.default_rng(0).integers(0, 20_000, 1_000_000), 20, 1000)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert distinct.sample < 14_000
    assert abs(distinct.table - 20_000) < 4 * distinct.error * distinct.table
    assert distinct.error < 0.05


@pytest.mark.parametrize("places", [1, 20])
def test_a_table_has_not_all_values_that_it_could_have(places: int):
    """A million users, of whom a million rows have 632,000: those of the table are estimated, not all users. Rows of
    one place alone are taken as drawn one by one."""
    table = np.random.default_rng(0).integers(0, 1_000_000, 1_000_000)
    values, runs = sampled(table, places, 60_000 // places)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert distinct.table == pytest.approx(len(np.unique(table)), rel=0.05)


def test_unique_values_are_estimated_by_the_rows_of_the_table():
    values, runs = sampled(np.arange(1_000_000), 20, 1000)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert (distinct.sample, distinct.table, distinct.once) == (20_000, 1_000_000, 1.0)


def test_values_that_repeat_within_a_run_count_once_there():
    """Sessions of 10 rows: hardly a value of the sample occurs once, but every one is of one run."""
    values, runs = sampled(np.repeat(np.arange(100_000), 10), 20, 1000)
    distinct, _ = count_distinct(values, runs, 1_000_000)
    assert distinct.once < 0.01
    assert distinct.table == pytest.approx(100_000, rel=0.01)


def test_nulls_are_no_values():
    values = pl.Series([None, 1, None, 2] * 10)
    distinct, counts = count_distinct(values, np.repeat(np.arange(4), 10), 40)
    assert distinct.sample == 2
    assert counts["count"].sum() == 20
