"""Ops that make vectors against their documentation, by an oracle in plain Python."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    FLOAT_LISTS,
    check_rows,
    combined,
    id_lists,
    int_lists,
    run,
    same,
)

from feedline.errors import DataError

# vectors


@examples(30)
@given(st.lists(st.one_of(st.none(), st.integers(-2, 5)), max_size=9), st.integers(1, 4))
def test_onehot(values: list[int | None], size: int):
    series = pl.Series("a", values, dtype=pl.Int32)
    check_rows(
        "onehot", size, [series], lambda value: None if value is None else [float(value == i) for i in range(size)]
    )


def test_onehot_of_numbers_beyond_int64():
    assert combined("onehot", 2, pl.Series([2**64 - 1, 1, None], dtype=pl.UInt64))[0] == [[0.0, 0.0], [0.0, 1.0], None]


@examples(30)
@given(id_lists, st.integers(1, 5), st.integers(-1, 1))
def test_pad(rows: list[Any], length: int, value: int):
    def oracle(row: list[Any] | None) -> list[Any]:
        kept = (row or [])[:length]
        return kept + [value] * (length - len(kept))

    check_rows("pad", {"length": length, "value": value}, [int_lists(rows)], oracle)


def test_vectors():
    lists = pl.Series([[1.0, 2.0], None, [3.0, None]], dtype=FLOAT_LISTS)
    for part in (lists, lists[1:], lists[:0], pl.concat([lists, lists], rechunk=False)):
        assert combined("vector", 2, part)[0] == part.to_list()
    whole = pl.Series([[0.0], [1.0, 2.0], [3.0, 4.0]], dtype=FLOAT_LISTS)[1:]
    assert combined("vector", 2, whole)[0] == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(DataError, match="got 1, expected 2"):
        combined("vector", 2, pl.Series([[1.0, 2.0], None, [3.0]], dtype=FLOAT_LISTS))


def test_elements_of_vectors_stay_vectors():
    vectors = pl.Series([[0.0, 1.0], None, [math.nan, 3.0]], dtype=pl.Array(pl.Float32, 2))
    assert run("clip", {"max": 0.5}, vectors).dtype == pl.Array(pl.Float32, 2)
    same(run("clip", {"max": 0.5}, vectors).to_list(), [[0.0, 0.5], None, [math.nan, 0.5]])
