"""Bucketing by leading bits equals numpy's search, for every type and any borders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feedline.transforms.values.bucketing import Borders

TYPES = (np.int64, np.uint64, np.float32, np.float64)


def numbers(dtype: type, size: int) -> st.SearchStrategy[np.ndarray]:
    elements = {"allow_nan": False} if np.dtype(dtype).kind == "f" else {}
    return arrays.arrays(dtype, st.integers(1, size), elements=arrays.from_dtype(np.dtype(dtype), **elements))


def counted(borders: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full(len(values), -7, np.int64)
    Borders.of(borders).count_below(values, out)
    return out


@pytest.mark.parametrize("dtype", TYPES)
@examples(40)
@given(st.data())
def test_as_many_borders_are_below_as_numpy_finds(dtype: type, data: st.DataObject) -> None:
    borders = np.sort(data.draw(numbers(dtype, 40)))
    borders = borders[np.isfinite(borders)]
    if not len(borders):
        return
    values = np.concatenate((data.draw(numbers(dtype, 40)), borders))
    assert np.array_equal(counted(borders, values), np.searchsorted(borders, values, side="left"))


@pytest.mark.parametrize("dtype", TYPES)
def test_many_borders(dtype: type) -> None:
    """From borders that share a cell to borders that lie orders of magnitude apart."""
    for count, spread in itertools.product([1, 2, 100, 1024, 20_000], [0.5, 3.0, 30.0]):
        assert_counted(dtype, count, spread)


def assert_counted(dtype: type, count: int, spread: float) -> None:
    random = np.random.default_rng(count)
    drawn = np.exp(random.normal(0, spread, 2 * count + 500)) * 1000
    if np.dtype(dtype).kind == "f":
        drawn *= random.choice([-1, 1], len(drawn))
    drawn = np.clip(drawn, -1e18, 1e18).astype(dtype)
    borders, values = np.sort(drawn[:count]), drawn[count:]
    near = np.concatenate((values, borders, np.nextafter(borders, dtype(0))[:100].astype(dtype)))
    assert np.array_equal(counted(borders, near), np.searchsorted(borders, near, side="left"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ends_and_zeros(dtype: type) -> None:
    values = np.array([-np.inf, -1, -0.0, 0.0, 5e-324, 1, np.inf], dtype)
    for borders in ([-0.0], [0.0], [-1, -0.0, 0.0, 0.0, 1]):
        expected = [sum(border < value for border in borders) for value in values]
        assert counted(np.array(borders, dtype), values).tolist() == expected
    assert 0 <= counted(np.array([0.5, 2], dtype), np.array([np.nan, -np.nan], dtype)).max() <= 2


def test_integers_that_float32_cannot_tell_apart() -> None:
    borders = 2**62 + np.arange(0, 40, 2)
    values = 2**62 + np.arange(-3, 45)
    assert np.array_equal(counted(borders, values), np.searchsorted(borders, values))
    crowded = 2**62 + np.arange(1000)
    assert Borders.of(crowded).steps is None, "numpy's search where halving would take as long"
    assert np.array_equal(counted(crowded, values), np.searchsorted(crowded, values))
