"""Kernels over the buffers of columns: fused steps, nulls, slices at any offset, blocks of any length."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.transforms.values import arrays
from feedline.transforms.values.arrays import FusedKernels, KernelStep, Values, as_arrays, as_series, conversion

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


def test_results_without_nulls_are_arrays():
    fused = FusedKernels.of(pl.col("x"), pl.Float32()).with_step(KernelStep(pl.Float32(), double))
    assert fused.run is not None
    whole = fused.run(pl.Series([1.5, 2.0], dtype=pl.Float32))
    assert isinstance(whole, np.ndarray)
    assert whole.dtype == np.float32
    assert isinstance(fused.run(pl.Series([1.5, None], dtype=pl.Float32)), pl.Series)


def test_only_replaced_nulls_need_no_kernel():
    fused = FusedKernels.of(pl.col("x"), pl.Int64()).with_step(KernelStep(pl.Int64(), fill=9))
    assert fused.run is None
    assert evaluated(fused.expr, pl.Series("x", [1, None])).to_list() == [1, 9]


@pytest.mark.parametrize("start", [0, 3])
def test_a_function_of_whole_series_writes_one_integer_per_value(start: int):
    def lengths(series: pl.Series, out: Values) -> None:
        out[:] = series.str.len_bytes().fill_null(0).to_numpy()

    words = pl.Series("x", ["a", None, "ccc", "", "ee", None, "g"])[start:]
    fused = FusedKernels.of_series(pl.col("x"), lengths)
    expected = words.str.len_bytes().cast(pl.Int64).to_list()
    assert evaluated(fused.expr, words).to_list() == expected
    after = fused.with_step(KernelStep(pl.Int64(), double))
    assert evaluated(after.expr, words).to_list() == [None if n is None else 2 * n for n in expected]


@pytest.mark.parametrize(
    ("source", "target", "converts"),
    [
        (pl.Int8(), pl.Int64(), True),
        (pl.UInt32(), pl.Int64(), True),
        (pl.Int64(), pl.Float32(), True),
        (pl.Float64(), pl.Float32(), True),
        (pl.Int64(), pl.UInt64(), False),
        (pl.UInt64(), pl.Int64(), False),
        (pl.Float32(), pl.Int64(), False),
        (pl.String(), pl.Int64(), False),
        (pl.Int64(), pl.Int32(), False),
    ],
)
def test_numbers_are_converted_to_floats_and_larger_integers_only(
    source: pl.DataType, target: pl.DataType, converts: bool
):
    step = conversion(source, target)
    assert (step is not None) is converts
    if step is not None:
        assert step.kernel is not None
        values = np.array([0, 1, 100], arrays.NUMPY_TYPES.get(source) or arrays.SMALL_INTEGERS[source])
        out = np.empty(3, arrays.NUMPY_TYPES[target])
        step.kernel(values, out)
        np.testing.assert_array_equal(out, values.astype(out.dtype))


def test_floats_beyond_float32_become_infinities():
    step = conversion(pl.Float64(), pl.Float32())
    assert step is not None
    assert step.kernel is not None
    out = np.empty(2, np.float32)
    with np.errstate(over="ignore"):
        step.kernel(np.array([1e300, -1e300]), out)
    assert out.tolist() == [float("inf"), float("-inf")]


def test_columns_without_nulls_are_arrays():
    plain = pl.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    found = as_arrays(plain)
    assert found is not None
    assert [column.tolist() for column in found] == [[1, 2], [0.5, 1.5]]
    assert as_arrays(plain.with_columns(c=pl.Series([1, None]))) is None
    mixed = as_arrays({"a": np.array([1, 2]), "b": pl.Series([3, 4])})
    assert mixed is not None
    assert [column.tolist() for column in mixed] == [[1, 2], [3, 4]]
    assert as_arrays({"a": pl.Series([None, 1])}) is None
