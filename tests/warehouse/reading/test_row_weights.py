"""Weights as quanta: proportional, exact for integers, and refused where they are none."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.warehouse.reading.row_weights import EXACT, MOST_QUANTA, WeightError, can_weigh, quanta_of


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_an_integer_has_as_many_quanta_as_its_value(values: list[int]):
    quanta = quanta_of(pl.Series(values, dtype=pl.UInt64))
    assert (quanta.of_rows.tolist(), quanta.exponent, quanta.precision) == (values, 0, EXACT)


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1, max_size=50))
@example([5e-324])
@example([1.7976931348623157e308] * 50)
@example([1.0, 5e-324])
@example([1.0, 1e-15])
def test_a_float_is_rounded_on_the_scale_of_its_row_groups_sum(values: list[float]):
    quanta = quanta_of(pl.Series(values, dtype=pl.Float64))
    rounded = [number * Fraction(2) ** quanta.exponent for number in quanta.of_rows.tolist()]
    total, most = sum(map(Fraction, values)), Fraction(0)
    for value, own in zip(map(Fraction, values), rounded, strict=True):
        assert abs(own - value) <= total / 2**60
        assert not own or value
        most = max(most, abs(own - value) / value) if value else most
    assert most <= Fraction(1, 2**quanta.precision)
    assert not most or quanta.precision < EXACT
    assert sum(quanta.of_rows.tolist()) < MOST_QUANTA


@given(st.permutations([1e-9, 5e-9, 0.1, 3.0, 1e-17, 7.7]))
def test_the_scale_does_not_depend_on_the_order_of_rows(values: list[float]):
    quanta = quanta_of(pl.Series(values))
    again = quanta_of(pl.Series(sorted(values)))
    assert quanta.exponent == again.exponent
    assert sorted(quanta.of_rows.tolist()) == again.of_rows.tolist()


def test_weights_that_no_draw_could_show_are_rounded_to_nothing_and_said():
    quanta = quanta_of(pl.Series([1.0, 1e-30, 0.0]))
    assert quanta.of_rows[1:].tolist() == [0, 0]
    assert quanta.precision == 0


def test_booleans_weigh_one_or_nothing():
    assert quanta_of(pl.Series([True, False])).of_rows.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "message", "row"),
    [
        (pl.Series([1, None, 3]), "must not be null", 1),
        (pl.Series([0.5, 1.0, None]), "must not be null", 2),
        (pl.Series([1, -2]), "must not be negative: got -2", 1),
        (pl.Series([-0.5]), "must not be negative: got -0.5", 0),
        (pl.Series([1.0, float("nan")]), "must be finite: got nan", 1),
        (pl.Series([float("inf")]), "must be finite: got inf", 0),
        (pl.Series([2**63], dtype=pl.UInt64), "is more than 4,611,686,018,427,387,904: got 9223372036854775808", 0),
        (pl.Series([MOST_QUANTA, 10**6]), "sum to more than 4,611,686,018,427,387,904 in a row group", None),
    ],
)
def test_what_is_no_weight_is_refused(values: pl.Series, message: str, row: int | None):
    with pytest.raises(WeightError, match=message) as caught:
        quanta_of(values)
    assert caught.value.row == row


def test_numbers_can_weigh_and_nothing_else():
    assert all(can_weigh(each) for each in (pl.Int8(), pl.UInt64(), pl.Float32(), pl.Boolean()))
    assert not any(can_weigh(each) for each in (pl.String(), pl.List(pl.Int64()), pl.Date(), pl.Decimal(10, 2)))


def test_nothing_weighs_nothing():
    for values in (pl.Series([], dtype=pl.Float64), pl.Series([0.0, 0.0])):
        assert quanta_of(values).of_rows.dtype == np.int64
        assert not quanta_of(values).of_rows.any()
