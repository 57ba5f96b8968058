"""Partition keys of paths: against pyarrow's discovery where both agree, else by example."""

from __future__ import annotations

import datetime
from urllib.parse import quote

import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import TableError
from feedline.warehouse.discovery.partitions import NULL_VALUE, keys_of_path, refine, typed_columns


def column(*values: str) -> pa.Array:
    return typed_columns([f"k={value}/f.parquet" for value in values])["k"]


UTC = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "10", "2"], pa.int64(), [1, 10, 2]),
        (["01", "1", "-7"], pa.int64(), [1, 1, -7]),
        (["9223372036854775807", NULL_VALUE], pa.int64(), [2**63 - 1, None]),
        (["9223372036854775808", "1"], pa.string(), ["9223372036854775808", "1"]),
        (["2026-01-31", "2024-02-29"], pa.date32(), [datetime.date(2026, 1, 31), datetime.date(2024, 2, 29)]),
        (["2026-01-31", "2026-02-30"], pa.string(), ["2026-01-31", "2026-02-30"]),
        (["0000-01-01"], pa.string(), ["0000-01-01"]),
        (["1", "x"], pa.string(), ["1", "x"]),
        (["1", ""], pa.string(), ["1", ""]),
        (["1.5"], pa.string(), ["1.5"]),
        (["true"], pa.string(), ["true"]),
        (["+1"], pa.string(), ["+1"]),
        (["\u0661"], pa.string(), ["\u0661"]),  # a digit, but not an ASCII one
        ([NULL_VALUE, NULL_VALUE], pa.string(), [None, None]),
        (["a%2Fb%20c", "ä", "%zz", "%ff"], pa.string(), ["a/b c", "ä", "%zz", "%ff"]),
        (["a=b"], pa.string(), ["a=b"]),
    ],
)
def test_values_of_a_key_decide_its_type(values: list[str], kind: pa.DataType, expected: list[object]) -> None:
    array = column(*values)
    assert array.type == kind
    assert array.to_pylist() == expected


def test_keys_are_in_path_order_and_missing_ones_are_null() -> None:
    columns = typed_columns(["a=1/b=x/f", "a=2/f", "f", "plain/c%20d=3/f"])
    assert {name: array.to_pylist() for name, array in columns.items()} == {
        "a": [1, 2, None, None],
        "b": ["x", None, None, None],
        "c d": [None, None, None, 3],
    }


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("int", ["01", NULL_VALUE, "-3"], pa.array([1, None, -3])),
        ("string", ["01", "2026-01-31", NULL_VALUE], pa.array(["01", "2026-01-31", None])),
        ("date", ["20260131", NULL_VALUE], pa.array([datetime.date(2026, 1, 31), None])),
        ("date", ["2026-01-31", NULL_VALUE], pa.array([datetime.date(2026, 1, 31), None])),
        (
            "timestamp",
            ["2026-01-31", "2026-01-31 12%3A30%3A00.5", "2026-01-31T12:30", NULL_VALUE],
            pa.array(
                [
                    datetime.datetime(2026, 1, 31),
                    datetime.datetime(2026, 1, 31, 12, 30, 0, 500_000),
                    datetime.datetime(2026, 1, 31, 12, 30),
                    None,
                ],
                pa.timestamp("us"),
            ),
        ),
    ],
)
def test_a_declared_type_is_used(kind: str, values: list[str], expected: pa.Array) -> None:
    paths = [f"k={value}/f.parquet" for value in values]
    assert typed_columns(paths, {"k": kind})["k"].equals(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "x"),
        ("int", "1.0"),
        ("int", "9223372036854775808"),
        ("date", "2026-02-30"),
        ("date", "20260231"),
        ("date", "2026-0131"),
        ("timestamp", "noon"),
        ("timestamp", "2026-01-31T12:30:00+01:00"),
    ],
)
def test_a_value_that_does_not_fit_names_path_and_value(kind: str, value: str) -> None:
    with pytest.raises(TableError) as caught:
        typed_columns(["k=__HIVE_DEFAULT_PARTITION__/f", f"a=1/k={value}/g"], {"k": kind})
    assert str(caught.value).startswith(
        f"partition key 'k' does not fit its declared type: got {value!r} in a=1/k={value}/g, expected {kind}."
    )


def test_a_key_that_no_path_has_is_refused() -> None:
    with pytest.raises(TableError, match="partition key 'day' is declared but not in the table: got keys a, b"):
        typed_columns(["a=1/b=2/f"], {"day": "date"})


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "12"], pa.int8(), pa.array([1, 12], pa.int8())),
        (["1", "300"], pa.int8(), pa.array([1, 300])),  # does not fit: as inferred
        (["1", NULL_VALUE], pa.float64(), pa.array([1.0, None])),
        (["01", "2"], pa.string(), pa.array(["01", "2"])),
        (["2026-01-31"], pa.timestamp("us"), pa.array([datetime.datetime(2026, 1, 31)], pa.timestamp("us"))),
        (
            ["2026-01-31"],
            pa.timestamp("ms", "UTC"),
            pa.array([datetime.datetime(2026, 1, 31)], pa.timestamp("ms", "UTC")),
        ),
        (["x"], pa.int64(), pa.array(["x"])),
        # a whole number is no time, a date no number, and midnight not the same everywhere
        (["20260101"], pa.timestamp("us"), pa.array([20260101])),
        (["20260101"], pa.timestamp("s", "UTC"), pa.array([20260101])),
        (["12"], pa.date64(), pa.array([12])),
        (["12"], pa.time64("us"), pa.array([12])),
        (["12"], pa.duration("s"), pa.array([12])),
        (["2026-01-31"], pa.int32(), pa.array([datetime.date(2026, 1, 31)])),
        (["2026-01-31"], pa.timestamp("us", "Asia/Tokyo"), pa.array([datetime.date(2026, 1, 31)])),
        (["1"], pa.list_(pa.int8()), pa.array([1])),
        (["2026-01-31"], pa.large_string(), pa.array(["2026-01-31"], pa.large_string())),
    ],
)
def test_a_key_takes_the_type_of_the_files_column(values: list[str], kind: pa.DataType, expected: pa.Array) -> None:
    paths = [f"k={value}/f" for value in values]
    assert refine(typed_columns(paths)["k"], "k", kind, paths).equals(expected)


def test_a_file_name_and_a_nameless_key_are_no_partition() -> None:
    assert keys_of_path("=1/a=2/b=3.parquet") == {"a": "2"}
    assert typed_columns(["f.parquet", "g.parquet"]) == {}


def test_a_key_twice_in_a_path_is_refused() -> None:
    with pytest.raises(TableError, match=r"names partition key 'a' twice"):
        keys_of_path("a=1/a=2/f.parquet")


@examples(50)
@given(st.lists(st.one_of(st.none(), st.text(min_size=1, max_size=8)), min_size=1, max_size=5))
def test_any_string_round_trips_through_a_path(texts: list[str | None]) -> None:
    texts = [None if text is None else text for text in texts if text is None or text.isprintable()] or [None]
    folders = [NULL_VALUE if text is None else quote(text, safe="") for text in texts]
    array = column(*folders)
    if array.type == pa.string():
        assert array.to_pylist() == texts
    else:
        assert [None if value is None else str(value) for value in array.to_pylist()] == [
            None if text is None else str(int(text)) if array.type == pa.int64() else text for text in texts
        ]
