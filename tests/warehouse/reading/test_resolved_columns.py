"""Resolved columns are shared by files that store the same columns, and by no others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from feedline.warehouse.parquet.dedup_columns import DedupMetadata, GroupRuns
from feedline.warehouse.reading.read import resolve_columns
from feedline.warehouse.reading.stored_groups import StoredColumns

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("ds", pa.string())])


@dataclass(frozen=True, kw_only=True)
class File:
    """What is read of an open file."""

    stored: dict[str, range]
    schema: pa.Schema
    dedup: DedupMetadata | None = None


FILE = File(stored={"a": range(1), "b": range(1, 2)}, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))


def resolve(
    file: File = FILE,
    schema: pa.Schema = SCHEMA,
    names: tuple[str, ...] = ("a", "b", "ds"),
    compact: frozenset[str] = frozenset(),
    keys: frozenset[str] = frozenset({"ds"}),
) -> StoredColumns:
    return resolve_columns(file, schema, names, compact, keys)  # type: ignore[arg-type]


def test_files_of_the_same_columns_share_what_is_resolved() -> None:
    other = File(stored=dict(FILE.stored), schema=FILE.schema.with_metadata({"pandas": "{}"}))
    assert resolve(other, pa.schema(list(SCHEMA))) is resolve()


@pytest.mark.parametrize(
    "changes",
    [
        {"file": replace(FILE, schema=pa.schema([("a", pa.int32()), ("b", pa.string())]))},
        {"file": replace(FILE, stored={"b": range(1), "a": range(1, 2)})},
        {"file": replace(FILE, dedup=DedupMetadata(groups={}))},
        {"schema": pa.schema([("a", pa.float64()), *list(SCHEMA)[1:]])},
        {"schema": pa.schema([SCHEMA.field("a").with_metadata({"x": "y"}), *list(SCHEMA)[1:]])},
        {"names": ("b", "a", "ds")},
        {"compact": frozenset({"a"})},
        {"keys": frozenset()},
    ],
    ids=str,
)
def test_all_that_decides_what_is_resolved_tells_files_apart(changes: dict) -> None:
    assert resolve(**changes) is not resolve()
    assert resolve(**changes) is resolve(**changes)


def test_files_of_the_same_groups_share_all_but_their_runs() -> None:
    one, two, other = (
        replace(FILE, dedup=DedupMetadata(groups={"u": GroupRuns(columns=columns, row_groups=())}))
        for columns in (("a",), ("a",), ("a", "b"))
    )
    assert resolve(one)._rows is resolve(two)._rows
    assert resolve(two)._metadata is two.dedup
    assert resolve(other)._rows is not resolve(one)._rows
