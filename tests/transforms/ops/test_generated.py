"""Ops that generate ids, positions and hours against their documentation, by an oracle in plain Python."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    FLOATS,
    INTEGERS,
    bound,
    check_elements,
    check_rows,
    columns,
    combined,
    id_lists,
    int_lists,
    rounded,
    run,
)
from reference_hash import cross_of

from feedline.transforms.registry.op import OpError

# bucketize


def bucket_of(value: float, borders: list[Any]) -> int | None:
    """TorchArrow's definition: the first border that is not below the value; one more where the next equals it too."""
    if value != value:
        return None
    index = next((index for index, border in enumerate(borders) if not border < value), len(borders))
    return index + 1 if index + 1 < len(borders) and not value < borders[index + 1] else index


@examples(30)
@given(
    columns(),
    st.lists(st.one_of(st.integers(-20, 20), st.integers(-(2**70), 2**70)), min_size=1, max_size=8),
    st.data(),
)
def test_bucketize(series: pl.Series, borders: list[int], data: st.DataObject):
    if series.dtype.is_float():  # far away from each other, also as float32
        borders = [border for border in borders if abs(border) <= 20] or [0]
    repeated = data.draw(st.lists(st.sampled_from(borders), max_size=2, unique=True))
    whole = sorted(set(borders) | set()) + repeated
    check_elements("bucketize", sorted(whole), series, lambda value: bucket_of(value, sorted(whole)))


@examples(30)
@given(columns(INTEGERS), st.lists(st.fractions(-30, 30, max_denominator=8), min_size=1, max_size=8))
def test_bucketize_of_integers_at_fractions(series: pl.Series, borders: list[Fraction]):
    exact = sorted(Fraction(float(border)) for border in set(borders))
    check_elements(
        "bucketize", [float(border) for border in exact], series, lambda value: bucket_of(Fraction(value), exact)
    )


@examples(30)
@given(columns(FLOATS), st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True))
def test_bucketize_of_floats_binds_borders_to_the_column(series: pl.Series, tenths: list[int]):
    borders = [tenth / 10 for tenth in sorted(tenths)]
    meant = [rounded(border, series.dtype) for border in borders]
    on_borders = pl.Series("a", [*series, *meant], dtype=series.dtype)
    check_elements("bucketize", borders, on_borders, lambda value: bucket_of(value, meant))


def test_bucketize_vectors_of_torcharrow():
    assert run("bucketize", [2, 5, 10], pl.Series([1, 2, 3, 5, 8, 10, 11])).to_list() == [0, 0, 1, 1, 2, 2, 3]
    assert run("bucketize", [2.0, 5.0, 5.0, 10.0], pl.Series([5.0, 5.5, 4.0])).to_list() == [2, 3, 1]
    assert run("bucketize", [5, 5, 5], pl.Series([4, 5, 6])).to_list() == [0, 1, 3]


def test_bucketize_of_large_integers_is_exact():
    near = 2**53
    assert run("bucketize", [near], pl.Series([near, near + 1])).to_list() == [0, 1]
    assert run("bucketize", [-5, 2**63], pl.Series([0, 2**63, 2**63 + 1], dtype=pl.UInt64)).to_list() == [1, 1, 2]


@pytest.mark.parametrize("text", ["y + 1", "1 + 1", "", "x.mean()", "x +"])
def test_expr_refuses_other_columns_and_several_rows(text: str):
    with pytest.raises(OpError, match="expr: "):
        bound("expr", text, pl.Int64())


@examples(30)
@given(id_lists, st.integers(-3, 3))
def test_enumerate(rows: list[Any], start: int):
    check_rows(
        "enumerate", start, [int_lists(rows)], lambda row: None if row is None else list(range(start, start + len(row)))
    )


@examples(30)
@given(id_lists, st.integers(1, 4), st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_ngram(rows: list[Any], n: int, buckets: int):
    def oracle(row: list[int | None] | None) -> Any:
        if row is None:
            return None
        runs = [row[place : place + n] for place in range(len(row) - n + 1)]
        return [None if None in run else cross_of(*run) % buckets for run in runs]

    check_rows("ngram", {"n": n, "buckets": buckets}, [int_lists(rows)], oracle)


def test_ngram_of_more_values_than_a_block():
    values = np.random.default_rng(0).integers(0, 100, 70_000)
    lists = pl.Series(pa.LargeListArray.from_arrays(pa.array([0, 40_000, 40_001, 70_000]), pa.array(values)))
    found = combined("ngram", {"n": 3, "buckets": 2**40}, lists)[0]
    assert [len(row) for row in found] == [39_998, 0, 29_997]
    for row, start in ((0, 0), (0, 32_766), (0, 39_997), (2, 29_996)):
        begin = [0, 0, 40_001][row] + start
        assert found[row][start] == cross_of(*values[begin : begin + 3].tolist()) % 2**40


# times


@examples(30)
@given(
    st.lists(st.one_of(st.none(), st.datetimes(datetime(1990, 1, 1), datetime(2035, 1, 1))), max_size=9),
    st.sampled_from(["Europe/Zurich", "America/St_Johns", "Asia/Kathmandu", "UTC", "Australia/Lord_Howe"]),
)
def test_get_local_hour(times: list[datetime | None], name: str):
    def oracle(time: datetime | None) -> int | None:
        return None if time is None else time.replace(tzinfo=UTC).astimezone(ZoneInfo(name)).hour

    expected = [oracle(time) for time in times]
    for unit in ("ms", "us", "ns"):
        series = pl.Series("t", times, dtype=pl.Datetime("us")).cast(pl.Datetime(unit))
        assert run("get_local_hour", name, series).to_list() == expected
        elsewhere = series.dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
        assert run("get_local_hour", name, elsewhere).to_list() == expected


def test_get_local_hour_of_lists():
    moments = pl.Series([[datetime(2026, 1, 1, 23), None], [], None], dtype=pl.List(pl.Datetime("us")))
    assert run("get_local_hour", "Europe/Zurich", moments).to_list() == [[0, None], [], None]
