"""Parts extracted from Arrow arrays agree with plain Python over `to_pylist`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions.column_parts import PartTree
from feedline.expressions.extraction import extract_parts, project

VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float16(), st.floats(width=16, allow_nan=False)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=3)),
    (pa.large_string(), st.text(max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(5, 2), st.decimals(-100, 100, places=2, allow_nan=False)),
    (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    (pa.large_list(pa.string()), st.lists(st.text(max_size=2), max_size=2)),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), st.fixed_dictionaries({"x": st.just(5), "y": st.none()})),
    (pa.map_(pa.string(), pa.int8()), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=3)),
]  # fmt: skip
KEYS: list[tuple[pa.DataType, Sequence[Any]]] = [
    (pa.string(), ["a", "b", "price", "", "é"]),
    (pa.large_string(), ["a", "b", "price", ""]),
    (pa.string_view(), ["a", "b"]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "price"]),
    (pa.int8(), [-128, 0, 7, 300]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    (pa.uint64(), [0, 2**64 - 1, -1]),
]


@st.composite
def maps(draw: st.DrawFn) -> tuple[pa.Array, list[Any]]:
    """A map array (a slice, with null, empty and doubled entries), and keys to ask for, some of which it never has."""
    key_type, keys = draw(st.sampled_from(KEYS))
    value_type, value = draw(st.sampled_from(VALUES))
    held = [key for key in keys if not (isinstance(key, int) and _outside(key, key_type))]
    entries = st.lists(st.tuples(st.sampled_from(held), st.none() | value), max_size=5)
    rows = draw(st.lists(st.none() | entries, max_size=8))
    plain = pa.string() if pa.types.is_dictionary(key_type) else key_type
    array = pa.array(rows, pa.map_(plain, value_type))
    if pa.types.is_dictionary(key_type):
        encoded = array.keys.dictionary_encode()
        mask = pa.array([row is None for row in rows], pa.bool_())
        array = pa.MapArray.from_arrays(array.offsets, encoded, array.items, mask=mask)
    start = draw(st.integers(0, len(rows)))
    return array.slice(start, draw(st.integers(0, len(rows)))), list(keys)


def _outside(key: int, kind: pa.DataType) -> bool:
    try:
        pa.scalar(key, kind)
    except (pa.ArrowInvalid, OverflowError):
        return True
    return False


def looked_up(value: Any, key: Any) -> Any:
    """The first value at a key; null where there is none."""
    if value is None:
        return None
    if isinstance(value, dict):
        return value.get(key)
    return next((item for name, item in value if name == key), None)


@examples(300)
@given(maps())
def test_values_at_keys_of_a_map_agree_with_python(given_map: tuple[pa.Array, list[Any]]) -> None:
    array, keys = given_map
    wanted = PartTree()
    for key in keys:
        wanted.add((key,))
    found = extract_parts(array, wanted)
    rows = array.to_pylist()
    assert list(found) == [(key,) for key in keys]
    for key in keys:
        part = found[(key,)]
        part.validate(full=True)
        assert part.type == array.type.item_type
        assert part.to_pylist() == [looked_up(row, key) for row in rows], key


NESTED = pa.struct(
    [
        ("id", pa.int64()),
        ("geo", pa.struct([("lat", pa.float32()), ("names", pa.map_(pa.string(), pa.struct([("v", pa.int8())])))])),
    ]
)


@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "id": st.none() | st.integers(0, 9),
                "geo": st.none()
                | st.fixed_dictionaries(
                    {
                        "lat": st.none() | st.sampled_from([0.5, 2.0]),
                        "names": st.none()
                        | st.lists(
                            st.tuples(
                                st.sampled_from("ab"),
                                st.none() | st.fixed_dictionaries({"v": st.none() | st.integers(0, 9)}),
                            ),
                            max_size=3,
                        ),
                    }
                ),
            }
        ),
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_nested_parts_agree_with_python(rows: list[Any], start: int) -> None:
    array = pa.array(rows, NESTED).slice(start)
    paths = [("id",), ("geo", "lat"), ("geo", "names", "a", "v"), ("geo", "names", "b"), ("geo", "zzz"), ()]
    wanted = PartTree()
    for path in paths:
        wanted.add(path)
    found = extract_parts(array, wanted)
    for path in paths:
        values = array.to_pylist()
        for key in path:
            values = [looked_up(value, key) for value in values]
        assert found[path].to_pylist() == values, path


def test_a_null_map_may_have_entries() -> None:
    keys, values = pa.array(["a", "a", "a"]), pa.array([1, 2, 3])
    mask = pa.array([False, True, False])
    array = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), keys, values, mask=mask)
    wanted = PartTree()
    wanted.add(("a",))
    assert extract_parts(array, wanted)[("a",)].to_pylist() == [1, None, 3]


def test_more_keys_than_sixteen_bits_hold() -> None:
    count = 70_000
    array = pa.array([[(key, key) for key in range(0, count, 7)], None, [(5, -5)]], pa.map_(pa.int32(), pa.int64()))
    wanted = PartTree()
    for key in range(count):
        wanted.add((key,))
    found = extract_parts(array, wanted)
    assert all(found[(key,)][0].as_py() == (None if key % 7 else key) for key in (0, 1, 69_993, 69_999, 65_536, 35))
    assert found[(5,)].to_pylist() == [None, None, -5]


def test_columns_for_keys_win_where_they_are_not_null() -> None:
    table = pa.table(
        {
            "m": pa.chunked_array([[[("a", 1), ("b", 2)]], [[("a", 3)], None, []]], pa.map_(pa.string(), pa.int32())),
            "m.a": pa.chunked_array([[10, None], [None, 40]], pa.int64()),
            "n": [1, 2, 3, 4],
        }
    )
    names = ['m["b"]', "n", "m['a']", "zzz", 'zzz["a"]']
    expected = {'m["b"]': [2, None, None, None], "n": [1, 2, 3, 4], "m['a']": [10, 3, None, 40]}
    for data in (table, pl.from_arrow(table), table.combine_chunks().to_batches()[0]):
        assert project(data, names).to_dict(as_series=False) == expected
    assert project(table.drop_columns(["m"]), ['m["a"]']).to_series().to_list() == [10, None, None, 40]


def test_no_rows() -> None:
    empty = pa.table({"m": pa.array([], pa.map_(pa.string(), pa.int32()))})
    for data in (empty, pl.from_arrow(empty), empty.schema.empty_table()):
        assert project(data, ['m["a"]']).schema == {'m["a"]': pl.Int32}


@pytest.mark.parametrize("names", [["n"], ["n", "m"]])
def test_plain_columns_are_unchanged(names: list[str]) -> None:
    frame = pl.DataFrame({"n": [1], "m": [2]})
    assert project(frame, names).equals(frame.select(names))
