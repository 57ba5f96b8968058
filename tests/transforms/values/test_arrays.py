"""Fused steps over the buffers of columns: nulls, slices at any offset, blocks of any length."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.values import arrays
from feedline.transforms.values.arrays import FusedKernels, KernelStep, Values, as_series

NUMBERS = st.lists(st.none() | st.integers(-1000, 1000), max_size=40)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK_VALUES", 7)


def double(values: Values, out: Values) -> None:
    np.multiply(values, 2, out=out)


def half(values: Values, out: Values) -> None:
    np.divide(values, 2, out=out)


def evaluated(expr: pl.Expr, series: pl.Series) -> pl.Series:
    return series.alias("x").to_frame().lazy().select(expr).collect(engine="in-memory").to_series()


@examples(40)
@given(NUMBERS, st.integers(0, 12), st.none() | st.integers(-5, 5))
def test_steps_in_a_row_are_those_of_python(numbers: list[int | None], start: int, fill: int | None):
    series = pl.Series("x", numbers, dtype=pl.Int64)[start:]
    fused = FusedKernels.of(pl.col("x"), pl.Int64()).with_step(KernelStep(pl.Int64(), double))
    if fill is not None:
        fused = fused.with_step(KernelStep(pl.Int64(), fill=fill))
    fused = fused.with_step(KernelStep(pl.Float64(), half))

    def expected(number: int | None) -> float | None:
        if number is None:
            return None if fill is None else fill / 2
        return float(number)

    found = evaluated(fused.expr, series)
    assert found.dtype == pl.Float64()
    assert found.to_list() == [expected(number) for number in numbers[start:]]
    assert fused.run is not None
    assert as_series(fused.run(series)).to_list() == found.to_list()
