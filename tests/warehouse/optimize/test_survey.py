"""Columns without nulls and the keys of maps are found, from footers where these tell."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import (
    CLUSTERED,
    events,
    files_of,
    rewrite,
    warehouse,
)

from feedline.errors import DataError
from feedline.warehouse.optimize.survey import null_paths, required_paths, survey, without_nulls
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
