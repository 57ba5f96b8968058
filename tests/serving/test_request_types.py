"""Values of requests are converted to the types of training, or refused with column, row and value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from combinations import combinations
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.serving.encoder import frame_of
from feedline.serving.request_types import convert, convertible, table_of

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@given(st.sampled_from(INTEGERS), st.sampled_from([*INTEGERS, pa.float32(), pa.float64()]), st.data())
def test_integers_fit_or_are_refused(stored: pa.DataType, wanted: pa.DataType, data: st.DataObject):
    info = np.iinfo(str(stored))
    near = st.sampled_from([0, -1, 127, 128, 255, 256, 2**24, 2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63])
    value = st.one_of(st.none(), st.integers(info.min, info.max), near.filter(lambda v: info.min <= v <= info.max))
    values = data.draw(st.lists(value, max_size=8))

    def fits(value: int | None) -> bool:
        if value is None:
            return True
        if wanted in INTEGERS:
            limits = np.iinfo(str(wanted))
            return bool(limits.min <= value <= limits.max)
        digits = 24 if wanted == pa.float32() else 53
        return abs(value) <= 2**digits

    wrong = [row for row, value in enumerate(values) if not fits(value)]
    assert convertible(stored, wanted)
    if wrong:
        with pytest.raises(DataError, match="column 'c' holds a value that does not fit") as caught:
            convert(pa.array(values, stored), wanted, "c")
        assert caught.value.row == wrong[0]
    else:
        assert convert(pa.array(values, stored), wanted, "c").to_pylist() == values


@given(st.lists(st.one_of(st.none(), st.floats(width=64, allow_infinity=False)), max_size=8))
def test_doubles_are_rounded_as_numpy_rounds(values: list[float | None]):
    with np.errstate(over="ignore"):
        expected = [None if value is None else float(np.float32(value)) for value in values]
    over = [row for row, value in enumerate(expected) if value in (float("inf"), float("-inf"))]
    if over:
        with pytest.raises(DataError, match="does not fit") as caught:
            convert(pa.array(values, pa.float64()), pa.float32(), "c")
        assert caught.value.row == over[0]
    else:
        found = convert(pa.array(values, pa.float64()), pa.float32(), "c").to_pylist()
        assert repr(found) == repr(expected)


def test_values_outside_a_slice_are_ignored():
    column = pa.array([[300], [1, 2], None, [2**40]]).slice(1, 2)
    assert convert(column, pa.list_(pa.int8()), "c").to_pylist() == [[1, 2], None]


@pytest.mark.parametrize(
    ("values", "kind", "column"),
    combinations(
        [[["a"], "bc"], ["bc"], [None, b"bc"]],
        [pa.list_(pa.string()), pa.large_list(pa.int64()), pa.list_(pa.int8(), 2)],
        [list, tuple, lambda values: pd.Series(values, dtype=object)],
    ),
)
def test_a_string_is_no_list_of_its_characters(values: list[object], kind: pa.DataType, column: Callable[[list], Any]):
    with pytest.raises(DataError, match=r"column 'c' holds values of another type: expected .*list"):
        table_of({"c": column(values)}, pa.schema([("c", kind)]))
    lists = table_of({"c": column([["a", "bc"], None, []])}, pa.schema([("c", pa.list_(pa.string()))]))
    assert lists["c"].to_pylist() == [["a", "bc"], None, []]


def test_times():
    seconds, micros = pa.timestamp("s"), pa.timestamp("us")
    assert convert(pa.array([1, None], seconds), micros, "t").cast(pa.int64()).to_pylist() == [1_000_000, None]
    with pytest.raises(DataError, match="column 't' holds a value that does not fit") as caught:
        convert(pa.array([1_000_000, 1_000_001], micros), seconds, "t")
    assert caught.value.row == 1
    zoned = pa.array([0], pa.timestamp("ms", "UTC"))
    made = convert(zoned, pa.timestamp("us", "Europe/Zurich"), "t")
    assert made.cast(pa.int64()).to_pylist() == [0]
    assert not convertible(seconds, pa.timestamp("s", "UTC"))
    assert not convertible(pa.date32(), seconds)
    assert convertible(pa.date64(), pa.date32())
    assert convertible(pa.map_(pa.string(), pa.int8()), pa.map_(pa.large_string(), pa.float32()))
    assert not convertible(pa.list_view(pa.int64()), pa.list_(pa.int64()))


def test_times_may_be_strings_as_json_has_them():
    naive, zoned = pa.timestamp("us"), pa.timestamp("ms", "UTC")
    types = pa.schema([("t", naive), ("z", zoned), ("d", pa.date32()), ("l", pa.list_(pa.struct([("t", naive)])))])
    row = json.loads(
        '{"t": "2026-01-31T12:00:00.25", "z": "2026-01-31T12:00:00+02:00", "d": "2026-01-31",'
        ' "l": [{"t": "2026-01-31 12:00:00"}, {"t": null}]}'
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    plain = noon.replace(tzinfo=None)
    expected = {
        "t": plain.replace(microsecond=250_000),
        "z": noon.replace(hour=10),
        "d": plain.date(),
        "l": [{"t": plain}, {"t": None}],
    }
    none = dict.fromkeys(row)
    for rows in (row, [row, none], {name: [value] for name, value in row.items()}):
        made = frame_of(rows, types)
        assert made.schema == types
        assert made.to_pylist()[0] == expected
    strings = pa.table({name: pa.array([row[name]]) for name in ("t", "z", "d")})
    assert all(convertible(strings.schema.field(name).type, types.field(name).type) for name in strings.column_names)
    assert convert(strings["z"], zoned, "z").to_pylist() == [noon.replace(hour=10)]


@pytest.mark.parametrize(
    ("text", "kind", "remedy"),
    [
        ("2026-01-31T12:00:00Z", pa.timestamp("us"), "ISO 8601 with no offset, as training has them: 2026-01-31T12"),
        ("2026-01-31T12:00:00", pa.timestamp("us", "UTC"), "with an offset or Z, as training has them: 2026-01-31T12"),
        ("2026-01-31T12:00:00.0001", pa.timestamp("ms"), "Write times as ISO 8601"),
        ("yesterday", pa.date32(), "Write dates as ISO 8601: 2026-01-31"),
    ],
)
def test_other_strings_are_refused_as_times(text: str, kind: pa.DataType, remedy: str):
    types = pa.schema([("t", kind)])
    with pytest.raises(DataError, match=f"column 't' .*{re.escape(remedy)}") as caught:
        frame_of([{"t": None}, {"t": text}], types)
    assert caught.value.row == 1
    with pytest.raises(DataError, match="column 't' holds values of another type: expected"):
        frame_of([{"t": [text]}], types)
