"""Histories that are wrong: a clear error, or a documented rule."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from event_tables import document, event_table, laid_out, lists_of, row_table, with_types, write

from feedline import Pipeline, Table
from feedline.errors import CorruptFileError, DataError, FeedlineError, SpecError, TableChangedError

ITEMS: dict[str, Any] = {"history": "events", "column": "item", "at": "at", "last": 5}


def pipeline_of(
    folder: Path, rows: pa.Table, events: Path, feature: dict[str, Any] | None = None, **changes: Any
) -> Pipeline:
    stored = folder / "r"
    if not stored.exists():
        write(rows, stored)
    features = {"extra": {"items": {**ITEMS, **(feature or {})}}}
    return Pipeline.from_dict(document(stored, events, features, folder / "w", **changes))


def rows_of(users: list[Any], at: list[Any], user_type: pa.DataType | None = None) -> pa.Table:
    count = len(users)
    return pa.table(
        {
            "id": range(count),
            "user": pa.array(users, user_type or pa.int64()),
            "at": pa.array(at, pa.int64()),
            "price": pa.array([0.0] * count, pa.float32()),
        }
    )


@pytest.mark.parametrize("layout", ["laid out", "as it is"])
def test_nulls_in_key_and_time(tmp_path: Path, layout: str):
    """Events without a key are nobody's, also not those of a row without one; without a time they are never seen."""
    rows = rows_of([1, None, 1, 2], [10, 10, None, 10])
    events = pa.table(
        {"user": [1, None, 1, 1, 2], "ts": [3, 4, None, 5, None], "no": range(5), "item": [30, 40, 1, 50, 9]}
    )
    path = laid_out(events, tmp_path / "e", "ts", "no") if layout == "laid out" else write(events, tmp_path / "e")
    assert lists_of(pipeline_of(tmp_path, rows, path), "items") == {0: ([30, 50],), 1: ([],), 2: ([],), 3: ([],)}


@pytest.mark.parametrize(
    ("row_types", "event_types", "message"),
    [
        (
            ("int64", "timestamp[us]"),
            ("int64", "timestamp[us, tz=UTC]"),
            "time 'at' of the rows and time 'ts' of the events",
        ),
        (("int64", "int64"), ("int64", "timestamp[us]"), "cannot be compared: got int64 and timestamp"),
        (
            ("string", "int64"),
            ("int64", "int64"),
            "keys of history 'events' cannot be equal: got 'user' of type string",
        ),
        (("date32[day]", "int64"), ("int64", "int64"), "cannot be equal: got 'user' of type date32"),
    ],
)
def test_types_that_do_not_fit(tmp_path: Path, row_types: tuple[str, str], event_types: tuple[str, str], message: str):
    kinds = {
        "int64": pa.int64(),
        "string": pa.string(),
        "date32[day]": pa.date32(),
        "timestamp[us]": pa.timestamp("us"),
        "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    }
    rows = with_types(row_table(10), kinds[row_types[0]], {"at": kinds[row_types[1]]})
    events = with_types(event_table(20), kinds[event_types[0]], {"ts": kinds[event_types[1]]})
    with pytest.raises(SpecError, match=message):
        pipeline_of(tmp_path, rows, write(events, tmp_path / "e")).plan()


@pytest.mark.parametrize(
    ("feature", "history", "message"),
    [
        ({"at": "when"}, {}, "history 'events' names column 'when', which is not in the table"),
        ({"column": "itm"}, {}, "names column 'itm', which is not in the events. Did you mean 'item'"),
        ({"where": "ratios > 3"}, {}, "ratios"),
        ({"where": "ratio >"}, {}, "ratio >"),
        ({}, {"time": "when"}, "names column 'when', which is not in the events"),
        ({}, {"tie_break": "nr"}, "names column 'nr', which is not in the events"),
        ({}, {"known_at": "seen"}, "names column 'seen', which is not in the events"),
        ({}, {"on": "uid"}, "names column 'uid', which is not in the table"),
        ({"lag": "10m"}, {}, "lag has a unit beside times without one: got 10m"),
        ({}, {"table": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, feature: dict[str, Any], history: dict[str, Any], message: str):
    pipeline = pipeline_of(tmp_path, row_table(10), write(event_table(20), tmp_path / "e"), feature, history=history)
    with pytest.raises(FeedlineError) as caught:
        pipeline.plan()
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError | OSError | LookupError), type(caught.value)


def test_lags_of_timestamps_and_dates_have_a_unit(tmp_path: Path):
    stamps = {"ts": pa.timestamp("us"), "at": pa.timestamp("us")}
    events = write(with_types(event_table(20), pa.int64(), {"ts": stamps["ts"]}), tmp_path / "e")
    rows = with_types(row_table(10), pa.int64(), {"at": stamps["at"]})
    with pytest.raises(SpecError, match="lag has no unit: got 5, and 'ts' of type timestamp"):
        pipeline_of(tmp_path, rows, events, {"lag": 5}).plan()
    days = with_types(event_table(20), pa.int64(), {"ts": pa.date32()})
    folder = tmp_path / "days"
    with pytest.raises(SpecError, match="lag of dates is not of whole days: got 5h"):
        pipeline_of(
            folder, with_types(row_table(10), pa.int64(), {"at": pa.date32()}), write(days, folder / "e"), {"lag": "5h"}
        ).plan()


def test_a_table_of_no_events(tmp_path: Path):
    with pytest.raises(SpecError, match=r"histories\.events: .*e holds no rows"):
        pipeline_of(tmp_path, row_table(20), write(event_table(50).slice(0, 0), tmp_path / "e")).plan()


def test_a_table_without_files(tmp_path: Path):
    (tmp_path / "e").mkdir()
    with pytest.raises(FeedlineError, match=r"e\b"):
        pipeline_of(tmp_path, row_table(20), tmp_path / "e").plan()


def test_users_without_events_and_one_with_a_million(tmp_path: Path):
    count = 1_000_000
    events = pa.table({"user": pa.array(np.zeros(count, np.int64)), "ts": np.arange(count), "item": np.arange(count)})
    path = laid_out(events, tmp_path / "e", "ts", row_group_rows=65_536)
    rows = rows_of([0, 7, 0, 0], [count, count, 500_000, 3])
    pipeline = pipeline_of(tmp_path, rows, path, {"last": 4})
    assert lists_of(pipeline, "items") == {
        0: ([*range(count - 4, count)],),
        1: ([],),
        2: ([*range(499_996, 500_000)],),
        3: ([0, 1, 2],),
    }
    found = lists_of(pipeline_of(tmp_path, rows, path, {"last": 2 * count}), "items")
    assert [len(found[row][0]) for row in range(4)] == [count, 0, 500_000, 3]
    assert found[0][0] == [*range(count)]


def rewritten_with_its_note(path: Path, change: Any) -> None:
    """A file with other rows under the same footer note."""
    with pq.ParquetFile(path) as file:
        table, metadata = file.read(), file.schema_arrow.metadata
        note = {**(metadata or {}), **{k: v for k, v in file.metadata.metadata.items() if k != b"ARROW:schema"}}
    pq.write_table(
        change(table).replace_schema_metadata(note), path, row_group_size=512, write_page_index=True, data_page_size=1
    )


def test_events_that_are_not_sorted_as_their_note_says(tmp_path: Path):
    """Noticed where a row sees them, and named by the history."""
    events = event_table(2000, users=2, times=2000, nulls=0)
    path = laid_out(events, tmp_path / "e", "ts", "no", file_bytes=10**9)
    [file] = path.glob("*.parquet")
    rng = np.random.default_rng(0)

    def shuffle(table: pa.Table) -> pa.Table:
        order = np.arange(2000).reshape(-1, 100)
        return table.take(pa.array(np.concatenate([rng.permutation(part) for part in order])))

    rewritten_with_its_note(file, shuffle)
    rows = rows_of([0, 1] * 50, [*range(0, 2000, 20)])
    with pytest.raises((DataError, CorruptFileError)) as caught:
        lists_of(pipeline_of(tmp_path, rows, path), "items")
    assert "sorted" in str(caught.value)
    assert "'events'" in str(caught.value) or file.name in str(caught.value)


def test_a_note_of_other_rows_is_refused(tmp_path: Path):
    path = laid_out(event_table(600), tmp_path / "e", "ts", "no", file_bytes=10**9)
    [file] = path.glob("*.parquet")
    rewritten_with_its_note(file, lambda table: table.slice(0, 500))
    with pytest.raises(FeedlineError) as caught:
        lists_of(pipeline_of(tmp_path, row_table(30), path), "items")
    assert file.name in str(caught.value)
    assert "feedline optimize --history" in str(caught.value)


def test_a_file_of_events_that_is_damaged(tmp_path: Path):
    path = laid_out(event_table(600), tmp_path / "e", "ts", "no", file_bytes=10**9)
    [file] = path.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:400] = bytes(396)
    file.write_bytes(content)
    with pytest.raises(FeedlineError) as caught:
        lists_of(pipeline_of(tmp_path, row_table(30), path), "items")
    assert file.name in str(caught.value)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_generation_that_goes_under_a_running_job(tmp_path: Path, replaced: bool):
    """A plan keeps its own generation of the events: another one, or none, is refused by file."""
    path = laid_out(event_table(600), tmp_path / "e", "ts", "no")
    pipeline = pipeline_of(tmp_path, row_table(200), path, history={"memory": 1})  # nothing is kept decoded
    plan = pipeline.complete_plan(1)
    next(pipeline.batches(plan=plan))
    shutil.rmtree(path)
    if replaced:
        laid_out(event_table(600, seed=5), tmp_path / "n", "ts", "no").rename(path)
    message = r"\.parquet changed after the snapshot was taken" if replaced else r"\.parquet is gone"
    message += ".*restore the generation that the run reads"
    with pytest.raises(TableChangedError, match=message):
        list(pipeline.batches(plan=plan))


def test_an_index_of_another_key_is_not_used(tmp_path: Path):
    """The table is written again, for this key, with a warning."""
    events = event_table(300, nulls=0)
    events = events.append_column("other", pa.array(np.arange(300) % 3))
    path = laid_out(events, tmp_path / "e", "ts", "no", key="other")
    usual = write(events, tmp_path / "plain")
    rows = row_table(60)
    found = lists_of(pipeline_of(tmp_path, rows, path, history={"tie_break": "no"}), "items")
    assert found == lists_of(pipeline_of(tmp_path, rows, usual, history={"tie_break": "no"}), "items")
    assert sum(each.is_dir() for each in (tmp_path / "w" / "histories").iterdir()) == 2


def test_the_advice_is_what_is_done(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write(event_table(300), tmp_path / "e")
    rows = row_table(60)
    history = {"tie_break": "no"}
    expected = lists_of(pipeline_of(tmp_path, rows, path, history=history), "items")
    [advice] = [record.getMessage() for record in caplog.records if "does it once" in record.getMessage()]
    assert f"`feedline optimize {path} OUT --history user --sort-by ts,no` does it once" in advice
    caplog.clear()
    lists_of(pipeline_of(tmp_path, rows, path, history=history), "items")
    assert not [record for record in caplog.records if "history" in record.getMessage()]
    Table(str(path)).optimize(str(tmp_path / "o"), history="user", sort_by=("ts", "no"))
    assert lists_of(pipeline_of(tmp_path, rows, tmp_path / "o", history=history), "items") == expected
