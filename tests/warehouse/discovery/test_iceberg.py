"""Iceberg tables: the rows that pyiceberg reads, older snapshots, and unsupported features that are refused by name."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from feedline import Table
from feedline.errors import TableChangedError, TableError, TableNotFoundError
from feedline.expressions import bind_where
from feedline.warehouse.discovery.iceberg import list_iceberg, newest_metadata
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.snapshot import footer_tasks
from feedline.warehouse.snapshot.take import snapshot_of

deltalake = pytest.importorskip("deltalake")
pyiceberg = pytest.importorskip("pyiceberg")

from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: E402
from pyiceberg.schema import Schema  # noqa: E402
from pyiceberg.transforms import DayTransform  # noqa: E402
from pyiceberg.types import (  # noqa: E402
    DoubleType,
    StringType,
)
from table_logs import BY_DAY, DAY, FIELDS, FolderCatalog, ice_rows, ice_table, rows, same_rows  # noqa: E402


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An Iceberg table of two snapshots, which tests only read."""
    return ice_table(tmp_path_factory.mktemp("stored") / "iceberg")


def read_iceberg(table: Any, **options: Any) -> pa.Table:
    return Table(table.metadata.location, format="iceberg", **options).read()


def test_an_iceberg_table_is_what_pyiceberg_reads(stored: Any):
    read = read_iceberg(stored)
    same_rows(read, stored.scan().to_arrow())
    assert read.schema.names == [field.name for field in FIELDS], "the key is in the files, as a column"
    snapshot = Table(stored.metadata.location, format="iceberg").snapshot()
    assert snapshot.partition_columns == ()
    where = bind_where('day == "2026-01-02"', snapshot.schema)
    report = screen_rows(snapshot, where).report
    expected = stored.scan(row_filter="day = '2026-01-02'").to_arrow()
    assert (report.whole.rows, report.by_statistics.rows) == (len(expected), 24 - len(expected))


def test_older_states_of_an_iceberg_table(stored: Any):
    first, second = stored.snapshots()
    for one in (first, second):
        expected = stored.scan(snapshot_id=one.snapshot_id).to_arrow()
        same_rows(read_iceberg(stored, snapshot_id=one.snapshot_id), expected)
        moment = datetime.datetime.fromtimestamp(one.timestamp_ms / 1000, datetime.UTC).isoformat()
        same_rows(read_iceberg(stored, as_of=moment), expected)
    same_rows(Table(stored.metadata_location, format="iceberg").read(), stored.scan().to_arrow())
    with pytest.raises(TableError, match=r"no snapshot of 2020-01-01 or before. Name a later time"):
        read_iceberg(stored, as_of="2020-01-01")
    with pytest.raises(TableNotFoundError, match=rf"has no snapshot 17: its last ones are {first.snapshot_id}, "):
        read_iceberg(stored, snapshot_id=17)


def test_the_newest_metadata_is_found(iceberg: Any):
    """By the hint if there is one, else by number, 10 after 9."""
    for start in range(200, 1000, 100):
        iceberg.append(ice_rows(iceberg, start))
    assert "00010-" in iceberg.metadata_location
    assert read_iceberg(iceberg).num_rows == 120
    folder = Path(iceberg.metadata.location) / "metadata"
    [early] = folder.glob("00001-*")
    for hint, name in (("7", "v7.metadata.json"), (early.name, early.name)):
        if not (folder / name).exists():
            (folder / name).write_bytes(early.read_bytes())
        (folder / "version-hint.text").write_text(hint)
        assert read_iceberg(iceberg).num_rows == 12


def test_columns_that_were_added_and_widened(iceberg: Any):
    with iceberg.update_schema() as update:
        update.add_column("score", DoubleType())
        update.add_column(("user", "country"), StringType())
    arrow = iceberg.schema().as_arrow()
    more = rows(200).to_pylist()
    for row in more:
        row |= {"score": 1.5, "ts": row["ts"].replace(tzinfo=None), "user": {**row["user"], "country": "DE"}}
    iceberg.append(pa.Table.from_pylist(more, schema=arrow))
    read = read_iceberg(iceberg)
    same_rows(read, iceberg.scan().to_arrow())
    assert read["score"].null_count == 24


def test_a_delete_that_rewrites_files_is_read(iceberg: Any):
    iceberg.delete("id = 101")
    same_rows(read_iceberg(iceberg), iceberg.scan().to_arrow())
    assert read_iceberg(iceberg).num_rows == 23


@pytest.mark.parametrize("again", [False, True], ids=["renamed", "dropped and added"])
def test_columns_with_changed_field_ids_are_refused(iceberg: Any, again: bool):
    """By name the old files would be read wrongly, or not at all."""
    with iceberg.update_schema(allow_incompatible_changes=True) as update:
        if again:
            update.delete_column("price")
        else:
            update.rename_column("price", "cost")
    if again:
        with iceberg.update_schema() as update:
            update.add_column("price", DoubleType())
    what = "column 'price' was dropped and added again" if again else "column 'cost' was renamed"
    with pytest.raises(TableError, match=rf"{what}: .*\.parquet has 'price' with field id 4, expected.*rewrite"):
        read_iceberg(iceberg)
    names = ["price" if field.name == "cost" else field.name for field in iceberg.schema().fields]
    before = iceberg.scan().to_arrow().rename_columns(names)
    iceberg.overwrite(ice_rows(iceberg, 0, **({} if again else {"cost": before.sort_by("id")["price"][:12]})))
    assert read_iceberg(iceberg).num_rows == 12, "rewritten files have the new numbers"


@pytest.fixture
def unnumbered(tmp_path: Path) -> Any:
    """A table of files without field ids, as files added from Hive are; a name mapping gives their columns."""
    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS))
    plain = ice_rows(table, 0)
    plain = plain.cast(
        pa.schema([pa.field(name, unnamed(plain.schema.field(name).type)) for name in plain.schema.names])
    )
    pq.write_table(plain, tmp_path / "f.parquet")
    assert all(field.metadata is None for field in pq.read_schema(tmp_path / "f.parquet"))
    table.add_files([str(tmp_path / "f.parquet")])
    return table


def unnamed(kind: pa.DataType) -> pa.DataType:
    """The type without field ids inside."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, field.type) for field in kind])
    return pa.list_(pa.field("element", kind.value_type)) if pa.types.is_list(kind) else kind


@pytest.mark.parametrize("mapped", [True, False], ids=["with a mapping", "without"])
def test_renamed_columns_of_files_without_field_ids_are_refused(unnumbered: Any, mapped: bool):
    """Read by their new names they would be all null; inside structs, too."""
    if not mapped:
        with unnumbered.transaction() as transaction:
            transaction.remove_properties("schema.name-mapping.default")
    same_rows(read_iceberg(unnumbered), ice_rows(unnumbered, 0))
    with unnumbered.update_schema() as update:
        update.add_column("score", DoubleType())
    assert read_iceberg(unnumbered)["score"].null_count == 12
    with unnumbered.update_schema() as update:
        update.rename_column("price", "cost")
    said = r"column 'cost' was renamed: .*f\.parquet has 'price', one of its names, without a field id, expected 'cost'"
    with pytest.raises(TableError, match=said):
        read_iceberg(unnumbered)
    with unnumbered.update_schema() as update:
        update.rename_column("cost", "price")
        update.rename_column(("user", "age"), "years")
    with pytest.raises(TableError, match=r"column 'user\.years' was renamed: .*f\.parquet has 'age', one of its names"):
        read_iceberg(unnumbered)


@pytest.mark.parametrize("mapped", [True, False], ids=["with a mapping", "without"])
def test_a_name_of_two_columns_is_ambiguous_without_field_ids(unnumbered: Any, mapped: bool):
    with unnumbered.update_schema() as update:
        update.delete_column("price")
    with unnumbered.update_schema() as update:
        update.add_column("price", DoubleType())
    properties = {
        "schema.name-mapping.default": '[{"field-id": 4, "names": ["price"]}, {"field-id": 1, "names": ["id"]}]'
    }
    with unnumbered.transaction() as transaction:
        transaction.set_properties(properties) if mapped else transaction.remove_properties(*properties)
    said = r"column 'price' is ambiguous, as another column had its name: .*f\.parquet has 'price' without a field id"
    with pytest.raises(TableError, match=said if not mapped else "is ambiguous, as another column had its name"):
        read_iceberg(unnumbered)


def test_an_initial_default_is_not_null(iceberg: Any, tmp_path: Path):
    """In format 3 rows of files without the column have a value; files with the column are not affected."""
    with iceberg.update_schema() as update:
        update.add_column("score", DoubleType())
        update.add_column(("user", "country"), StringType())
    metadata = json.loads(Path(iceberg.metadata_location).read_text())
    metadata |= {"format-version": 3, "next-row-id": 0}
    [schema] = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
    fields = {field["name"]: field for field in schema["fields"]}
    written = Path(iceberg.metadata.location) / "metadata" / "99999-0.metadata.json"
    inside = {field["name"]: field for field in fields["user"]["type"]["fields"]}
    for field, place, value in ((inside["country"], r"user\.country", "DE"), (fields["score"], "score", 1.5)):
        field["initial-default"] = value
        written.write_text(json.dumps(metadata))
        said = rf"column '{place}' has the initial default {value!r}, which rows of older files have: .*\.parquet lacks"
        with pytest.raises(TableError, match=said):
            Table(written, format="iceberg").snapshot()
        del field["initial-default"]
    fields["price"]["initial-default"] = 0.5
    written.write_text(json.dumps(metadata))
    assert Table(written, format="iceberg").read()["score"].null_count == 24


@pytest.mark.parametrize(
    ("names", "hint", "expected"),
    [
        (["00001-a.metadata.json", "00002-b.metadata.json", "00010-c.metadata.json"], None, "00010-c.metadata.json"),
        (["v1.metadata.json", "v2.gz.metadata.json", "snap-1.avro"], None, "v2.gz.metadata.json"),
        (["v1.metadata.json", "v2.metadata.json", "v3.metadata.json", "v5.metadata.json"], "2", "v3.metadata.json"),
        (["00001-a.metadata.json", "00002-b.metadata.json"], "00001-a", "00001-a.metadata.json"),
        (["00001-a.metadata.json", "00002-b.metadata.json"], "00001-a.metadata.json", "00001-a.metadata.json"),
        (["00001-a.metadata.json", "00002-b.metadata.json"], "1", "00001-a.metadata.json"),
        (["00002-a.metadata.json", "00002-b.metadata.json"], "00002-b", "00002-b.metadata.json"),
        # of two files one may be of a commit that failed
        (["00001-a.metadata.json", "00002-a.metadata.json", "00002-b.metadata.json"], None, "no version-hint.text"),
        (["v2.metadata.json", "v2.gz.metadata.json"], None, "got v2.gz.metadata.json and v2.metadata.json"),
        (["00002-a.metadata.json", "00002-b.metadata.json"], "2", "version-hint.text says '2'"),
        (["00001-a.metadata.json"], "2", "got none .version-hint.text says '2'"),
        (["v5.metadata.json", "00002-b.metadata.json"], None, "numbered in two ways"),
    ],
)
def test_hints_and_numbers_decide_which_metadata_is_the_newest(names: list[str], hint: str | None, expected: str):
    if expected in names:
        assert newest_metadata(names, hint, "t") == expected
        return
    with pytest.raises(TableError, match=rf"t has no single newest metadata file: .*{expected}.*catalog shows"):
        newest_metadata(names, hint, "t")


def test_a_dropped_column_is_gone(iceberg: Any):
    with iceberg.update_schema() as update:
        update.delete_column("price")
    same_rows(read_iceberg(iceberg), iceberg.scan().to_arrow())
    assert "price" not in read_iceberg(iceberg).schema.names


def test_footers_of_files_with_a_dropped_column_are_reused(
    iceberg: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The dropped column's facts are lost, but not needed; those of a column that the last state lacked are read."""
    for path in Path(iceberg.metadata.location).rglob("*.parquet"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    with_price = iceberg.snapshots()[-1].snapshot_id
    with iceberg.update_schema() as update:
        update.delete_column("price")
    read: list[str] = []
    original = footer_tasks.file_facts

    def spy(filesystem: Any, path: str, *rest: Any) -> Any:
        read.append(path)
        return original(filesystem, path, *rest)

    monkeypatch.setattr(footer_tasks, "file_facts", spy)

    def taken(**state: Any) -> tuple[Any, int]:
        read.clear()
        return snapshot_of(list_iceberg(iceberg.metadata.location, **state), work_dir=str(tmp_path / "work")), len(read)

    first, files = taken()
    assert files == len(first.files) > 0
    again, reread = taken()
    assert (again.id, reread) == (first.id, 0)
    older, reread = taken(snapshot_id=with_price)
    assert reread == files
    assert older.column_facts("price").field("max").to_pylist() == fresh_maxima(iceberg, with_price)


def fresh_maxima(table: Any, snapshot_id: int) -> list[Any]:
    found = Table(table.metadata.location, format="iceberg", snapshot_id=snapshot_id).snapshot()
    return list(found.column_facts("price").field("max").to_pylist())


def test_partition_columns_that_files_lack_are_keys(tmp_path: Path):
    """Files written by Hive: only the manifest has the value, so the column is a partition key."""
    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS[:3]), BY_DAY)
    for number, day in enumerate((DAY, DAY + datetime.timedelta(1))):
        file = tmp_path / f"f{number}.parquet"
        whole = rows(number * 100).select(["id", "k"])
        columns = [pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})]
        columns.append(pa.field("k", pa.string(), metadata={"PARQUET:field_id": "3"}))
        pq.write_table(whole.cast(pa.schema(columns)), file)
        add_file(table, file, day, len(whole))
    read = read_iceberg(table)
    snapshot = Table(table.metadata.location, format="iceberg").snapshot()
    assert snapshot.partition_columns == ("day",)
    assert snapshot.schema.field("day").type == pa.date32()
    same_rows(read, table.scan().to_arrow())
    assert set(pc.unique(read["day"]).to_pylist()) == {DAY, DAY + datetime.timedelta(1)}


def test_a_file_without_counts_that_lacks_a_partition_column_is_refused(tmp_path: Path):
    """Only the manifest has the value, and only the file shows that it lacks the column."""
    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS[:3]), BY_DAY)
    whole = rows(0).select(["id", "day", "k"]).cast(table.schema().as_arrow())
    pq.write_table(whole.drop_columns(["day"]), tmp_path / "f.parquet")
    add_file(table, tmp_path / "f.parquet", DAY, 12, column_sizes={}, value_counts={})
    with pytest.raises(
        TableError, match=r"column 'day' is a partition's value in the table's metadata: .*f\.parquet lacks"
    ):
        read_iceberg(table)


def add_file(table: Any, file: Path, day: datetime.date, count: int, **changes: Any) -> None:
    """Commit a file that pyiceberg did not write."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    data = DataFile.from_args(
        **{
            "content": DataFileContent.DATA,
            "file_path": str(file),
            "file_format": FileFormat.PARQUET,
            "partition": Record((day - datetime.date(1970, 1, 1)).days),
            "record_count": count,
            "file_size_in_bytes": file.stat().st_size,
            "column_sizes": {1: 10, 3: 10},
            "value_counts": {1: count, 3: count},
            "null_value_counts": {},
            "nan_value_counts": {},
            "lower_bounds": {},
            "upper_bounds": {},
            "spec_id": 0,
            **changes,
        }
    )
    data.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(data)


def test_hidden_partitioning_changes_nothing(tmp_path: Path):
    spec = PartitionSpec(PartitionField(5, 1000, DayTransform(), "ts_day"))
    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS), spec)
    one_day = rows(0).set_column(4, "ts", pa.array(list(range(12)), pa.timestamp("us")))
    file = tmp_path / "f.parquet"
    numbered = table.schema().as_arrow()
    pq.write_table(one_day.cast(pa.schema([field.remove_metadata() for field in numbered])), file)
    table.add_files([str(file)])
    same_rows(read_iceberg(table), table.scan().to_arrow())
    assert Table(table.metadata.location, format="iceberg").snapshot().partition_columns == ()


class File:
    """A data or delete file of a manifest's entry."""

    def __init__(self, format: str = "PARQUET", content: str = "DATA") -> None:
        self.file_format = type("F", (), {"value": format})
        self.content = type("C", (), {"name": content})
        self.file_path = "s3://b/f.orc"


@pytest.mark.parametrize(
    ("file", "deletes", "message"),
    [
        (File(), [File(content="POSITION_DELETES")], "has position deletes, which remove rows.*rewrite_data_files"),
        (File(), [File("PUFFIN", "POSITION_DELETES")], "has deletion vectors"),
        (File(), [File(content="EQUALITY_DELETES")], "has equality deletes"),
        (File("ORC"), [], "has a file that is not Parquet: got ORC in s3://b/f.orc. Rewrite"),
    ],
)
def test_deletes_are_refused(file: File, deletes: list[File], message: str):
    from feedline.warehouse.discovery.iceberg import _refuse

    with pytest.raises(TableError, match=message):
        _refuse([type("Task", (), {"file": file, "delete_files": deletes})], "t")


def test_position_deletes_in_a_real_table_are_refused(tmp_path: Path):
    from pyiceberg.manifest import DataFileContent

    table = FolderCatalog().create(tmp_path / "t", Schema(*FIELDS[:3]))
    table.append(rows(0).select(["id", "day", "k"]).cast(table.schema().as_arrow()))
    [task] = table.scan().plan_files()
    file = tmp_path / "d.parquet"
    pq.write_table(pa.table({"file_path": [task.file.file_path], "pos": [0]}), file)
    from pyiceberg.typedef import Record

    changes = {"content": DataFileContent.POSITION_DELETES, "partition": Record(), "column_sizes": {}}
    commit_deletes(table, file, changes)
    with pytest.raises(TableError, match="has position deletes"):
        read_iceberg(table)


def commit_deletes(table: Any, file: Path, changes: dict[str, Any]) -> None:
    """A delete manifest, which pyiceberg reads but does not write."""
    import pyiceberg.manifest as manifest

    original = manifest.ManifestWriterV2.content
    manifest.ManifestWriterV2.content = lambda self: manifest.ManifestContent.DELETES
    try:
        add_file(table, file, DAY, 1, **changes)
    finally:
        manifest.ManifestWriterV2.content = original


def test_missing_files_and_folders_without_a_table_are_refused(iceberg: Any, tmp_path: Path):
    [first, *_] = sorted(Path(iceberg.metadata.location).rglob("*.parquet"))
    first.unlink()
    with pytest.raises(TableChangedError, match=rf"has lost files of this version: .*{first.name}"):
        read_iceberg(iceberg)
    with pytest.raises(TableNotFoundError, match=r"is not an Iceberg table.*name the metadata\.json"):
        Table(tmp_path, format="iceberg").snapshot()
    empty = FolderCatalog().create(tmp_path / "e", Schema(*FIELDS))
    assert read_iceberg(empty).to_pylist() == []
    assert set(read_iceberg(empty).schema.names) == {field.name for field in FIELDS}
