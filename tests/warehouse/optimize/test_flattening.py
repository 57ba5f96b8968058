"""Do columns and rest together hold what the map held? Against maps as Python dictionaries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import TableError
from feedline.expressions.column_parts import flattened_name
from feedline.warehouse.optimize.survey import count_keys, flatten, keys_worth, refuse_maps

Maps = list[list[tuple[str, int | None]] | None]
maps = st.lists(
    st.none() | st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=6), max_size=20
)


def looked_up(entries: list[tuple[str, int | None]] | None, key: str) -> int | None:
    """What `column["key"]` is: of equal keys the first."""
    return next((value for name, value in entries or () if name == key), None)


@examples(60)
@given(maps, st.permutations("abz"), st.integers(0, 3))
def test_columns_and_rest_hold_the_map(rows: Maps, keys: list[str], cut: int) -> None:
    array = pa.array([[], *rows], pa.map_(pa.string(), pa.int64())).slice(1 + min(cut, len(rows)))
    rows = rows[min(cut, len(rows)) :]
    *columns, rest = flatten(array, keys)
    for part in (*columns, rest):
        part.validate(full=True)
        assert len(part) == len(rows)
    assert rest.type == array.type
    for key, column in zip(keys, columns, strict=True):
        assert column.to_pylist() == [looked_up(entries, key) for entries in rows]
    for number, (entries, left) in enumerate(zip(rows, rest.to_pylist(), strict=True)):
        if entries is None:
            assert left is None
            continue
        moved = [
            (key, column[number].as_py()) for key, column in zip(keys, columns, strict=True) if column[number].is_valid
        ]
        assert sorted([*left, *moved], key=str) == sorted(entries, key=str)
        assert left == _without_first(entries, dict(moved))


def _without_first(entries: list[tuple[str, int | None]], moved: dict[str, Any]) -> list[tuple[str, int | None]]:
    left, gone = [], set()
    for name, value in entries:
        if name in moved and name not in gone:
            gone.add(name)
            continue
        left.append((name, value))
    return left


@examples(60)
@given(maps, st.floats(0, 1))
def test_keys_are_counted_by_rows(rows: Maps, coverage: float) -> None:
    counts = count_keys(pa.array(rows, pa.map_(pa.string(), pa.int64())))
    expected = {key: sum(looked_up(entries, key) is not None for entries in rows) for key in "abcd"}
    assert counts == {key: count for key, count in expected.items() if count}
    kept = keys_worth(counts, len(rows), coverage)
    assert set(kept) == {key for key, count in expected.items() if count and count >= coverage * len(rows)}
    assert [counts[key] for key in kept] == sorted((counts[key] for key in kept), reverse=True)


def test_integer_keys_and_lists_as_items() -> None:
    array = pa.array([[(7, [1, 2]), (8, None)], [], [(7, [])]], pa.map_(pa.int32(), pa.list_(pa.int64())))
    column, rest = flatten(array, [7])
    assert column.to_pylist() == [[1, 2], None, []]
    assert rest.to_pylist() == [[(8, None)], [], []]
    assert count_keys(array) == {7: 2}
    assert flattened_name("weights", 7) == "weights.7"


@pytest.mark.parametrize(
    ("kind", "words"),
    [(pa.struct({"a": pa.int8()}), "expected a map"), (pa.map_(pa.float32(), pa.int8()), "keys of type float")],
)
def test_columns_other_than_maps_of_strings_or_integers_are_refused(kind: pa.DataType, words: str) -> None:
    with pytest.raises(TableError, match=words):
        refuse_maps(pa.schema([("m", kind)]), ["m"])
