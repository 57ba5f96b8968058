"""Bad files are found, recorded and not read again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from damage import GROUP, ROWS, flip_a_page, truncate, write
from pipelines import Place, furnished
from second_writer import write_meanwhile
from tables_with_bad_files import ids, of_parts, part, pipeline_over

import feedline.warehouse.snapshot.footer_tasks as footer_tasks
from feedline import Pipeline
from feedline.expressions import bind_where
from feedline.warehouse.bad_files import (
    BadFile,
    BadFilesFoundError,
    ForgivingMap,
    load_findings,
    record_findings,
)
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), Path()) as place:
        yield place


def test_findings_are_recorded_and_files_not_read_again(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = write(tmp_path / "t")
    truncate(part(table, 1))
    flip_a_page(part(table, 2))
    path = pipeline_over(place, table, where="x > -1")
    first = Pipeline.from_yaml(path).plan()
    assert len(first.source.skipped) == 2
    work = str(tmp_path / "work")
    assert set(load_findings(work)) == {str(part(table, 1)), str(part(table, 2))}
    read: list[str] = []
    original = footer_tasks.file_facts

    def spy(filesystem: Any, file: str, *rest: Any) -> Any:
        read.append(file)
        return original(filesystem, file, *rest)

    monkeypatch.setattr(footer_tasks, "file_facts", spy)
    second = Pipeline.from_yaml(path).plan()
    assert not {str(part(table, 1)), str(part(table, 2))} & set(read)
    assert (second.source.snapshot.id, second.source.skipped) == (first.source.snapshot.id, first.source.skipped)
    # a file that was replaced is looked at anew; with `error` nothing that is only remembered counts
    shutil.copy(part(write(tmp_path / "good"), 1), part(table, 1))
    assert ids(path) == of_parts(0, 1, 3)
    plan = Pipeline.from_yaml(path, {"source.on_bad_file": "error", "source.where": None}).plan()
    assert (plan.source.selection.rows.sum(), plan.source.skipped) == (4 * ROWS, ())


def test_a_file_that_is_gone_is_no_longer_reported(place: Place, tmp_path: Path):
    table = write(tmp_path / "t")
    truncate(part(table, 1))
    path = pipeline_over(place, table)
    before = Pipeline.from_yaml(path).plan()
    part(table, 1).unlink()
    after = Pipeline.from_yaml(path).plan()
    assert before.source.snapshot.id == after.source.snapshot.id
    assert (len(before.source.skipped), len(after.source.skipped)) == (1, 0)


def test_a_second_pass_reads_nothing_twice(tmp_path: Path):
    """The good files' counts are reused after the bad ones are left out."""
    table = write(tmp_path / "t")
    flip_a_page(part(table, 1))
    calls: list[str] = []

    def spying(function: Any, tasks: list[Any]) -> list[Any]:
        calls.extend(fragment.path for task in tasks for fragment in task.fragments)
        return [function(task) for task in tasks]

    forgiving = ForgivingMap(spying)
    snapshot: Snapshot = take_snapshot(str(table))
    where = bind_where("x > 0.5", snapshot.schema)
    with pytest.raises(BadFilesFoundError) as caught:
        select_rows(snapshot, where, work_dir=str(tmp_path / "work"), map=forgiving)
    assert list(caught.value.reasons) == ["part=1/data.parquet"]
    assert len(calls) == 4
    left = snapshot.without(caught.value.reasons)
    selection = select_rows(left, where, work_dir=str(tmp_path / "work"), map=forgiving)
    assert len(calls) == 4
    expected = [
        sum(value > 0.5 for value in pq.ParquetFile(part(table, number)).read_row_group(group, ["x"])["x"].to_pylist())
        for number in (0, 2, 3)
        for group in range(ROWS // GROUP)
    ]
    assert selection.rows.tolist() == expected


def test_findings_about_good_files_are_removed(tmp_path: Path):
    one, two = (
        BadFile(file=f"f{number}", bytes=1, mtime_ns=2, footer_digest=None, rows=None, reason="rot")
        for number in (1, 2)
    )
    record_findings(str(tmp_path), [one, two])
    record_findings(str(tmp_path), [], good_files=["f1", "f3"])
    assert load_findings(str(tmp_path)) == {"f2": two}


def test_two_checks_at_once_keep_the_findings_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two, three = (
        BadFile(file=f"f{number}", bytes=1, mtime_ns=2, footer_digest=None, rows=None, reason="rot")
        for number in (1, 2, 3)
    )
    record_findings(str(tmp_path), [three])
    second = write_meanwhile(
        monkeypatch, content_store, "create", lambda: record_findings(str(tmp_path), [two], good_files=["f3"])
    )
    record_findings(str(tmp_path), [one])
    second.join()
    assert load_findings(str(tmp_path)) == {"f1": one, "f2": two}


def test_findings_that_are_recorded_need_no_folder_to_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bad = BadFile(file="f", bytes=1, mtime_ns=2, footer_digest=None, rows=None, reason="rot")
    record_findings(str(tmp_path), [bad])
    monkeypatch.setattr(content_store, "lock_file", None)
    record_findings(str(tmp_path), [bad], good_files=["other"])
