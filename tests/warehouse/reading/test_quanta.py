"""Weights as quanta: proportional, exact for integers, and refused where they are none."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.reading.quanta import MOST_QUANTA, QUANTA_PER_UNIT, WeightError, can_weigh, quanta_of


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_an_integer_has_as_many_quanta_as_its_value(values: list[int]):
    assert quanta_of(pl.Series(values, dtype=pl.UInt64)).tolist() == values


@given(st.lists(st.floats(0, 1e6, width=32), max_size=50))
def test_a_float_is_rounded_to_quanta_and_a_positive_one_has_at_least_one(values: list[float]):
    for value, quanta in zip(values, quanta_of(pl.Series(values, dtype=pl.Float32)).tolist(), strict=True):
        exact = Fraction(value) * QUANTA_PER_UNIT
        assert abs(quanta - exact) <= Fraction(1, 2) or (quanta == 1 and 0 < exact < 1)
        assert (quanta > 0) == (value > 0)


def test_booleans_weigh_one_or_nothing():
    assert quanta_of(pl.Series([True, False])).tolist() == [1, 0]


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
        (pl.Series([1.0, 1e13]), "is more than 274,877,906,944: got 10000000000000.0", 1),
        (pl.Series([MOST_QUANTA, 10**6]), "sum to more than 4,611,686,018,427,387,904 quanta", None),
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
    assert quanta_of(pl.Series([], dtype=pl.Float64)).dtype == np.int64
