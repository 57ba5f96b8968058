"""A row is bad exactly if the encoder refuses it alone, or if it breaks a bound alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.features import Expectation, broken_bounds
from feedline.errors import DataError
from feedline.loader.encoding.bad_values import NOT_FINITE, NULL, bad_rows_of
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Observer, measures

FLOATS = st.floats(-4, 4, width=16) | st.sampled_from([None, math.nan, math.inf, -math.inf, -0.0])
IDS = st.integers(-5, 5) | st.none() | st.sampled_from([2**62, -(2**62)])
WEIGHTED = pl.Struct({"values": pl.List(pl.Int64), "weights": pl.List(pl.Float32)})


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=4) | st.none()


pairs = st.lists(st.tuples(IDS, FLOATS), max_size=3).map(
    lambda rows: {"values": [row[0] for row in rows], "weights": [row[1] for row in rows]}
)
KINDS: dict[str, tuple[SlotColumn, Any, st.SearchStrategy[Any]]] = {
    "dense": (SlotColumn(name="f", group="dense", dtype="float32", arrow="float", offset=0), pl.Float32, FLOATS),
    "vector": (
        SlotColumn(name="f", group="dense", dtype="float32", arrow="", offset=0, width=2),
        pl.Array(pl.Float32, 2),
        st.lists(FLOATS, min_size=2, max_size=2) | st.none(),
    ),
    "categorical": (SlotColumn(name="f", group="categorical", dtype="int64", arrow="int64", offset=0), pl.Int64, IDS),
    "ids": (SlotColumn(name="f", group="sparse", dtype="int64", arrow="", offset=0), pl.List(pl.Int64), lists_of(IDS)),
    "floats": (
        SlotColumn(name="f", group="sparse", dtype="float32", arrow="", offset=0),
        pl.List(pl.Float32),
        lists_of(FLOATS),
    ),
    "weighted": (
        SlotColumn(name="f", group="sparse", dtype="int64", arrow="", offset=0, weighted=True),
        WEIGHTED,
        pairs,
    ),
}
numbers = st.integers(-6, 6) | st.sampled_from([0.5, -1.25, 3.0])


@st.composite
def bounds_of(draw: st.DrawFn, kind: str) -> list[Expectation]:
    signs = {"min": (">=", ">"), "max": ("<=", "<")} | ({"list_length_max": ("<=", "<")} if kind in ("ids",) else {})
    found = [
        Expectation(measure=measure, sign=draw(st.sampled_from(signs[measure])), value=draw(numbers))
        for measure in draw(st.lists(st.sampled_from(sorted(signs)), max_size=2, unique=True))
    ]
    if kind not in ("categorical", "ids") and draw(st.booleans()):
        found.append(Expectation(measure="nonfinite", sign="<=", value=0))
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_bad_rows_are_those_that_the_encoder_or_a_bound_refuses_alone(kind: str, data: st.DataObject):
    column, dtype, values = KINDS[kind]
    if column.dtype == "float32" or column.weighted:
        column = SlotColumn(
            **{**_fields(column), "on_nonfinite": data.draw(st.sampled_from(["keep", "zero", "error"]))}
        )
    rows = data.draw(st.lists(values, max_size=8))
    bounds = data.draw(bounds_of(kind))
    series = pl.Series("f", rows, dtype=dtype)
    found = bad_rows_of(column, series, bounds, np.zeros(len(rows), np.bool_), [])
    bad = np.logical_or.reduce([np.zeros(len(rows), np.bool_), *found.values()])
    assert bad.tolist() == [_is_bad(column, series[row : row + 1], bounds) for row in range(len(rows))]
    assert all(mask.any() for mask in found.values())
    assert not _is_bad(column, series.filter(pl.Series(~bad)), bounds)  # together, either


def _fields(column: SlotColumn) -> dict[str, Any]:
    return {name: getattr(column, name) for name in SlotColumn.__dataclass_fields__}


def _is_bad(column: SlotColumn, rows: pl.Series, bounds: list[Expectation]) -> bool:
    """By the code of a run."""
    schema = BatchSchema((column,))
    observer = Observer(schema, [("f",)])
    try:
        encode(rows.to_frame(), schema, observer)
    except DataError:
        return True
    observer.count_rows(pl.DataFrame({"f": [0] * len(rows)}))
    return bool(broken_bounds(tuple(bounds), measures(observer.quality(), schema)["f"]))


def test_reasons_are_named():
    column = SlotColumn(name="f", group="dense", dtype="float32", arrow="float", offset=0, on_nonfinite="error")
    bounds = [Expectation(measure="max", sign="<", value=2), Expectation(measure="null_rate", sign="<=", value=0)]
    series = pl.Series("f", [1.0, None, math.nan, 2.0], dtype=pl.Float32)
    found = bad_rows_of(column, series, bounds, np.array([False, True, False, False]), [])
    assert {reason: mask.tolist() for reason, mask in found.items()} == {
        NULL: [False, True, False, False],
        NOT_FINITE: [False, False, True, False],
        "expected max < 2": [False, False, False, True],
        "expected null_rate <= 0": [False, True, False, False],
    }


def test_values_that_a_lookup_does_not_know_break_a_rate_of_zero():
    column = SlotColumn(name="f", group="categorical", dtype="int64", arrow="int64", offset=0, looks_up=True, lookups=2)
    bound = [Expectation(measure="oov_rate", sign="<=", value=0)]
    missed = [np.array([0, 1, 0], np.uint8), np.array([0, 0, 2], np.int64)]
    found = bad_rows_of(column, np.array([1, 2, 3]), bound, np.zeros(3, np.bool_), missed)
    assert {reason: mask.tolist() for reason, mask in found.items()} == {"expected oov_rate <= 0": [False, True, True]}


def test_extras_are_passed_through():
    column = SlotColumn(name="f", group="extra", dtype="", arrow="string", offset=0)
    bound = [Expectation(measure="null_rate", sign="<=", value=0)]
    series = pl.Series("f", ["a", None])
    assert bad_rows_of(column, series, [], np.array([False, True]), []) == {}
    assert list(bad_rows_of(column, series, bound, np.array([False, True]), [])) == ["expected null_rate <= 0"]


def test_integers_are_compared_exactly():
    """2^62 + 1 is no float64."""
    column = SlotColumn(name="f", group="categorical", dtype="int64", arrow="int64", offset=0)
    values = np.array([2**62, 2**62 + 1])
    for sign, value, bad in (
        ("<=", 2**62, [False, True]),
        ("<", 2**62 + 1, [False, True]),
        ("<=", 2**70, [False, False]),
        ("<=", 0.5, [True, True]),
    ):
        found = bad_rows_of(column, values, [Expectation(measure="max", sign=sign, value=value)], np.zeros(2, bool), [])
        assert [mask.tolist() for mask in found.values()] == ([bad] if any(bad) else [])
