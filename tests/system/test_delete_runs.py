"""Deletions where jobs are: caches lose the old rows, copies are read, and a run goes on by rebase with the others."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deleted_rows import delete_from, files_below, rows_left, rows_of, visits_table
from event_tables import document, event_table, laid_out, row_table, seen_by, write
from moto.server import ThreadedMotoServer
from processes import ended_here
from rewritten import Rewritten, state_at, steps

from feedline import FeedlineDataset, Table
from feedline.errors import ExpressionError, StateError, TableArgumentError
from feedline.loader.state import checked_state
from feedline.warehouse.cache.maintenance import count_entries, describe_folder
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.delete import delete as deletion
from feedline.warehouse.delete.delete import DeleteRequest, delete_rows
from feedline.warehouse.storage.locations import list_tree, locate


@pytest.fixture
def place(tmp_path: Path) -> Rewritten:
    place = Rewritten(tmp_path)
    place.fill()
    return place


def told(*arguments: object, status: int = 0) -> Any:
    done = ended_here(*arguments, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_run_goes_on_with_exactly_the_other_rows(place: Rewritten, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder)
    pipeline = place.pipeline()
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 7)
    Path("state.json").write_text(json.dumps(state_at(plan, 0, 7)))
    gone = {row for row in place.ids if row % 4 == 0}
    pq.write_table(pa.table({"id": sorted(gone)}), "ids.parquet")
    report = told("delete", place.table, "--where", 'id in file("ids.parquet")', "--verify")
    assert (report["rows"], report["left"]) == (len(gone), {str(place.table): 0})

    done = ended_here("rebase", "p.yaml", "state.json", "--output", "new.json")
    assert done.returncode == 0, done.stderr
    state = checked_state(json.loads(Path("new.json").read_text()))
    after = steps(pipeline, pipeline.plan_for(state), 0, 7)
    assert sorted(after) == sorted(set(place.ids) - gone - set(before))
    assert set(steps(pipeline, pipeline.plan_for(state), 1, 0)) == set(place.ids) - gone


def test_files_without_such_rows_stay_the_same_for_a_run(place: Rewritten) -> None:
    """A run without a row key goes on, if only files that it has not begun with have changed."""
    pipeline = place.pipeline(source={"row_key": None}, shuffle="off", lanes=1)
    plan = pipeline.plan()
    steps(pipeline, plan, 0, 0, 3)
    last = max(place.files)
    gone = place.files[last][:2]
    assert delete_from(place.table, f"id in {gone}").files_rewritten == 1
    rebased = pipeline.rebase(checked_state(state_at(plan, 0, 3)))
    assert rebased.facts().rest.rows > 0
    first = place.files[min(place.files)][:1]
    delete_from(place.table, f"id in {first}")
    with pytest.raises(StateError, match="cannot be matched"):
        pipeline.rebase(checked_state(state_at(plan, 0, 3)))


def test_entries_of_files_with_deleted_rows_leave_the_cache(place: Rewritten) -> None:
    cache = place.folder / "cache"
    pipeline = place.pipeline(cache={"dir": str(cache), "mode": "features", "free": 1})
    steps(pipeline, pipeline.plan(), 0, 0)
    entries = {each.path for each in describe_folder(str(cache), by_row_group=True).groups}
    assert entries == set(place.files)
    [name, *_] = place.files
    gone = place.files[name][:3]
    (place.folder / "ids.txt").write_text("".join(f"{row}\n" for row in gone))
    where = f'id in file("{place.folder / "ids.txt"}")'
    words = ["delete", place.table, "--where", where, "--cache", cache, "--verify"]
    report = told(*words)
    assert report["left"] == {str(place.table): 0, str(cache): 0}
    assert report["caches"][str(cache)]["files"] > 0
    left = {each.path for each in describe_folder(str(cache), by_row_group=True).groups}
    assert left == entries - {name}
    assert set(steps(pipeline, pipeline.plan(), 0, 0)) == set(place.ids) - set(gone)

    text = ended_here(*words).stdout
    assert "0 rows deleted" in text
    assert f"cache {cache}: removed" in " ".join(text.split())


def test_what_a_killed_run_has_left_in_caches_is_removed_by_the_next(
    place: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed the files, and nothing is left to find: the logs say which they were."""
    cache = place.folder / "cache"
    pipeline = place.pipeline(cache={"dir": str(cache), "mode": "features", "free": 1})
    steps(pipeline, pipeline.plan(), 0, 0)
    [name, *_] = place.files
    where = f"id in {place.files[name][:3]}"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "prune_files", killed)
        with pytest.raises(KeyboardInterrupt):
            delete_from(place.table, where, caches=(str(cache),))
    path = str(place.table / name)
    assert count_entries(str(cache), [path]) > 0
    report = told("cache", "prune", cache, "--deleted", place.table)
    assert (report["files"] > 0, report["is_met"]) == (True, True)
    assert count_entries(str(cache), [path]) == 0
    assert delete_from(place.table, where, caches=(str(cache),), verify=True).is_met


def test_entries_that_cannot_be_read_are_not_passed_over(place: Rewritten) -> None:
    cache = place.folder / "cache"
    pipeline = place.pipeline(cache={"dir": str(cache), "mode": "features", "free": 1})
    steps(pipeline, pipeline.plan(), 0, 0)
    next(path for path in cache.rglob("*") if path.is_file() and path.parent != cache).write_bytes(b"damaged")
    done = ended_here("delete", place.table, "--where", "id == 3", "--cache", cache, "--verify")
    assert done.returncode == 1
    assert "left, as it cannot be decided: 1 unreadable" in " ".join(done.stdout.split())
    done = ended_here("cache", "prune", cache, "--deleted", place.folder)
    assert done.returncode == 2
    assert "has no log of a deletion" in " ".join(done.stderr.split())
    next((place.table / "_deletes").glob("*.json")).write_text("{")
    done = ended_here("cache", "prune", cache, "--deleted", place.table)
    assert done.returncode != 0
    assert "is no log of a deletion" in " ".join(done.stderr.split())
    done = ended_here("cache", "prune", cache, "--deleted", place.table, "--all")
    assert done.returncode == 2
    assert "--deleted names the files by itself" in done.stderr


def test_copies_are_looked_through(place: Rewritten) -> None:
    pipeline = place.pipeline()
    pipeline.materialize(str(place.folder / "copy"), format="parquet")
    done = ended_here("delete", place.table, "--where", "id in [3, 4]", "--verify", "--copy", place.folder / "copy")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert f"verified: 0 such rows left in {place.table}" in text
    assert f"verified: 2 such rows left in {place.folder / 'copy'}" in text.replace("/ ", "/")
    other = place.folder / "other"
    other.mkdir()
    pq.write_table(pa.table({"identity": [1]}), other / "0.parquet")
    before = rows_of(place.table)
    with pytest.raises(ExpressionError, match="unknown column `id`"):
        delete_from(place.table, "id in [5, 6]", verify=True, copies=(str(other),))
    assert rows_of(place.table) == before
    with pytest.raises(TableArgumentError, match="copies are only verified"):
        delete_from(place.table, "id in [3, 4]", copies=(str(other),))


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    table = visits_table(tmp_path / "table")
    add_columns(str(table), ExpressionValues(expression="visit * 2", name="doubled"))
    words = ["delete", table, "--where", 'user_id == 5 or ds == "2026-01-02"']
    dry = " ".join(ended_here(*words, "--dry-run").stdout.split())
    assert "rows to delete, of" in dry
    assert "2 of 4 files to write anew, 2 to remove" in dry
    text = " ".join(ended_here(*words).stdout.split())
    assert "2 of 4 files written anew, 2 removed" in text
    assert "column files: 2 written anew, 4 old ones removed" in text
    assert "bytes of others copied as they were" in text
    for arguments, status, message in (
        ([tmp_path / "none", "--where", "x == 1"], 2, "does not exist"),
        ([table, "--where", "user == 1"], 2, "unknown column `user`"),
        ([table, "--where", 'user_id in file("none.txt")'], 2, "none.txt does not exist"),
        ([table, "--where", "user_id + 1"], 2, "must be boolean"),
        ([table], 2, "Missing option"),
    ):
        done = ended_here("delete", *arguments)
        assert done.returncode == status, done.stderr
        assert message in " ".join(done.stderr.split())


def test_a_job_with_histories_is_told_of_another_generation(tmp_path: Path) -> None:
    """A run that reads a file of events without its deleted ones is refused in words, and goes on if asked to."""
    rows, events = row_table(60), event_table(900)
    write(rows, tmp_path / "rows")
    folder = laid_out(events, tmp_path / "events", "ts", "no")
    features = {"extra": {"items": {"history": "events", "at": "at", "column": "item", "last": 6}}}
    given = document(tmp_path / "rows", folder, features, tmp_path / "work", history={"tie_break": "no"})
    with FeedlineDataset(given) as dataset:
        state = dataset.state_dict(after=next(iter(dataset)))
    delete_from(folder, "user in [1, 5]", verify=True)
    with FeedlineDataset(given) as dataset, pytest.raises(StateError, match="features"):
        dataset.load_state_dict(state)
    left = events.filter(pc.invert(pc.fill_null(pc.is_in(events["user"], value_set=pa.array([1, 5])), False)))
    seen = seen_by(rows, left, "item", pools=(("true", 6),), tie_break="no")
    with FeedlineDataset(given) as dataset:
        dataset.load_state_dict(state, features="changed")
        for batch in dataset:
            for row, items in zip(batch.extra["id"].tolist(), batch.extra["items"].to_pylist(), strict=True):
                assert items == seen[row][0]


# -- object stores ----------------------------------------------------------------------------------------------------


def test_a_table_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
        client.create_bucket(Bucket="bucket")
        table = visits_table(tmp_path / "table")
        folder = str(uuid.uuid4())
        for path in files_below(table):
            client.upload_file(str(path), "bucket", f"{folder}/{path.relative_to(table)}")
        uri = f"s3://bucket/{folder}?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
        add_columns(uri, ExpressionValues(expression="visit * 2", name="doubled"))
        expected = rows_left(table, "user_id in (5, 17) or ds = date '2026-01-02'")
        request = DeleteRequest(where='user_id in [5, 17] or (ds == "2026-01-02" and doubled >= 0)', verify=True)
        report = delete_rows(uri, request, threads=2)
        assert report.is_met
        assert (report.files_rewritten, report.files_removed) == (2, 2)
        left = pa.concat_tables(expected[path] for path in sorted(expected))
        assert (report.column_files_rewritten, report.column_files_removed) == (2, 4)
        read = Table(uri).read(["visit", "doubled"])
        assert read["visit"].to_pylist() == left["visit"].to_pylist()
        assert read["doubled"].to_pylist() == [2 * visit for visit in left["visit"].to_pylist()]
        names = [info.path.split("/", 2)[2] for info in list_tree(locate(uri)) if info.size]
        assert {name.split("/")[0] for name in names} == {"ds=2026-01-01", "_columns", "_deletes"}
        assert sum(name.endswith(".columns") for name in names) == 2
    finally:
        server.stop()
    assert len(rows_of(table)) == 4
