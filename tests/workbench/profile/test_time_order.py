"""Columns that rise or fall with time."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.workbench.profile.profile_table import TimeOrder

ROW = st.tuples(st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 5)))


def expected(rows: list[tuple[int | None, int | None]]) -> int:
    """By comparing all pairs of rows."""
    some = [(time, value) for time, value in rows if time is not None and value is not None]
    if len({value for _, value in some}) < 2 or len({time for time, _ in some}) < 2:
        return 0
    pairs = [(one[1], other[1]) for one in some for other in some if one[0] < other[0]]
    if all(before <= after for before, after in pairs):
        return 1
    return -1 if all(before >= after for before, after in pairs) else 0


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=6))
def test_the_direction_is_that_of_all_pairs(rows: list[tuple[int | None, int | None]]):
    time = pl.Series([time for time, _ in rows], dtype=pl.Int64)
    value = pl.Series([value for _, value in rows], dtype=pl.Int64)
    assert TimeOrder(time).direction(value) == expected(rows)


@pytest.mark.parametrize(("step", "direction"), [(1, 1), (-1, -1)])
def test_a_single_row_out_of_order_is_found(step: int, direction: int):
    time = pl.Series(np.random.default_rng(0).permutation(100_000)).cast(pl.Datetime("us"))
    values = time.to_physical().to_numpy() * step
    order = TimeOrder(time)
    assert order.direction(pl.Series(values)) == direction
    changed = values.copy()
    changed[777] = step * -5
    assert order.direction(pl.Series(changed)) == 0


def test_strings_have_the_order_of_their_bytes():
    time = pl.Series(range(100))
    weeks = pl.Series([f"2026-W{index // 10:02}" for index in range(100)])
    assert TimeOrder(time).direction(weeks) == 1
    assert TimeOrder(time).direction(weeks.reverse()) == -1
    assert TimeOrder(time).direction(weeks.sample(100, shuffle=True, seed=0)) == 0
