"""Delta tables: the rows that deltalake reads, older versions, and unsupported features that are refused by name."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipelines import CLICKS

from feedline import Pipeline, Table
from feedline.errors import PlanError, TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.discovery.delta import list_delta
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of

deltalake = pytest.importorskip("deltalake")
pyiceberg = pytest.importorskip("pyiceberg")

from table_logs import DAY, rows, same_rows  # noqa: E402


def test_a_delta_table_is_what_deltalake_reads(stored: Path):
    same_rows(Table(stored, format="delta").read(), deltalake.DeltaTable(stored).to_pyarrow_table())
    snapshot = Table(stored, format="delta").snapshot()
    assert snapshot.partition_columns == ("day", "k")
    assert snapshot.schema.names == ["id", "price", "ts", "tags", "user", "day", "k"]
    assert snapshot.schema.field("day").type == pa.date32()
    assert snapshot.schema.field("ts").type == pa.timestamp("us", "UTC")
    days = snapshot.files["partition"].combine_chunks().field("day").to_pylist()
    assert days == sorted(days, key=lambda day: (day is None, day or DAY)), "in the order of a table's partitions"


def test_older_states_of_a_delta_table(stored: Path):
    log = deltalake.DeltaTable(stored)
    for version in range(3):
        log.load_as_version(version)
        expected = log.to_pyarrow_table()
        same_rows(Table(stored, format="delta", version=version).read(), expected)
        moment = datetime.datetime.fromtimestamp(log.history(1)[0]["timestamp"] / 1000 + 1, datetime.UTC)
        if version == 2:
            same_rows(Table(stored, format="delta", as_of=moment.isoformat()).read(), expected)
    with pytest.raises(TableError, match=r"did not exist at 2020-01-01: its first version is of .*Name a later time"):
        Table(stored, format="delta", as_of="2020-01-01").snapshot()
    with pytest.raises(TableError, match="cannot be read as a Delta table at version 99"):
        Table(stored, format="delta", version=99).snapshot()


def test_a_time_between_two_versions(tmp_path: Path):
    folder = str(tmp_path / "t")
    for start in (0, 100):
        deltalake.write_deltalake(folder, rows(start), mode="append")
    for version, day in ((0, 1), (1, 3)):
        moment = datetime.datetime(2026, 1, day, tzinfo=datetime.UTC).timestamp()
        log = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = int(moment * 1000)
        log.write_text("\n".join(json.dumps(line) for line in lines))
        os.utime(log, (moment, moment))
    assert Table(folder, format="delta", as_of="2026-01-02").read().num_rows == 12
    assert Table(folder, format="delta", as_of="2026-01-02T23:00:00-05:00").read().num_rows == 24


def test_a_column_that_was_added(delta: Path):
    more = rows(300).append_column("score", pa.array([i / 3 for i in range(12)], pa.float32()))
    deltalake.write_deltalake(str(delta), more, mode="append", schema_mode="merge")
    read = Table(delta, format="delta").read()
    same_rows(read, deltalake.DeltaTable(delta).to_pyarrow_table())
    assert read["score"].null_count == 36
    deltalake.DeltaTable(delta).delete()
    deltalake.write_deltalake(str(delta), rows(1).drop_columns(["price"]), mode="append", schema_mode="merge")
    same_rows(Table(delta, format="delta").read(), deltalake.DeltaTable(delta).to_pyarrow_table())


def test_rewritten_files_of_a_delta_table_are_read_and_the_old_are_not(delta: Path):
    log = deltalake.DeltaTable(delta)
    log.delete("id = 101")
    log.optimize.compact()
    same_rows(Table(delta, format="delta").read(), deltalake.DeltaTable(delta).to_pyarrow_table())
    before = Table(delta, format="delta", version=2)
    assert before.read().num_rows == 36
    deltalake.DeltaTable(delta).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert Table(delta, format="delta").read().num_rows == 35
    with pytest.raises(TableChangedError, match=r"has lost files of this version: .*vacuumed or deleted; read a newer"):
        before.snapshot()


def edit_log(folder: Path, version: int, change: Any) -> None:
    """Rewrite a commit; `change` gets every action."""
    log = folder / "_delta_log" / f"{version:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        change(line)
    log.write_text("\n".join(json.dumps(line) for line in lines))


def test_other_partition_values_are_another_snapshot(tmp_path: Path):
    """The files are the same; only the log has their keys' values."""
    folder, work = tmp_path / "t", str(tmp_path / "work")
    deltalake.write_deltalake(str(folder), rows(0).slice(1, 2), partition_by=["k"])
    for path in folder.rglob("*.parquet"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    first = snapshot_of(list_delta(str(folder)), work_dir=work)
    assert snapshot_of(list_delta(str(folder)), work_dir=work).id == first.id == first.load(work, first.id).id

    def other(action: dict[str, Any]) -> None:
        if "add" in action and action["add"]["partitionValues"]["k"] == "100%":
            action["add"]["partitionValues"]["k"] = "zz"

    edit_log(folder, 0, other)
    second = snapshot_of(list_delta(str(folder)), work_dir=work)
    assert [key["k"] for key in second.files["partition"].to_pylist()] == ["zz", "ü/x"]
    assert (second.id != first.id, second.load(work, second.id).id) == (True, second.id)
    assert Snapshot.load(work, second.id).partition_of(0) == second.partition_of(0)


def test_deletion_vectors_are_refused(tmp_path: Path):
    folder = tmp_path / "t"
    settings = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(str(folder), rows(0), configuration=settings)
    assert Table(folder, format="delta").read().num_rows == 12, "the feature alone deletes nothing"

    def add(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["deletionVector"] = {
                "storageType": "u",
                "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA",
                "offset": 1,
                "sizeInBytes": 36,
                "cardinality": 2,
            }

    edit_log(folder, 0, add)
    with pytest.raises(TableError, match=r"has deletion vectors, which mark rows of its files as deleted.*PURGE"):
        Table(folder, format="delta").snapshot()


def test_unknown_features_are_refused():
    class Log:
        def protocol(self) -> Any:
            return type("P", (), {"reader_features": ["timestampNtz", "timeTravelToTheFuture"]})

        def metadata(self) -> Any:
            return type("M", (), {"configuration": {}})

    from feedline.warehouse.discovery.delta import _refuse_features

    with pytest.raises(TableError, match="features that Feedline does not support: timeTravelToTheFuture"):
        _refuse_features(Log(), "t")


def test_folders_without_a_delta_table_are_refused(tmp_path: Path):
    (tmp_path / "t").mkdir()
    for folder in (tmp_path / "t", tmp_path / "nothing"):
        with pytest.raises(TableNotFoundError, match="is not a Delta table"):
            Table(folder, format="delta").snapshot()


@pytest.mark.parametrize("keys", [[], ["day", "k"]])
def test_a_table_without_rows_is_read_as_no_rows(tmp_path: Path, keys: list[str]):
    """Created so, and emptied; its columns are those of the log."""
    deltalake.write_deltalake(str(tmp_path / "new"), rows(0).slice(0, 0), partition_by=keys)
    deltalake.write_deltalake(str(tmp_path / "old"), rows(0), partition_by=keys)
    deltalake.DeltaTable(str(tmp_path / "old")).delete()
    for name in ("new", "old"):
        table = Table(tmp_path / name)
        read = table.read()
        expected = deltalake.DeltaTable(str(tmp_path / name)).to_pyarrow_table()
        assert read.num_rows == expected.num_rows == 0
        assert set(read.schema.names) == set(expected.schema.names)
        assert {field.name: field.type for field in read.schema}["price"] == pa.float64()
        assert table.read(["id"], where="price > 1").num_rows == 0
        assert len(table.to_dask().compute()) == 0
        path = tmp_path / "p.yaml"
        source = {"table": str(tmp_path / name)}
        path.write_text(
            json.dumps({**CLICKS, "source": source, "features": {"extra": ["id"]}, "work_dir": str(tmp_path)})
        )
        with pytest.raises(PlanError, match="no rows"):
            Pipeline.from_yaml(path).plan()
    deltalake.write_deltalake(str(tmp_path / "old"), rows(0), mode="append")
    same_rows(Table(tmp_path / "old").read(), rows(0))
