"""Ops over parts of a column, in any cut and of any numeric type, give the parts of their results."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from op_oracles import run


def test_decimals_are_numbers():
    prices = pl.Series([Decimal("0.50"), None, Decimal("3.25")])
    assert run("clip", {"min": 1, "max": 2}, prices).to_list() == [1.0, None, 2.0]
    assert run("bucketize", [0.5, 3], prices).to_list() == [0, None, 2]
    assert run("cast", "int64", prices).to_list() == [0, None, 3]


def test_half_floats_are_numbers():
    halves = pl.Series([0.5, None, -2.0], dtype=pl.Float16)
    assert run("clip", {"min": 0, "max": 1}, halves).to_list() == [0.5, None, 0.0]


def test_values_under_a_null_list_do_not_count():
    """Arrow allows elements under a null; a strict cast must not look at them, and no op may bring them back."""
    hidden = pa.LargeListArray.from_buffers(
        pa.large_list(pa.float64()),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 2, 3], dtype=np.int64))],
        children=[pa.array([1.0, math.nan, 2.0])],
    )
    series = pl.Series(hidden)
    assert run("cast", "int64", series).to_list() == [[1], None, [2]]
    assert run("bucketize", [1.5], series).to_list() == [[0], None, [1]]
    assert run("clip", {"max": 1}, series).to_list() == [[1.0], None, [1.0]]
    assert run("first_x", 1, series).to_list() == [[1.0], None, [2.0]]


# what holds for every op

CALLS = [
    ("fill_null", 3),
    ("clip", {"min": 2, "max": 50}),
    ("log1p", None),
    ("log", None),
    ("logit", 0.01),
    ("box_cox", {"power": 0.3, "shift": 1}),
    ("standardize", {"mean": 3, "std": 2}),
    ("cast", "float32"),
    ("bucketize", [2, 5, 5, 70]),
    ("hash_bucket", 1000),
    ("modulo", 17),
    ("sigrid_hash", {"salt": 1, "max_value": 1000}),
    ("map_id", {"keys": [0, 37, 74], "values": [1, 2, 3], "default": 0}),
    ("expr", "x"),
]


OF_IDS = ("hash_bucket", "modulo", "sigrid_hash", "map_id")


@pytest.mark.parametrize(("op", "arguments"), [call for call in CALLS if call[0] not in OF_IDS])
def test_float32_does_not_depend_on_where_a_part_begins(op: str, arguments: object):
    """Vectorised loops end in other instructions than they begin with; the bits must be the same."""
    series = pl.Series("a", np.random.default_rng(0).gamma(2.0, 20.0, 1000).astype(np.float32))
    whole = run(op, arguments, series)
    for start in (1, 2, 3, 5, 17):
        for stop in (start + 1, start + 7, 998, 1000):
            assert run(op, arguments, series[start:stop]).equals(whole[start:stop])


@pytest.mark.parametrize(("op", "arguments"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_columns_without_rows_and_of_nulls_only(op: str, arguments: object):
    for dtype in (pl.Int64(), pl.List(pl.Int64())):
        assert len(run(op, arguments, pl.Series("a", [], dtype=dtype))) == 0
        filled = 3 if op == "fill_null" and dtype == pl.Int64() else None
        assert run(op, arguments, pl.Series("a", [None] * 10, dtype=dtype)).to_list() == [filled] * 10
