"""The usage record: one per run, with what it reads; popularity against the records."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from optimized import files_of, warehouse
from pipelines import Place, furnished
from processes import ended
from typer.testing import CliRunner

from feedline import FeedlineDataset, Pipeline, Table
from feedline.cli import app
from feedline.errors import FeedlineError, TableError
from feedline.loader.state import state_of
from feedline.warehouse.optimize import usage
from feedline.warehouse.optimize.usage import load_uses, popular_columns, popularity, record_usage
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

RUNNER = CliRunner()


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return take_snapshot(str(warehouse(tmp_path / "table")))


def note(work: Path, snapshot: Snapshot, columns: tuple[str, ...], partitions: int = 3, job: str = "job") -> None:
    """A run that reads those columns of the first partitions."""
    rows = np.where(snapshot.file_of_row_group < 3 * partitions, snapshot.rows_per_row_group, 0)
    record_usage(str(work), snapshot, columns, rows, job=job)


def stored(root: str, name: str, days: int = 3) -> int:
    """Bytes of a column's chunks in the first days, by pyarrow."""
    total = 0
    for path in files_of(Path(root)):
        metadata = pq.read_metadata(path)
        if int(path.parent.name[-2:]) <= days:
            chunks = (metadata.row_group(g).column(i) for g in range(metadata.num_row_groups) for i in range(7))
            total += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == name)
    return total


def test_a_record_says_columns_bytes_and_partitions(tmp_path: Path, snapshot: Snapshot) -> None:
    note(tmp_path / "work", snapshot, ("word", "ids", "ds", "word"), partitions=2)
    (path,) = (tmp_path / "work").rglob("*.json")
    assert path.read_text().count("\n") == 1
    assert json.loads(path.read_text())["job"] == "job"
    (use,) = load_uses(str(tmp_path / "work"), snapshot.uri)
    assert use.columns == {name: stored(snapshot.uri, name, days=2) for name in ("word", "ids")}
    assert use.partitions == ("ds=2026-01-01", "ds=2026-01-02")
    assert (use.partitions_read, use.table_partitions, use.table_columns) == (2, 3, 7)
    assert use.row_group_bytes == sum(stored(snapshot.uri, name, days=2) for name in snapshot.file_columns)
    assert use.snapshot == snapshot.id


def test_popularity_of_columns_and_partitions(tmp_path: Path, snapshot: Snapshot) -> None:
    work = tmp_path / "work"
    for columns, partitions in ((("ids", "word"), 3), (("word",), 1), (("word", "event"), 3), (("ids",), 3)):
        note(work, snapshot, columns, partitions, job="-".join(columns))
    uses = load_uses(str(work), snapshot.uri)
    facts = popularity(uses, snapshot)
    sizes = {name: stored(snapshot.uri, name) for name in snapshot.file_columns}
    read = Counter({name: 2 * sizes[name] for name in ("ids", "word")})
    read.update({"event": sizes["event"], "word": stored(snapshot.uri, "word", days=1)})
    assert {column.name: column.read_bytes for column in facts.columns} == {name: read[name] for name in sizes}
    assert [(column.name, column.runs) for column in facts.columns[:3]] == [("word", 3), ("ids", 2), ("event", 1)]
    assert {column.name: column.stored_bytes for column in facts.columns} == sizes
    assert facts.runs == 4
    assert facts.jobs == ("ids-word", "word", "word-event", "ids")
    assert facts.column_share == pytest.approx((2 + 1 + 2 + 1) / 4 / 7)
    assert facts.used_column_share == pytest.approx(3 / 7)
    assert facts.used_byte_share == pytest.approx((sizes["ids"] + sizes["word"] + sizes["event"]) / sum(sizes.values()))
    shares = [sum(use.columns.values()) / use.row_group_bytes for use in uses]
    assert facts.byte_share == pytest.approx(sum(shares) / 4)
    assert facts.partitions == (("ds=2026-01-01", 4), ("ds=2026-01-02", 3), ("ds=2026-01-03", 3))
    assert popular_columns(uses)[0] == "word"
    assert set(popular_columns(uses)) == {"ids", "word", "event"}


def test_no_record_is_no_error(tmp_path: Path, snapshot: Snapshot) -> None:
    assert load_uses(str(tmp_path / "nowhere"), snapshot.uri) == []
    facts = popularity([], snapshot)
    assert (facts.runs, facts.byte_share) == (0, 0.0)


def test_records_are_bounded(tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "KEPT", 3)
    for number in range(6):
        note(tmp_path, snapshot, ("word",), job=str(number))
    assert len(list(tmp_path.rglob("usage/*/*"))) == 3
    assert len(load_uses(str(tmp_path), snapshot.uri)) == 3


def test_damaged_records_are_skipped_and_failed_writes_are_warnings(
    tmp_path: Path, snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    note(tmp_path / "work", snapshot, ("word",))
    (path,) = (tmp_path / "work").rglob("*.json")
    (path.parent / "2020.json").write_text("{")
    (path.parent / "2021.json").write_text('{"time": "now"}')
    assert len(load_uses(str(tmp_path / "work"), snapshot.uri)) == 1
    assert "cannot be read and is skipped" in caplog.text
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        note(tmp_path / "file", snapshot, ("word",))
    assert "could not be written" in caplog.text


@pytest.mark.slow
def test_a_run_is_recorded_once_with_several_ranks_and_epochs_and_when_it_resumes(place: Place) -> None:
    path = place.write(epochs=2)
    done = ended("run", path, "--sink", "null", "--world-size", 2)
    assert done.returncode == 0, done.stderr
    plan = Pipeline.from_yaml(path).plan()
    (use,) = load_uses(str(place.work), plan.source.snapshot.uri)
    sizes = {
        name: int(plan.source.snapshot.column_facts(name).field("bytes").to_numpy().sum())
        for name in plan.source.columns
    }
    assert use.columns == sizes
    assert use.job == "clicks"
    shown = json.loads(invoke("usage", path, "--json").stdout)
    assert shown["runs"] == 1
    assert {column["name"] for column in shown["columns"] if column["runs"]} == set(plan.source.columns)
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state_of(plan.facts(), 0, 1))
        next(iter(dataset))
    assert len(load_uses(str(place.work), plan.source.snapshot.uri)) == 1


def test_popular_columns_come_first(tmp_path: Path, snapshot: Snapshot) -> None:
    work, target = str(tmp_path / "work"), tmp_path / "out"
    with pytest.raises(TableError, match=r"no run on .* is in the usage record of .*list the columns"):
        Table(snapshot.uri).optimize(target, order="popular", work_dir=work)
    note(tmp_path / "work", snapshot, ("word", "gone"))
    note(tmp_path / "work", snapshot, ("ids", "word"))
    report = Table(snapshot.uri).optimize(target, order="popular", work_dir=work, threads=1)
    assert report.columns[:2] == ("word", "ids")
    note(tmp_path / "work", snapshot, ("ids",))
    note(tmp_path / "work", snapshot, ("ids", "price"))
    again = Table(snapshot.uri).optimize(target, order="popular", work_dir=work, threads=1)
    assert (again.written, again.finished) == (0, 3)  # another popularity is no reason to write a table anew


# -- the commands -------------------------------------------------------------------------------------------------


def invoke(*arguments: object) -> Any:
    done = RUNNER.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_usage_for_people_and_for_programs(tmp_path: Path, snapshot: Snapshot) -> None:
    options = [snapshot.uri, "--work-dir", tmp_path / "work"]
    assert "no run on" in invoke("usage", *options).stdout
    note(tmp_path / "work", snapshot, ("word", "ids"))
    text = invoke("usage", *options).stdout
    assert "1 run of job, from 20" in text
    assert "28.6% of the columns" in text
    assert "ds=2026-01-01 (1)" in text
    facts = json.loads(invoke("usage", *options, "--json").stdout)
    assert facts["used_column_share"] == pytest.approx(2 / 7)


def test_a_projection_has_every_column_that_the_pipeline_reads(place: Place, tmp_path: Path) -> None:
    path = place.write(
        source={
            "where": 'dwell > 1 and ds != "2026-01-09"',
            "sample": {"fraction": 0.5, "where": "clicked == 0", "key": ["user_id"]},
            "row_key": "request_id",
        },
        features={"dense": {"dense_0": [{"fill_null": 0}]}, "extra": ["sample_weight"]},
    )
    names = set(Table(str(place.table)).snapshot().file_columns)
    assert {"dense_0", "dwell", "clicked", "user_id", "request_id"} <= names
    done = invoke("optimize", place.table, tmp_path / "out", "--threads", 1, "--projection", path, "--json")
    assert set(json.loads(done.stdout)["projection"]) == {"dense_0", "dwell", "clicked", "user_id", "request_id"}


def test_optimize_for_people_and_for_programs(tmp_path: Path, snapshot: Snapshot) -> None:
    options = ["--cluster-by", "session", "--sort-by", "ts", "--projection", "word,ids", "--threads", 1]
    text = invoke("optimize", snapshot.uri, tmp_path / "out", *options).stdout
    for words in (
        "ids.list.element",
        "requests per row group",
        "3 partitions written in",
    ):
        assert words in text
    again = invoke("optimize", snapshot.uri, tmp_path / "out", *options, "--json")
    facts = json.loads(again.stdout)
    assert (facts["finished"], facts["written"]) == (3, 0)
    assert facts["after"]["rows"] == 4500
    assert facts["before"]["ratio"] == pytest.approx(
        facts["before"]["uncompressed_bytes"] / facts["before"]["compressed_bytes"]
    )


@pytest.mark.slow
def test_optimize_in_worker_processes_and_for_a_pipeline(place: Place, tmp_path: Path) -> None:
    path = place.write(shuffle={"seed": 3, "window_rows": 2048})
    arguments = [place.table, tmp_path / "out", "--workers", 1, "--projection", path, "--json", "--for", "size"]
    done = ended("optimize", *arguments, "--file-bytes", "1MiB", "--memory", "1GiB")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert set(facts["projection"]) == set(Pipeline.from_yaml(path).plan().source.features.columns)
    ours, theirs = Table(str(tmp_path / "out")).read(), Table(str(place.table)).read()
    assert ours.cast(theirs.schema).equals(theirs)


def test_wrong_arguments_are_refused(tmp_path: Path, snapshot: Snapshot) -> None:
    for option, value, words in (
        ("--for", "speed", "--for is unknown: got 'speed'"),
        ("--file-bytes", "many", "--file-bytes is not a size: got 'many'"),
        ("--cluster-by", "sesion", "Did you mean 'session'?"),
    ):
        with pytest.raises(FeedlineError, match=re.escape(words)):
            invoke("optimize", snapshot.uri, tmp_path / "out", "--threads", 1, option, value)
    assert not (tmp_path / "out").exists()
