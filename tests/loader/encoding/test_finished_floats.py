"""`on_nonfinite` of finished floats, and how rows that stand for several are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedline.errors import DataError
from feedline.loader.encoding.encode import Repeats, apply_on_nonfinite
from feedline.loader.encoding.layout import SlotColumn

NAN, INF = float("nan"), float("inf")
COLUMN = SlotColumn(name="price", group="dense", dtype="float32", arrow="float", offset=0)


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_values_that_are_not_finite_become_zero_without_a_change_of_the_input():
    values = floats(1, NAN, -INF, 4)
    column = replace(COLUMN, on_nonfinite="zero")
    assert apply_on_nonfinite(values, column, None).tolist() == [1, 0, 0, 4]
    assert np.isnan(values[1])
    finite = floats(1, 2)
    assert apply_on_nonfinite(finite, column, None) is finite


def test_kept_values_are_the_same_array():
    values = floats(NAN, INF)
    assert apply_on_nonfinite(values, replace(COLUMN, on_nonfinite="keep"), None) is values


@pytest.mark.parametrize("extremes", [None, (1.0, INF)])
def test_an_error_names_the_feature_the_value_and_the_row(extremes: tuple[float, float] | None):
    column = replace(COLUMN, on_nonfinite="error")
    with pytest.raises(
        DataError, match=r"feature 'price' holds a value that is not finite .*got inf and 1 more in 4"
    ) as caught:
        apply_on_nonfinite(floats(1, 2, INF, NAN), column, None, extremes=extremes)
    assert caught.value.row == 2


def test_rows_that_stand_for_several_count_as_often():
    repeats = Repeats(np.array([2, 3]))
    assert repeats.count(floats(1, 2)) == 5
    assert repeats.count(np.ones((2, 4), np.float32)) == 20
    assert repeats.count(np.array([True, False]), chosen=True) == 2
    lists = Repeats(np.array([2, 3]), np.array([1, 4]))
    assert lists.count(floats(1, 2, 3, 4, 5)) == 14
    assert lists.count(np.array([False, True, True, False, False]), chosen=True) == 6
