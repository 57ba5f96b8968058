"""Tables with logs of their own: in a pipeline, without their packages, and how columns get their types."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipelines import CLICKS

from feedline import Pipeline, Table
from feedline.commands.check import run_check
from feedline.errors import SpecError, TableError
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.iceberg import list_iceberg
from feedline.warehouse.discovery.table_log import declared_schema
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.snapshot.take import snapshot_of

deltalake = pytest.importorskip("deltalake")
pyiceberg = pytest.importorskip("pyiceberg")

from table_logs import ice_table, rows, same_rows  # noqa: E402


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "delta"
    for start in (0, 100, 200):
        deltalake.write_deltalake(str(folder), rows(start), mode="append", partition_by=["day", "k"])
    return folder


@pytest.fixture
def delta(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "delta"))


@pytest.fixture
def iceberg(tmp_path: Path) -> Any:
    return ice_table(tmp_path / "iceberg")


def pipeline(folder: Path, **source: Any) -> Pipeline:
    document = {
        **CLICKS,
        "source": source,
        "features": {"dense": {"price": [{"fill_null": 0}]}, "sparse": {"tags": []}, "extra": ["id"]},
        "batch": {"size": 4, "tail": "partial"},
        "work_dir": str(folder / "work"),
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    return Pipeline.from_yaml(folder / "p.yaml")


def ids(pipeline: Pipeline) -> list[int]:
    return sorted(int(value) for batch in pipeline.batches() for value in batch["id"])


def test_a_pipeline_reads_each_format(delta: Path, iceberg: Any, tmp_path: Path):
    """Twice each, as the second time footers are reused; and an older state after a newer one."""
    location = iceberg.metadata.location
    first = iceberg.snapshots()[0].snapshot_id
    for _ in range(2):
        assert ids(pipeline(tmp_path, table=str(delta), format="delta")) == [
            *range(12),
            *range(100, 112),
            *range(200, 212),
        ]
        assert ids(pipeline(tmp_path, table=str(delta), format="delta", version=0)) == list(range(12))
        assert ids(pipeline(tmp_path, table=location, format="iceberg")) == [*range(12), *range(100, 112)]
        assert ids(pipeline(tmp_path, table=location, format="iceberg", snapshot_id=first)) == list(range(12))


def test_bad_files_of_a_table_with_a_log_are_left_out(delta: Path, tmp_path: Path):
    plan = pipeline(tmp_path, table=str(delta), format="delta", version=0, on_bad_file="skip").plan()
    first = delta / plan.snapshot.files["path"][0].as_py()
    lost = plan.snapshot.files["rows"][0].as_py()
    first.write_bytes(b"no Parquet any more")
    left = pipeline(tmp_path, table=str(delta), format="delta", version=0, on_bad_file="skip").plan()
    assert [bad.file for bad in left.skipped] == [str(first)]
    assert left.selection.rows.sum() == 12 - lost
    assert left.snapshot.schema == plan.snapshot.schema


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


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_declared_keys_of_a_logged_table_are_refused_at_their_position(format: str, tmp_path: Path):
    with pytest.raises(SpecError, match=rf"p\.yaml:\d+.*partitions.* has no meaning with format {format}"):
        pipeline(tmp_path, table="/t", format=format, partitions={"day": "date"})


def test_the_same_files_in_another_format_are_the_same_snapshot(delta: Path, tmp_path: Path):
    """As folders the table has the same files in the same order."""
    as_delta = Table(delta, format="delta").snapshot()
    (delta / "_delta_log").rename(delta.with_name("log"))
    as_hive = snapshot_of(list_table(str(delta), format="hive"))
    assert as_delta.files["path"].to_pylist() == as_hive.files["path"].to_pylist()
    assert as_delta.files["footer_digest"].equals(as_hive.files["footer_digest"])


@pytest.mark.parametrize(("package", "read"), [("deltalake", list_delta), ("pyiceberg", list_iceberg)])
def test_a_missing_package_names_its_extra(package: str, read: Any, monkeypatch: pytest.MonkeyPatch):
    original = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TableError, match=rf"not installed: {package}. Run: pip install 'feedline\["):
        read("/t")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "orc"}, "format is unknown: got 'orc'"),
        ({"format": "hive", "version": 3}, "version has no meaning with format hive"),
        ({"as_of": "2026-01-01"}, "as_of has no meaning with format hive"),
        ({"snapshot_id": 1, "version": 3}, "snapshot_id contradicts version"),
        ({"format": "iceberg", "version": 3}, "version has no meaning with format iceberg"),
        ({"format": "delta", "version": 3, "as_of": "2026-01-01"}, "as_of contradicts version"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        Table("/t", **options).snapshot()
    with pytest.raises(SpecError, match="got a list of 2 paths"):
        Table(["/t", "/u"], format="delta").snapshot()


def test_a_table_says_what_it_is(delta: Path, iceberg: Any, tmp_path: Path):
    same_rows(Table(delta).read(), Table(delta, format="delta").read())
    assert Table(delta, version=0).read().equals(Table(delta, format="delta", version=0).read())
    location = iceberg.metadata.location
    first = iceberg.snapshots()[0].snapshot_id
    for state in ({}, {"snapshot_id": first}):
        assert Table(location, **state).read().equals(Table(location, format="iceberg", **state).read())
    newest = max(Path(location, "metadata").glob("*.metadata.json"))
    assert Table(newest).read().equals(Table(location).read())
    for table in (delta, location):
        now = "2999-01-01"
        same_rows(Table(table, as_of=now).read(), Table(table).read())
        with pytest.raises(TableError, match="so its folders cannot be read as they are"):
            Table(table, format="hive").read()
        file = next(Path(table).rglob("*.parquet"))
        with pytest.raises(TableError, match="Name that folder, whose log is read then"):
            Table(file.parent if table == delta else f"{table}/data").read()
        with pytest.raises(TableError, match="Name that folder, whose log is read then"):
            Table([file]).read()
    assert ids(pipeline(tmp_path, table=str(delta))) == ids(pipeline(tmp_path, table=str(delta), format="delta"))


def test_a_file_below_a_log_is_read_with_a_warning_if_it_is_named(delta: Path, caplog: pytest.LogCaptureFixture):
    file = next(delta.rglob("*.parquet"))
    assert Table(file).read().num_rows > 0
    [record] = caplog.records
    assert record.getMessage() == (
        f"{file} is read although {delta} is a Delta Lake table: its _delta_log defines which of its files are current"
    )


def test_a_saved_snapshot_belongs_to_the_table_however_its_format_is_named(delta: Path, tmp_path: Path):
    """`feedline snapshot` before the format was found out."""
    named = pipeline(tmp_path, table=str(delta), format="delta")
    freeze(named.spec, str(tmp_path / "saved.arrow"))
    again = pipeline(tmp_path, table=str(delta), snapshot=str(tmp_path / "saved.arrow"))
    assert again.plan().fingerprint == named.plan().fingerprint
    other = pipeline(tmp_path, table=str(delta), format="hive", snapshot=str(tmp_path / "saved.arrow"))
    with pytest.raises(SpecError, match=r"its format is delta, pipeline\.yaml's is hive"):
        other.plan()


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
