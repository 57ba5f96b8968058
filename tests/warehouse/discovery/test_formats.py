"""Tables with logs of their own: in a pipeline, without their packages, and how columns get their types."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from logged_tables import pipeline

from feedline import Pipeline, Table
from feedline.errors import SpecError, TableError
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.discovery.iceberg import list_iceberg
from feedline.warehouse.snapshot.take import snapshot_of

deltalake = pytest.importorskip("deltalake")
pyiceberg = pytest.importorskip("pyiceberg")

from table_logs import same_rows  # noqa: E402


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
    first = delta / plan.source.snapshot.files["path"][0].as_py()
    lost = plan.source.snapshot.files["rows"][0].as_py()
    first.write_bytes(b"no Parquet any more")
    left = pipeline(tmp_path, table=str(delta), format="delta", version=0, on_bad_file="skip").plan()
    assert [bad.file for bad in left.source.skipped] == [str(first)]
    assert left.source.selection.rows.sum() == 12 - lost
    assert left.source.snapshot.schema == plan.source.snapshot.schema


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
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TableError, match=rf"not installed: .*{package}.* Run: pip install 'feedline\["):
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
