"""Corrupt files are left out before the epoch, reported everywhere, recorded, and never confused with others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from damage import GROUP, ROWS, flip_a_page, truncate, write
from pipelines import Place, furnished, image
from processes import ended, ended_here
from second_writer import write_meanwhile
from tables_with_bad_files import ids, of_parts, part, pipeline_over

import feedline.warehouse.snapshot.footer_tasks as footer_tasks
from feedline import FeedlineDataset, Pipeline
from feedline.config import load_spec
from feedline.errors import CorruptFileError, TableError
from feedline.loader.wire.facts import Hello
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.bad_files import (
    BadFile,
    findings_in,
    leave_out,
    load_findings,
    record_findings,
)
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.storage import content_store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), Path()) as place:
        yield place


@pytest.mark.slow
def test_bad_files_leave_the_plan_and_are_reported_everywhere(place: Place, tmp_path: Path):
    """One with a damaged footer, whose rows are unknown, and one with a damaged page."""
    table = write(tmp_path / "t")
    truncate(part(table, 1))
    flip_a_page(part(table, 3))
    path = pipeline_over(place, table, where="x > -1")

    def check(bad_files: list[dict[str, Any]]) -> None:
        footer, page = sorted(bad_files, key=lambda entry: entry["path"])
        assert (footer["path"], footer["rows"]) == (str(part(table, 1)), None)
        assert (page["path"], page["rows"]) == (str(part(table, 3)), ROWS)
        for entry, reason in ((footer, "its last bytes"), (page, "row group 5 is not valid Parquet")):
            assert reason in entry["reason"]
            assert entry["path"] not in entry["reason"]

    done = ended_here("plan", path, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    check(facts["bad_files"])
    assert (facts["rows"], facts["files"]) == (2 * ROWS, 2)
    done = ended_here("plan", path)
    assert "2 bad files left out of the plan" in done.stdout
    done = ended("run", path, "--sink", "null", "--json")
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout)["bad_files"])
    assert json.loads(done.stdout)["rows"] == 2 * ROWS
    assert all(f"{part(table, number)}: " in done.stderr for number in (1, 3))
    assert ids(path) == of_parts(0, 2)
    with FeedlineDataset(path) as dataset:
        with pytest.warns(UserWarning, match=r"2 bad files left out of the plan(.|\n)*data\.parquet"):
            length = len(dataset)
        assert length == 2 * ROWS // 256
        check(dataset.facts["bad_files"])


def test_findings_about_files_that_nobody_can_tell_do_not_last(tmp_path: Path):
    """Stores with neither times nor tags: a file that was restored would be left out for ever."""
    table = write(tmp_path / "t")
    flip_a_page(part(table, 1))
    snapshot = take_snapshot(str(table))
    timeless = snapshot.files.set_column(2, "mtime_ns", [[-1] * 4])
    digest = snapshot.files["footer_digest"][1].as_py()
    size = snapshot.files["bytes"][1].as_py()
    bad = BadFile(file=str(part(table, 1)), bytes=size, mtime_ns=-1, footer_digest=digest, rows=ROWS, reason="rot")
    known = {bad.file: bad}
    listing = Listing(uri=str(table), files=timeless, partition={}, ignored=0)
    assert leave_out(listing, known) == (listing, [])

    class Frozen:
        uri = str(table)
        files = timeless

    assert findings_in(Frozen, known) == {}
    Frozen.files = timeless.append_column("etag", [["a", "b", "c", "d"]])
    assert findings_in(Frozen, {bad.file: replace(bad, etag="b")}) == {"part=1/data.parquet": replace(bad, etag="b")}
    assert findings_in(Frozen, {bad.file: replace(bad, etag="x")}) == {}
    assert findings_in(Frozen, {bad.file: replace(bad, etag="b", footer_digest=b"other")}) == {}


def test_damage_that_the_counting_pass_does_not_read_is_an_error_in_mid_epoch(place: Place, tmp_path: Path):
    table = write(tmp_path / "t")
    flip_a_page(part(table, 1))
    path = pipeline_over(place, table, where="y >= 0")
    seen: list[int] = []
    with pytest.raises(CorruptFileError, match="row group 5"):
        seen.extend(int(value) for batch in Pipeline.from_yaml(path).batches() for value in batch["id"])
    assert seen[:ROWS] == of_parts(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_bad_files": 1}, r"more bad files than source.max_bad_files allows: got 2, expected at most 1"),
        (
            {"max_bad_rows": ROWS - 1},
            r"more rows in bad files than source.max_bad_rows allows: got 4,096, expected at most 4,095",
        ),
        ({"max_bad_files": 2, "max_bad_rows": ROWS}, None),
    ],
)
def test_a_budget_bounds_what_is_left_out(place: Place, tmp_path: Path, limits: dict[str, int], text: str | None):
    table = write(tmp_path / "t")
    truncate(part(table, 0))
    flip_a_page(part(table, 2))
    path = pipeline_over(place, table, where="x > -1", **limits)
    if text is None:
        assert len(Pipeline.from_yaml(path).plan().source.skipped) == 2
        return
    for _ in range(2):  # found, and remembered
        with pytest.raises(CorruptFileError, match=text) as caught:
            Pipeline.from_yaml(path).plan()
        for number in (0, 2):
            assert str(part(table, number)) in str(caught.value)
        assert "rows unknown, counted as 0" in str(caught.value)
    if "max_bad_files" in limits:
        done = ended("run", path, "--sink", "null")
        assert (done.returncode, str(part(table, 0)) in done.stderr) == (1, True)


@pytest.mark.parametrize(("damage", "where"), [(truncate, None), (flip_a_page, "x > -1")], ids=["footer", "page"])
def test_a_table_of_bad_files_only_is_an_error(
    place: Place, tmp_path: Path, damage: Callable[[Path], None], where: str | None
):
    table = write(tmp_path / "t", 2)
    for number in (0, 1):
        damage(part(table, number))
    path = pipeline_over(place, table, where=where)
    for _ in range(2):
        with pytest.raises(CorruptFileError, match="no file that can be read: all 2 are bad") as caught:
            Pipeline.from_yaml(path).plan()
        assert str(part(table, 1)) in str(caught.value)


def test_failures_other_than_damage_are_errors(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = write(tmp_path / "t")
    path = pipeline_over(place, table)

    def denied(*_: Any) -> None:
        raise TableError("f.parquet may not be read: permission denied. Ask for access, or name another place")

    monkeypatch.setattr(footer_tasks, "file_facts", denied)
    with pytest.raises(TableError, match="permission denied") as caught:
        Pipeline.from_yaml(path).plan()
    assert not isinstance(caught.value, CorruptFileError)
    assert load_findings(str(tmp_path / "work")) == {}


def test_ranks_agree_and_a_resume_finds_the_snapshot(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = write(tmp_path / "t")
    flip_a_page(part(table, 1))
    path = pipeline_over(place, table, where="x > -1")
    plans = [Pipeline.from_yaml(path).resolve(Hello(rank=rank, world_size=2), job="job") for rank in (0, 1)]
    assert plans[0].facts() == plans[1].facts()
    assert [bad.path for bad in plans[1].facts().bad_files] == [str(part(table, 1))]
    truncate(part(table, 3))  # after the start: the resume's snapshot is the old one, all the same
    facts = plans[0].facts()
    named = {"snapshot": facts.snapshot, "lanes": 2, "plan": facts.plan, "features": facts.features}
    resumed = Pipeline.from_yaml(path).resolve(Hello(rank=0, world_size=2, **named), job="job")
    assert resumed.facts() == facts


def test_batches_are_those_of_the_table_without_the_file(place: Place, tmp_path: Path):
    """Byte for byte: shuffled, and with several ranks."""
    table = write(tmp_path / "t")
    path = pipeline_over(place, table)
    settings = {"shuffle": {"seed": 1, "window_rows": 1024}, "batch.tail": "pad"}
    truncate(part(table, 1))
    with pytest.warns(UserWarning, match="left out"):
        skipping = [[image(b) for b in Pipeline.from_yaml(path, settings).batches(0, rank, 2)] for rank in (0, 1)]
    part(table, 1).unlink()
    without = [[image(b) for b in Pipeline.from_yaml(path, settings).batches(0, rank, 2)] for rank in (0, 1)]
    assert skipping == without
    assert len(skipping[0]) == len(skipping[1])


def test_bad_files_of_a_saved_snapshot_are_left_out(place: Place, tmp_path: Path):
    """By earlier findings and by the counting pass; nothing is listed or read again."""
    table = write(tmp_path / "t")
    path = pipeline_over(place, table, where="x > -1")
    file = tmp_path / "saved.arrow"
    freeze(load_spec(path, {}), str(file))
    flip_a_page(part(table, 2))
    saved = pipeline_over(place, table, where="x > -1", snapshot=str(file))
    for _ in range(2):
        plan = Pipeline.from_yaml(saved).plan()
        assert [bad.file for bad in plan.source.skipped] == [str(part(table, 2))]
        assert plan.source.selection.rows.sum() == 3 * ROWS


@pytest.mark.parametrize("change", ["column", "type"])
def test_a_second_run_reads_the_same_table(place: Place, tmp_path: Path, change: str):
    """A column that only the bad file has, and its wider type, are left out in the first run already."""
    table = write(tmp_path / "t", **({"late": [1.0] * ROWS} if change == "column" else {}))
    if change == "type":
        wide = pq.read_table(part(table, 2), partitioning=None)
        wide = wide.set_column(1, "x", wide["x"].cast("float64"))
        pq.write_table(wide, part(table, 2), row_group_size=GROUP, write_page_checksum=True, compression="snappy")
    flip_a_page(part(table, 2))
    truncate(part(table, 0))
    path = pipeline_over(place, table, where="x > -1")
    first, second = Pipeline.from_yaml(path).plan(), Pipeline.from_yaml(path).plan()
    assert first.source.snapshot.schema.names == ["id", "x", "y", "ids", "part"]
    assert str(first.source.snapshot.schema.field("x").type) == "float"
    assert (second.source.snapshot.id, second.source.snapshot.schema) == (
        first.source.snapshot.id,
        first.source.snapshot.schema,
    )
    assert (second.fingerprint, second.source.skipped) == (first.fingerprint, first.source.skipped)
    assert [bad.file for bad in first.source.skipped] == [str(part(table, number)) for number in (0, 2)]


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
