"""Which impressions outcomes are given to, and their labels, against a loop over all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.build_spec import Label
from feedline.errors import DataError
from feedline.warehouse.building.as_of import latest_before
from feedline.warehouse.building.attribution import Attribution, attribute, distinct_outcomes, label_type, labels_of

KEYS = ["key:a", "key:b"]
touches_of = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("xy"), st.integers(0, 20), st.integers(-1, 5)), max_size=15
)
outcomes_of = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("xyz"), st.integers(0, 25)), max_size=15)


def frame_of(rows: list[Any], names: list[str], types: list[Any]) -> pl.DataFrame:
    schema = dict(zip(names, types, strict=True))
    return pl.DataFrame(rows, schema=schema, orient="row")


def touch_frame(rows: list[Any]) -> pl.DataFrame:
    names = [*KEYS, "time", "row"]
    frame = frame_of(rows, names, [pl.Int64, pl.String, pl.Int64, pl.Int64])
    return frame.with_columns(pl.Series("key:o", range(frame.height), dtype=pl.Int64))


@given(
    touches=touches_of, outcomes=outcomes_of, within=st.integers(1, 12), rule=st.sampled_from(["last", "first", "all"])
)
def test_outcomes_go_to_the_touches_before_them(
    touches: list[Any], outcomes: list[Any], within: int, rule: str
) -> None:
    found = attribute(
        touch_frame(touches),
        frame_of(outcomes, [*KEYS, "time"], [pl.Int64, pl.String, pl.Int64]),
        KEYS,
        ["key:o"],
        within=within,
        rule=rule,
    )
    pairs, touched = set(), []
    for index, (*key, at) in enumerate(outcomes):
        before = [
            (time, order, row)
            for order, (*other, time, row) in enumerate(touches)
            if other == key and time < at <= time + within
        ]
        touched.append(bool(before))
        chosen = before if rule == "all" or not before else [max(before) if rule == "last" else min(before)]
        pairs |= {(row, index) for *_, row in chosen if row >= 0}
    assert list(zip(found.rows.tolist(), found.outcomes.tolist(), strict=True)) == sorted(pairs)
    assert found.touched.tolist() == touched


@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=20, unique=True),
    values=st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=10, max_size=10),
    at=st.lists(st.integers(0, 3), min_size=10, max_size=10),
)
def test_labels_are_those_of_a_loop(pairs: list[tuple[int, int]], values: list[int | None], at: list[int]) -> None:
    pairs = sorted(pairs)
    attribution = Attribution(
        np.array([row for row, _ in pairs], np.int64), np.array([one for _, one in pairs], np.int64), np.ones(10, bool)
    )
    outcomes = pl.DataFrame({"time": at, "value:x": pl.Series(values, dtype=pl.Int64)})
    functions = ("exists", "count", "sum", "max", "min", "first", "last")
    labels = [
        Label(name=each, function=each, column=None if each in ("exists", "count") else "x") for each in functions
    ]
    rows, found = labels_of(attribution, outcomes, labels)
    expected: dict[int, dict[str, Any]] = {}
    for row in sorted({row for row, _ in pairs}):
        own = [(at[one], values[one]) for each, one in pairs if each == row]
        held = sorted((time, value) for time, value in own if value is not None)
        numbers = [value for _, value in held]
        expected[row] = {
            "exists": True,
            "count": len(own),
            "sum": sum(numbers) if held else None,
            "max": max(numbers, default=None),
            "min": min(numbers, default=None),
            "first": held[0][1] if held else None,
            "last": held[-1][1] if held else None,
        }
    assert rows.tolist() == list(expected)
    for name in functions:
        assert found[name].to_list() == [each[name] for each in expected.values()], name


def test_sums_of_floats_do_not_depend_on_the_order_of_arrival() -> None:
    values = np.array([1e16, 1.0, -1e16, 3.0, 0.1, 0.2, 0.3, -0.0])
    outcomes = pl.DataFrame({"time": np.zeros(8, np.int64), "value:x": values})
    label = Label(name="sum", function="sum", column="x")
    sums = set()
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(8)
        pairs = Attribution(np.zeros(8, np.int64), order.astype(np.int64), np.ones(8, np.bool_))
        sums.add(labels_of(pairs, outcomes, [label])[1]["sum"].to_list()[0])
    assert len(sums) == 1


def test_a_sum_beyond_64_bits_is_an_error() -> None:
    pairs = Attribution(np.zeros(2, np.int64), np.arange(2), np.ones(2, np.bool_))
    outcomes = pl.DataFrame({"time": [0, 1], "value:x": [2**62, 2**62]})
    with pytest.raises(DataError, match="label 'spent' is too large: got a sum of 'x' beyond 64 bits"):
        labels_of(pairs, outcomes, [Label(name="spent", function="sum", column="x")])


def test_outcomes_that_are_equal_count_once() -> None:
    frame = pl.DataFrame({"key:a": [1, 1, 1, 2], "time": [5, 5, 5, 5], "digest": [7, 7, 8, 7]})
    assert distinct_outcomes(frame, ["key:a"]).height == 3


@pytest.mark.parametrize(
    ("function", "column", "kind"),
    [
        ("exists", None, pa.bool_()),
        ("count", None, pa.int64()),
        ("sum", pa.int8(), pa.int64()),
        ("sum", pa.float32(), pa.float64()),
        ("max", pa.float32(), pa.float32()),
        ("last", pa.string(), pa.string()),
    ],
)
def test_types_of_labels(function: str, column: pa.DataType | None, kind: pa.DataType) -> None:
    assert label_type(Label(name="l", function=function, column="x" if column else None), column) == kind


@given(
    impressions=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=12),
    features=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 3)), max_size=12),
    within=st.one_of(st.none(), st.integers(1, 8)),
)
def test_features_are_the_latest_before_the_impression(
    impressions: list[tuple[int, int]], features: list[tuple[int, int, int]], within: int | None
) -> None:
    found = latest_before(
        frame_of(impressions, ["key:a", "time"], [pl.Int64, pl.Int64]),
        frame_of(features, ["key:a", "time", "digest"], [pl.Int64, pl.Int64, pl.UInt64]),
        ["key:a"],
        within=within,
    )
    for (key, at), index in zip(impressions, found.tolist(), strict=True):
        seen = [
            each for each in features if each[0] == key and each[1] < at and (within is None or each[1] >= at - within)
        ]
        assert (features[index] if index >= 0 else None) == max(seen, key=lambda each: each[1:], default=None)
