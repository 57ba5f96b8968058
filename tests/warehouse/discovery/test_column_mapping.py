"""Delta tables with column mapping: the rows that deltalake's query engine reads, whatever files call their columns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from feedline import Table
from feedline.errors import TableError
from feedline.expressions import bind_where
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.reading.fragment import UNCOUNTED, fragment_at
from feedline.warehouse.selection.select import count_fragment, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of

deltalake = pytest.importorskip("deltalake")

# The table of most tests: top-level columns, fields of a struct, of a list's elements and of a map's values.
TABLE = pa.table(
    {
        "id": pa.array(range(40), pa.int64()),
        "k": pa.array([("a", "b")[i // 20] for i in range(40)]),
        "text": pa.array([f"v{i % 7}" if i % 5 else None for i in range(40)]),
        "user": pa.array([{"age": i, "name": {"first": f"n{i}"}} if i % 6 else None for i in range(40)]),
        "items": pa.array([[{"sku": i, "price": i / 2}] * (i % 3) if i % 7 else None for i in range(40)]),
        "scores": pa.array(
            [[(f"s{i % 2}", {"value": i})] for i in range(40)],
            pa.map_(pa.string(), pa.struct([pa.field("value", pa.int64())])),
        ),
    }
)
PHYSICAL = {
    "id": "col-id", "k": "col-k", "text": "col-text", "user": "col-user", "age": "col-age", "name": "age",
    "first": "col-first", "items": "id", "sku": "price", "price": "sku", "scores": "col-scores", "value": "col-value",
}  # fmt: skip


class MappedTable:
    """A Delta table whose files and log are written by hand. mode: of the mapping."""

    def __init__(self, folder: Path, mode: str, *, keys: Sequence[str] = ()) -> None:
        self.folder, self.mode, self.keys = folder, mode, keys
        self.version = count()
        (folder / "_delta_log").mkdir(parents=True)

    def commit(self, table: pa.Table, names: Mapping[str, str], ids: Mapping[str, int]) -> None:
        """Set the table's columns. names, ids: those of columns and fields in files, by their names in the table."""
        log = deltalake.Schema.from_arrow(table.schema).to_json()
        fields = json.loads(log)["fields"]
        for field in _all_fields(fields):
            field["metadata"] = {
                "delta.columnMapping.id": ids[field["name"]],
                "delta.columnMapping.physicalName": names.get(field["name"], field["name"]),
            }
        metadata = {
            "id": "0d2c1c5a-6a4f-4b5e-9f0e-2f6d9f3f0a11",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(self.keys),
            "configuration": {"delta.columnMapping.mode": self.mode},
            "createdTime": 0,
        }
        version = next(self.version)
        protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
        self._write(version, [*([protocol] if version == 0 else []), {"metaData": metadata}])

    def add(self, table: pa.Table, names: Mapping[str, str], ids: Mapping[str, int], **options: Any) -> Path:
        """Add a file per partition, with these names and field ids of columns and fields."""
        adds = []
        for number, part in enumerate(_partitions(table, self.keys)):
            values = {names.get(key, key): part[key][0].as_py() for key in self.keys}
            stored = part.drop_columns(list(self.keys))
            schema = pa.schema([_stored(field, names, ids) for field in stored.schema])
            arrays = [
                _relabelled(stored[name].combine_chunks(), schema.field(i).type)
                for i, name in enumerate(stored.column_names)
            ]
            version = next(self.version)
            path = self.folder / f"part-{version}-{number}.parquet"
            pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, **options)
            os.utime(path, (1_700_000_000, 1_700_000_000))
            action = {"path": path.name, "partitionValues": values, "size": path.stat().st_size,
                      "modificationTime": 1_700_000_000_000, "dataChange": True}  # fmt: skip
            adds.append({"add": action})
            self._write(version, adds[-1:])
        return path

    def _write(self, version: int, actions: Sequence[dict[str, Any]]) -> None:
        path = self.folder / "_delta_log" / f"{version:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def expected(self) -> pa.Table:
        """The rows as deltalake's query engine reads them."""
        query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.folder))
        return pa.table(query.execute("select * from t").read_all())


def _all_fields(fields: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for field in fields:
        yield field
        kinds = [field["type"]]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, dict):
                yield from _all_fields(kind.get("fields", ()))
                kinds += [kind.get("elementType"), kind.get("valueType")]


def _stored(field: pa.Field, names: Mapping[str, str], ids: Mapping[str, int]) -> pa.Field:
    metadata = {"PARQUET:field_id": str(ids[field.name])} if ids else None
    return pa.field(names.get(field.name, field.name), _stored_type(field.type, names, ids), metadata=metadata)


def _stored_type(kind: pa.DataType, names: Mapping[str, str], ids: Mapping[str, int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_stored(field, names, ids) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _stored_type(kind.item_type, names, ids))
    return pa.list_(_stored_type(kind.value_type, names, ids)) if pa.types.is_list(kind) else kind


def _relabelled(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of a type that differs in names alone, built from its parts."""
    if pa.types.is_struct(kind):
        parts = [_relabelled(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        values = _relabelled(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, values).cast(kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            array.offsets, _relabelled(array.values, kind.value_type), type=kind, mask=array.is_null()
        )
    return array


def _partitions(table: pa.Table, keys: Sequence[str]) -> list[pa.Table]:
    if not keys:
        return [table]
    [key] = keys
    return [table.filter(pc.equal(table[key], value)) for value in table[key].unique()]


IDS = {name: number for number, name in enumerate(PHYSICAL, 11)}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.select(sorted(table.column_names)).to_pylist(), key=lambda row: row["id"])


@pytest.fixture(params=["name", "id"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("keys", [(), ("k",)])
def test_every_column_and_field_has_another_name_in_files(tmp_path: Path, mode: str, keys: tuple[str, ...]):
    table = MappedTable(tmp_path / "t", mode, keys=keys)
    table.commit(TABLE, PHYSICAL, IDS)
    table.add(TABLE, PHYSICAL, IDS, row_group_size=7)
    read = Table(table.folder)
    assert rows_of(read.read()) == rows_of(TABLE) == rows_of(table.expected())
    assert read.read(columns=['user["name"]']).num_rows == 40
    snapshot = read.snapshot()
    assert set(snapshot.schema.names) == set(TABLE.column_names)
    assert snapshot.partition_columns == keys
    frame = read.to_dask(columns=["id", "text"]).compute().set_index("id")
    assert frame.loc[8, "text"] == "v1"


def test_only_files_by_id_need_the_names_that_the_log_gives(tmp_path: Path):
    """In mode `id` a file's columns may have any names."""
    table = MappedTable(tmp_path / "t", "id")
    table.commit(TABLE, PHYSICAL, IDS)
    table.add(TABLE, {name: f"any-{name}" for name in PHYSICAL}, IDS)
    assert rows_of(Table(table.folder).read()) == rows_of(TABLE)


def test_a_column_is_renamed_and_another_gets_its_name(tmp_path: Path, mode: str):
    table = MappedTable(tmp_path / "t", mode)
    old = pa.table({"id": [1, 2], "a": [10, 20], "b": ["x", "y"]})
    table.commit(old, {}, {"id": 1, "a": 2, "b": 3})
    table.add(old, {}, {"id": 1, "a": 2, "b": 3})
    new = pa.table({"id": [3], "c": [30], "a": pa.array([0.5])})  # a is c now, b was dropped, and there is a new a
    names, ids = {"c": "a", "a": "col-new"}, {"id": 1, "c": 2, "a": 4}
    table.commit(new, names, ids)
    table.add(new, names, ids)
    read = Table(table.folder).read()
    assert rows_of(read) == rows_of(table.expected())
    assert rows_of(read) == [
        {"a": None, "c": 10, "id": 1}, {"a": None, "c": 20, "id": 2}, {"a": 0.5, "c": 30, "id": 3}
    ]  # fmt: skip


def test_row_groups_are_excluded_by_statistics_and_bloom_filters(tmp_path: Path, mode: str):
    table = MappedTable(tmp_path / "t", mode)
    table.commit(TABLE, PHYSICAL, IDS)
    column = PHYSICAL["text"]
    table.add(TABLE, PHYSICAL, IDS, row_group_size=10, bloom_filter_options={column: {"ndv": 10}})
    snapshot = Table(table.folder).snapshot()
    assert snapshot.column_facts("id").field("max").to_pylist() == [9, 19, 29, 39]
    for where, rows, excluded in (("id >= 35", 5, 3), ('text == "v3"', 5, 0), ('text == "v3x"', 0, 4)):
        bound = bind_where(where, snapshot.schema)
        screened = screen_rows(snapshot, bound)
        assert Table(table.folder).read(where=where).num_rows == rows
        if excluded == 3:
            assert np.flatnonzero(screened.rows).tolist() == [3], "by statistics"
        else:
            fragment = fragment_at(snapshot, 0, np.arange(4), np.full(4, UNCOUNTED))
            assert sum(count.by_bloom for count in count_fragment(fragment, bound, snapshot.schema)) == excluded


def test_another_mapping_is_another_snapshot(tmp_path: Path):
    """The files are the same: what is kept of them under one mapping is not used under another."""
    work = str(tmp_path / "work")
    table = MappedTable(tmp_path / "t", "name")
    rows = pa.table({"id": [1, 2], "a": [10, 20], "b": [30, 40]})
    table.commit(rows, {}, {"id": 1, "a": 2, "b": 3})
    table.add(rows, {}, {"id": 1, "a": 2, "b": 3})
    ids = []
    for names in ({}, {"a": "b", "b": "a"}, {}, {"a": "b", "b": "c"}):
        table.commit(rows, names, {"id": 1, "a": 2, "b": 3})
        snapshot = snapshot_of(list_delta(str(table.folder)), work_dir=work)
        loaded = Snapshot.load(work, snapshot.id)
        assert (loaded.id, loaded.stored_names) == (snapshot.id, snapshot.stored_names)
        read = Table(table.folder).read(columns=["a"])
        assert read["a"].to_pylist() == ([30, 40] if names else [10, 20])
        assert loaded.column_facts("a")[0].as_py()["min"] == (30 if names else 10)
        ids.append(snapshot.id)
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3


def test_a_file_without_field_ids_is_refused_where_columns_are_mapped_by_id(tmp_path: Path):
    table = MappedTable(tmp_path / "t", "id")
    table.commit(TABLE, PHYSICAL, IDS)
    path = table.add(TABLE, PHYSICAL, {})
    with pytest.raises(TableError, match=rf"{path.name} has no field id for 'col-id'.*Rewrite the file"):
        Table(table.folder).snapshot()
