"""Columns without nulls and the keys of maps are found; columns and rest together hold what a map held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optimized import (
    CLUSTERED,
    events,
    files_of,
    rewrite,
    warehouse,
)

from feedline.errors import DataError, TableError
from feedline.expressions.column_parts import flattened_name
from feedline.warehouse.optimize.survey import (
    count_keys,
    flatten,
    keys_worth,
    null_paths,
    refuse_maps,
    required_paths,
    survey,
    without_nulls,
)
from feedline.warehouse.snapshot.take import take_snapshot


def test_columns_without_nulls_are_not_nullable_in_all_files(tmp_path: Path) -> None:
    source, target = warehouse(tmp_path / "in"), tmp_path / "out"
    late = events(300, seed=99).set_column(0, "event", pa.array([None, *range(299)], pa.int64()))
    pq.write_table(late, source / "ds=2026-01-03" / "9.parquet")
    report = rewrite(source, target, **CLUSTERED)
    (schema,) = {pq.read_schema(path).remove_metadata() for path in files_of(target)}
    assert [field.name for field in schema if not field.nullable] == ["ts", "word", "ids"] == list(report.non_null)
    assert not schema.field("ids").type.value_field.nullable
    assert schema.field("holes").type.value_field.nullable
    kept = rewrite(source, tmp_path / "kept", **CLUSTERED, keep_nullable=True)
    assert kept.non_null == ()
    assert all(field.nullable for field in pq.read_schema(files_of(tmp_path / "kept")[0]))


def test_lists_that_are_empty_somewhere_are_read_to_find_nulls(tmp_path: Path) -> None:
    """A leaf's null count counts empty lists, so only reading tells them from nulls."""
    pq.write_table(
        pa.table({"a": pa.array([[1], [], [2, 3]]), "b": pa.array([[1], None, [2]])}), tmp_path / "x.parquet"
    )
    snapshot = take_snapshot(str(tmp_path))
    assert survey(snapshot, [], map=map).nulls == {"b"}
    assert survey(snapshot, [], map=map, keep_nullable=True).nulls == {"a", "a[]", "b", "b[]"}


def test_footers_that_lie_about_nulls_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = warehouse(tmp_path / "in", days=1)
    monkeypatch.setattr("feedline.warehouse.optimize.recipe.without_nulls", lambda field, _: field.with_nullable(False))
    with pytest.raises(DataError, match=r"column 'session' of .* holds a null: .*--keep-nullable"):
        rewrite(source, tmp_path / "out", **CLUSTERED)
    assert not (tmp_path / "out" / "_feedline").exists()


NESTED = pa.array([[[1, None], []], None], pa.list_(pa.list_(pa.int64())))


def test_paths_with_nulls_are_found_at_every_level():
    assert list(null_paths("x", NESTED)) == ["x", "x[][]"]
    assert list(null_paths("x", pa.array([[[1]], []], NESTED.type))) == []
    assert list(null_paths("x", pa.array([[None]], NESTED.type))) == ["x[]"]
    assert list(null_paths("s", pa.array([{"a": None}]))) == []  # fields of structs are left as they are


def test_columns_become_required_where_no_null_was_found():
    field = pa.field("x", pa.list_(pa.field("item", pa.large_list(pa.int64()))))
    for nulls in (set(), {"x"}, {"x[]"}, {"x", "x[][]"}, {"x", "x[]", "x[][]"}):
        found = without_nulls(field, frozenset(nulls))
        assert set(required_paths(found)) == {"x", "x[]", "x[][]"} - nulls
        assert found.type.value_type.value_type == pa.int64()
    assert list(required_paths(field)) == []


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
