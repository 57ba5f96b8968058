"""Sums of groups are exact for every order, partition and size of the states."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import SpecError
from feedline.transforms.learning.exact_sums import total as exact
from feedline.transforms.learning.group_sums import GroupedState, GroupSums, check_numbers, finite, state_total
from feedline.transforms.values.kinds import Value

SUMS = GroupSums(by=("a", "b"), squares=True, extremes=True)
NUMBERS = st.one_of(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(allow_nan=False, allow_infinity=False))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(-1, 1, width=32))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(-(2**63), 2**63 - 1))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1))),
)


def state_of(rows: list[tuple[int, int, Any]]) -> pl.DataFrame:
    groups = pl.DataFrame({"a": [a for a, _, _ in rows], "b": [b for _, b, _ in rows]}, schema={"a": int, "b": int})
    numbers = [number for _, _, number in rows]
    dtype = pl.Float64 if any(isinstance(number, float) for number in numbers) else pl.Int64
    return SUMS.observe(groups, pl.Series(numbers, dtype=dtype))


def rows_of(state: pl.DataFrame) -> list[tuple[Any, ...]]:
    return state.sort(pl.all(), nulls_last=True).rows()


@examples(30)
@given(NUMBERS, st.data())
def test_sums_equal_those_of_fractions_in_any_order_and_cut(rows: list[tuple[int, int, Any]], data: st.DataObject):
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    state = SUMS.merge([state_of(shuffled[:cut]), state_of(shuffled[cut:])])
    held = GroupedState.by(state, ("a", "b"))
    by_group: dict[tuple[int, int], list[Any]] = {}
    for a, b, number in rows:
        by_group.setdefault((a, b), []).append(number)
    assert held.groups.rows() == sorted(by_group)
    members = [by_group[group] for group in sorted(by_group)]
    assert held.counts().tolist() == [len(numbers) for numbers in members]
    assert held.extremes()[0].tolist() == [min(map(float, numbers)) for numbers in members]
    assert held.extremes()[1].tolist() == [max(map(float, numbers)) for numbers in members]
    for squares in (False, True):
        found, _ = held.sums(squares=squares)
        sums = [sum((Fraction(number) ** (1 + squares) for number in numbers), Fraction(0)) for numbers in members]
        assert found.tolist() == [nearest(value) for value in sums]
    count, bins = state_total(state)
    assert count == len(rows)
    assert exact(bins) == sum((Fraction(number) for _, _, number in rows), Fraction(0))


def nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@examples(30)
@given(st.lists(NUMBERS.filter(bool), min_size=1, max_size=4), st.data())
def test_merging_is_associative(parts: list[list[tuple[int, int, Any]]], data: st.DataObject):
    states = [state_of(part) for part in parts]
    middle = data.draw(st.integers(1, len(states)))
    left = SUMS.merge(states[:middle])
    together = SUMS.merge([left, *states[middle:]])
    names = ("a", "b")
    one, other = GroupedState.by(together, names), GroupedState.by(SUMS.merge(states[::-1]), names)
    assert one.groups.equals(other.groups)
    for squares in (False, True):
        for mine, theirs in zip(one.sums(squares=squares), other.sums(squares=squares), strict=True):
            assert mine.tolist() == theirs.tolist()


def test_units_that_grew_large_are_carried():
    """As after thousands of merges of a group that most rows belong to: the next merge must not overflow."""
    large = 2**62 + 12345
    state = pl.DataFrame(
        {"a": [1, 1], "bin": [0, 0], "count": [5, 6], "sum": [large, -large + 7]},
        schema={"a": pl.Int64, "bin": pl.Int32, "count": pl.Int64, "sum": pl.Int64},
    )
    sums = GroupSums(by=("a",))
    first, second = sums.merge([state[:1]]), sums.merge([state[1:]])
    assert first["sum"].abs().max() < 2**48  # type: ignore[operator]
    merged = sums.merge([first] * 3 + [second] * 3)
    count, bins = state_total(merged)
    assert (count, exact(bins)) == (33, 21)
    assert state_total(sums.merge([first] * 5)) == (25, state_total(first.with_columns(pl.col("sum") * 5))[1])


def test_rows_without_values_are_counted():
    sums = GroupSums(by=("a",))
    state = sums.merge([sums.observe(pl.DataFrame({"a": part}), None) for part in ([1, 1, 2], [2, 1])])
    assert rows_of(state.select("a", "count")) == [(1, 3), (2, 2)]


def test_an_empty_state_is_neutral():
    empty = state_of([])
    assert empty.height == 0
    some = state_of([(1, 0, 2.5)])
    assert rows_of(SUMS.merge([empty, some])) == rows_of(SUMS.merge([some]))
    nothing = GroupedState.by(SUMS.merge([empty]), ("a", "b"))
    assert [len(found) for found in (*nothing.sums(), nothing.counts(), *nothing.extremes())] == [0] * 5


def test_zeros_of_either_sign_are_one():
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        least, most = GroupedState.by(state_of([(1, 1, zero) for zero in zeros]), ("a", "b")).extremes()
        assert str(least.tolist() + most.tolist()) == "[0.0, 0.0]"


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pl.Series([1, None, 3], dtype=pl.Int8), [1, None, 3]),
        (pl.Series([True, None, False]), [1, None, 0]),
        (pl.Series([1.5, None, np.nan, np.inf, -np.inf], dtype=pl.Float32), [1.5, None, None, None, None]),
        (pl.Series(["1.25", "2"]).str.to_decimal(scale=2), [1.25, 2.0]),
    ],
)
def test_finite_numbers_of_a_column(series: pl.Series, expected: list[Any]):
    values, known = finite(series)
    kept = np.ones(len(values), np.bool_) if known is None else known
    assert [value if one else None for value, one in zip(values.tolist(), kept.tolist(), strict=True)] == expected


def test_columns_that_are_not_numbers_are_refused_by_name():
    with pytest.raises(SpecError, match="target must be a column of numbers or booleans: got 'name' of strings"):
        check_numbers(Value(expr=pl.col("name"), dtype=pl.String()), "target", "name")
