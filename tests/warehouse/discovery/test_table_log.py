"""Columns of a table with a log: its declared types, ids and paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logged_tables import pipeline
from table_logs import rows, same_rows

from feedline import Table
from feedline.commands.check import run_check
from feedline.errors import TableError
from feedline.warehouse.discovery.table_log import declared_schema
from feedline.warehouse.parquet.schemas import SchemaRules

deltalake = pytest.importorskip("deltalake")


def test_the_rules_of_the_schema_hold_for_a_table_with_a_log(delta: Path, iceberg: Any, tmp_path: Path):
    """As for folders: a declared column that no file has is null, keys cannot be declared, extra columns are errors."""
    columns = {"id": "int64", "price": "double", "ts": "timestamp[us, UTC]", "tags": "list<int64>"}
    stored = {**columns, "day": "date32", "k": "string"}  # which Delta does not store
    for table, format, known in ((str(delta), "delta", columns), (iceberg.metadata.location, "iceberg", stored)):
        taken = pipeline(tmp_path, table=table, format=format, schema={"columns": {"nope": "int64"}}).snapshot()
        assert taken.schema.field("nope").type == pa.int64()
        assert set(taken.column_facts("nope").field("nulls").to_pylist()) <= {*taken.rows_per_row_group.tolist()}
        rules = {"extra": "error", "columns": known}
        with pytest.raises(TableError, match=r"column 'user' of the table's log is not expected: `columns` names id"):
            pipeline(tmp_path, table=table, format=format, schema=rules).snapshot()
        wrong = {"table": table, "format": format, "schema": {"columns": {"price": "float"}}}
        with pytest.raises(TableError, match=r"column 'price' of .* does not fit the table's schema"):
            pipeline(tmp_path, **wrong).snapshot()
        assert len(run_check(pipeline(tmp_path, **wrong).spec).problems) == len(taken.files)
    with pytest.raises(TableError, match="column 'day' is a partition key: the table's log types it"):
        pipeline(tmp_path, table=str(delta), format="delta", schema={"columns": {"day": "date32"}}).snapshot()
    with iceberg.update_schema() as update:
        update.delete_column("price")
    dropped = {"table": iceberg.metadata.location, "format": "iceberg", "schema": {"columns": {"price": "double"}}}
    with pytest.raises(TableError, match="column 'price' is declared, but the table's log does not have it"):
        pipeline(tmp_path, **dropped).snapshot()


def test_rules_about_declared_columns():
    log, stored = pa.schema({"a": pa.int64(), "b": pa.string()}), pa.schema({"a": pa.int32(), "b": pa.string()})
    rules = SchemaRules(columns={"a": pa.float64(), "b": pa.large_string(), "c": pa.date32()}, extra_error=True)
    assert declared_schema(log, [("f", stored)], rules=rules) == pa.schema(rules.columns)
    assert declared_schema(log, [("f", stored.append(pa.field("gone", pa.int8())))], rules=rules).names == [*"abc"]
    with pytest.raises(TableError, match="f has column 'a' more than once"):
        declared_schema(log, [("f", pa.schema([*stored, pa.field("a", pa.int32())]))])


def field(name: str, kind: pa.DataType, number: int | None = None) -> pa.Field:
    return pa.field(name, kind, metadata=None if number is None else {"PARQUET:field_id": str(number)})


@pytest.mark.parametrize(
    ("declared", "stored", "expected"),
    [
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.large_string(), pa.string(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.float64(), pa.int32(), pa.float64()),
        (pa.decimal128(12, 2), pa.decimal128(9, 2), pa.decimal128(12, 2)),
        (pa.struct({"a": pa.int64(), "b": pa.string()}), pa.struct({"a": pa.int32()}), None),
        (pa.int32(), pa.int64(), TableError),
        (pa.string(), pa.int64(), TableError),
    ],
)
def test_stored_types_become_the_declared_ones(declared: pa.DataType, stored: pa.DataType, expected: Any):
    files = [("f", pa.schema([field("x", stored)]))]
    if expected is TableError:
        with pytest.raises(TableError, match="column 'x' of f does not fit the table's schema: got"):
            declared_schema(pa.schema([field("x", declared)]), files)
        return
    assert declared_schema(pa.schema([field("x", declared)]), files).field("x").type == (expected or declared)


def test_fields_inside_columns_are_compared_by_number_too():
    def nested(name: str, number: int) -> pa.Schema:
        inner = pa.struct([field("a", pa.int64(), 2), field(name, pa.int64(), number)])
        return pa.schema([field("s", pa.list_(field("element", inner, 9)), 1)])

    same = declared_schema(nested("b", 3), [("f", nested("b", 3))])
    assert same.names == ["s"]
    with pytest.raises(
        TableError, match=r"column 's\.element\.b' was renamed: f has 'c' with field id 3, expected 'b'"
    ):
        declared_schema(nested("b", 3), [("f", nested("c", 3))])
    with pytest.raises(TableError, match="was dropped and added again: f has 'b' with field id 3, expected 'b' with 4"):
        declared_schema(nested("b", 4), [("f", nested("b", 3))])


def test_paths_of_a_log_are_resolved(tmp_path: Path):
    """Escapes of the log are decoded once: the name of the folder of `a b` has an escape of its own."""
    folder = tmp_path / "a b"
    deltalake.write_deltalake(str(folder), rows(0), partition_by=["k"])
    assert any("%20" in path for path in Table(folder, format="delta").snapshot().files["path"].to_pylist())
    same_rows(Table(folder, format="delta").read(), deltalake.DeltaTable(folder).to_pyarrow_table())
