"""Ops over ids and their lists against their documentation, by an oracle in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import (
    INTEGERS,
    check_elements,
    check_rows,
    columns,
    combined,
    id_lists,
    int_lists,
    parts_of,
    run,
    same,
    without_nulls,
)
from reference_hash import cross_of, hash_of, sigrid_of

from feedline.transforms.values import arrays

# hash_bucket, modulo


@examples(30)
@given(columns(INTEGERS), st.integers(1, 2**63 - 1), st.integers(0, 3))
def test_hash_bucket_of_integers(series: pl.Series, buckets: int, seed: int):
    arguments = {"buckets": buckets, "seed": seed}
    check_elements("hash_bucket", arguments, series, lambda value: hash_of(value, seed) % buckets)


@examples(30)
@given(st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=20), st.integers(1, 10**6))
def test_hash_bucket_of_strings(values: list[str | None], buckets: int):
    series = pl.Series("a", values, dtype=pl.String)
    check_elements("hash_bucket", buckets, series, lambda value: hash_of(value) % buckets)
    check_elements("hash_bucket", buckets, series.cast(pl.Binary), lambda value: hash_of(value) % buckets)


@examples(30)
@given(columns(INTEGERS), st.integers(1, 2**63 - 1))
def test_hash_bucket_with_a_bucket_for_nulls(series: pl.Series, buckets: int):
    wanted = [buckets if value is None else hash_of(value) % buckets for value in series.to_list()]
    arguments = {"buckets": buckets, "null_bucket": True}
    assert run("hash_bucket", arguments, series).to_list() == wanted
    lists = pl.Series([series.to_list(), None, []], dtype=pl.List(series.dtype))
    assert run("hash_bucket", arguments, lists).to_list() == [wanted, None, []]
    strings = series.cast(pl.String)
    wanted = [buckets if value is None else hash_of(value) % buckets for value in strings.to_list()]
    assert run("hash_bucket", arguments, strings).to_list() == wanted


def test_hash_bucket_does_not_depend_on_the_layout():
    strings = ["Paris", None, "a name of more than twelve bytes", "Paris", ""]
    wanted = [None if value is None else hash_of(value) % 1000 for value in strings]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        series = pl.Series(pa.array(strings, type=pa.string()).cast(kind))
        assert run("hash_bucket", 1000, series).to_list() == wanted
    ids = [-1, 0, 127, None]
    wanted = [None if value is None else hash_of(value) % 1000 for value in ids]
    for dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64):
        assert run("hash_bucket", 1000, pl.Series(ids, dtype=dtype)).to_list() == wanted
        array = pl.Series([ids], dtype=pl.Array(dtype, 4))
        assert run("hash_bucket", 1000, array).to_list() == [wanted]
    lists = pl.Series([["Paris", None], None, []], dtype=pl.List(pl.Categorical))
    assert run("hash_bucket", 1000, lists).to_list() == [[hash_of("Paris") % 1000, None], None, []]


@examples(30)
@given(columns(INTEGERS), st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
def test_modulo(series: pl.Series, divisor: int):
    check_elements("modulo", divisor, series, lambda value: value % divisor)


def test_modulo_of_more_values_than_a_block():
    values = np.random.default_rng(0).integers(-(2**62), 2**62, 2 * arrays.BLOCK_VALUES + 5)
    assert (run("modulo", 1_000_003, pl.Series(values)).to_numpy() == values % 1_000_003).all()
    series = pl.Series([None, *values.tolist()])[1:]  # nulls in front of a slice: the mask starts inside a byte
    assert (run("modulo", 1_000_003, series).to_numpy() == values % 1_000_003).all()


# first_x, cast, expr


@examples(30)
@given(st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=6))), st.integers(1, 7))
def test_first_x(rows: list[list[int | None] | None], count: int):
    for dtype, as_value in ((pl.Int64(), int), (pl.String(), str), (pl.Float32(), float)):
        typed = [None if row is None else [None if item is None else as_value(item) for item in row] for row in rows]
        expected = [None if row is None else row[:count] for row in typed]
        same(run("first_x", count, pl.Series(typed, dtype=pl.List(dtype))).to_list(), expected)


def test_first_x_of_fixed_size_lists():
    assert run("first_x", 2, pl.Series([[1, 2, 3], None], dtype=pl.Array(pl.Int32, 3))).to_list() == [[1, 2], None]


# ids


@examples(30)
@given(columns(INTEGERS), st.integers(-(2**63) + 1, 2**63 - 1), st.one_of(st.integers(1, 9), st.integers(1, 2**63 - 1)))
def test_sigrid_hash(series: pl.Series, salt: int, limit: int):
    arguments = {"salt": salt, "max_value": limit}
    check_elements("sigrid_hash", arguments, series, lambda value: sigrid_of(value, salt, limit))


@examples(30)
@given(columns(INTEGERS), st.one_of(st.none(), st.integers(-5, 5)))
def test_map_id(series: pl.Series, default: int | None):
    table = {3: 1, -2: 0, 2**64 - 1: 7, 127: -4}
    arguments = {"keys": list(table), "values": list(table.values()), "default": default}
    check_elements("map_id", arguments, series, lambda value: table.get(value, default))


def test_map_id_of_strings():
    arguments = {"keys": ["a", ""], "values": [1, 2], "default": 9}
    assert run("map_id", arguments, pl.Series(["a", "", "b", None])).to_list() == [1, 2, 9, None]
    assert run("map_id", arguments, pl.Series(["a", None, "a"], dtype=pl.Categorical)).to_list() == [1, None, 1]


# lists


@examples(30)
@given(id_lists, st.integers(-7, 7), st.one_of(st.none(), st.integers(-7, 7)))
def test_list_slice(rows: list[Any], start: int, stop: int | None):
    arguments = {"start": start} if stop is None else {"start": start, "stop": stop}
    oracle: Callable[[Any], Any] = lambda row: None if row is None else row[start:stop]  # noqa: E731
    check_rows("list_slice", arguments, [int_lists(rows)], oracle)
    words = [None if row is None else [None if item is None else str(item) for item in row] for row in rows]
    expected = [oracle(row) for row in words]
    assert combined("list_slice", arguments, parts_of(words, pl.List(pl.String())))[0] == expected


def test_slices_far_outside():
    far = 2**63 - 1
    assert combined("list_slice", {"start": -far, "stop": far}, int_lists([[1, 2], []]))[0] == [[1, 2], []]
    assert combined("list_slice", {"start": far}, int_lists([[1, 2], [None]]))[0] == [[], []]
    assert combined("first_x", far, int_lists([[1, 2], None]))[0] == [[1, 2], None]


@examples(30)
@given(id_lists, st.one_of(st.none(), st.integers(-1, 4)), st.one_of(st.none(), st.integers(2, 6)), st.booleans())
def test_id_list_transform(rows: list[Any], low: int | None, high: int | None, unique: bool):
    def oracle(row: list[int]) -> list[int]:
        kept = [item for item in row if (low is None or item >= low) and (high is None or item <= high)]
        return list(dict.fromkeys(kept)) if unique else kept

    arguments = {"min": low, "max": high, "unique": unique}
    check_rows(
        "id_list_transform",
        {key: value for key, value in arguments.items() if value is not None},
        [int_lists(rows)],
        without_nulls(oracle),
    )


def test_lists_of_other_integers():
    for dtype in (pl.Int8(), pl.UInt16(), pl.UInt64()):
        lists = pl.Series([[1, 2, 1], None, []], dtype=pl.List(dtype))
        assert combined("id_list_transform", {"unique": True}, lists)[0] == [[1, 2], None, []]
        one, two = cross_of(1) % 99, cross_of(2) % 99
        assert combined("ngram", {"n": 1, "buckets": 99}, lists)[0] == [[one, two, one], None, []]
        assert combined("pad", 2, lists)[0] == [[1, 2], [0, 0], [0, 0]]
    huge = pl.Series([[2**64 - 1, 0]], dtype=pl.List(pl.UInt64))
    assert combined("id_list_transform", {"min": 1}, huge)[0] == [[2**64 - 1]]
