"""Lists of a table are compared with rebuilt ones, which are those that DuckDB joins."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import SpecError
from feedline.fitting.history_audit import leaking_events
from feedline.progress import Progress, on_progress
from feedline.warehouse.histories.moments import NO_TIME


def test_events_at_or_after_the_time_of_their_row_are_leaks():
    times = pl.Series([[1, 5, 6], None, [None, 9], []], dtype=pl.List(pl.Int64))
    assert leaking_events(times, np.array([5, 5, NO_TIME, 1])).tolist() == [2, 0, 1, 0]


# --------------------------------------------------------------------------------------------------------------------

EVENTS, ROWS, LAST, LAG_S = 3_000, 900, 12, 60
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
JOIN = """
    SELECT row, list(item ORDER BY events.ts, no) AS items, list(events.ts ORDER BY events.ts, no) AS times FROM (
        SELECT rows.row, item, events.ts, no,
               row_number() OVER (PARTITION BY rows.row ORDER BY events.ts DESC, no DESC) AS place
        FROM rows JOIN events ON rows.user = events.user AND events.ts < rows.ts - {lag}
    ) AS events WHERE place <= {last} GROUP BY row
"""


def tables(folder: Path) -> tuple[pa.Table, pa.Table]:
    """Events, and rows with the lists that DuckDB joins, in two days of several row groups."""
    rng = np.random.default_rng(3)
    events = pa.table(
        {
            "user": rng.integers(0, 40, EVENTS),
            "ts": START + rng.integers(0, 2 * 86_400, EVENTS),
            "no": np.arange(EVENTS),
            "item": rng.integers(0, 50, EVENTS).astype(np.int32),
        }
    )
    rows = pa.table(
        {
            "row": np.arange(ROWS),
            "user": rng.integers(0, 44, ROWS),
            "ts": START + np.sort(rng.integers(0, 172_800, ROWS)),
        }
    )
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.register("events", events)
        lists = connection.sql(JOIN.format(lag=LAG_S, last=LAST)).to_arrow_table()
    fat = pl.from_arrow(rows).join(pl.from_arrow(lists), on="row", how="left").sort("row")
    (folder / "events").mkdir()
    pq.write_table(events, folder / "events" / "events.parquet")
    return events, fat.to_arrow()


def write_rows(folder: Path, fat: pa.Table) -> None:
    for number, day in enumerate(("2026-01-01", "2026-01-02")):
        (folder / "rows" / f"ds={day}").mkdir(parents=True, exist_ok=True)
        is_day = (fat["ts"].to_numpy() - START) // 86_400 == number
        pq.write_table(fat.filter(is_day), folder / "rows" / f"ds={day}" / "part.parquet", row_group_size=100)


def pipeline(folder: Path, **changes: Any) -> Pipeline:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "audit",
            "work_dir": str(folder / "work"),
            "source": {"table": str(folder / "rows"), **changes.pop("source", {})},
            "histories": {"events": {"table": str(folder / "events"), "key": "user", "time": "ts", "tie_break": "no"}},
            "features": {
                "sparse": {
                    "items": {"history": "events", "column": "item", "at": "ts", "last": LAST, "lag": LAG_S},
                    "own": {"column": "items"},
                },
                "dense": {"user": []},
            },
            "batch": {"size": 32},
            "cluster": {"threads": 2},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    _, table = tables(folder)
    write_rows(folder, table)
    return folder


def test_lists_that_duckdb_joined_are_equal(fat: Path):
    seen: list[Progress] = []
    with on_progress(seen.append):
        report = pipeline(fat).audit({"items": "items"}, times="times")
    assert report.clean
    assert (report.rows, report.selected, report.by) == (ROWS, ROWS, "ds")
    [column] = report.columns
    assert [str(group.value) for group in column.groups] == ["2026-01-01", "2026-01-02"]
    assert (column.total.equal, column.total.missing, column.total.leaks) == (ROWS, 0, 0)
    assert [each.done for each in seen if each.phase == "auditing"][-1] == ROWS


def test_every_kind_of_difference_is_counted_by_day(tmp_path: Path):
    _, table = tables(tmp_path)
    items, times = table["items"].to_pylist(), table["times"].to_pylist()
    ats = table["ts"].to_pylist()
    long = [row for row in range(ROWS) if len(items[row] or []) >= 4 and len(set(items[row][-2:])) == 2]
    lost, added, swapped, leaked = long[10], long[200], long[300], long[-1]
    items[lost], times[lost] = items[lost][1:], times[lost][1:]
    items[added], times[added] = [999, *items[added]], [START - 1, *times[added]]
    items[swapped] = [*items[swapped][:-2], items[swapped][-1], items[swapped][-2]]
    items[leaked], times[leaked] = [*items[leaked], 777], [*times[leaked], ats[leaked] - LAG_S]
    for name, lists in (("items", items), ("times", times)):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(lists, table[name].type))
    write_rows(tmp_path, table)
    [column] = pipeline(tmp_path).audit({"items": "items"}, times="times").columns
    total = column.total
    assert (total.rows - total.equal, total.missing, total.extra, total.out_of_order, total.leaks) == (4, 1, 2, 1, 1)
    first_day = sum(at < START + 86_400 for at in ats)
    for day, group in enumerate(column.groups):
        own = [row for row in (lost, added, swapped, leaked) if (row >= first_day) == bool(day)]
        assert group.rows - group.equal == len(own)
        assert group.first is not None
        row = min(own) - (first_day if day else 0)
        assert (group.first.row_group, group.first.row) == (row // 100, row % 100)
        assert f"ds=2026-01-0{day + 1}" in group.first.file
    assert total.first is not None
    assert total.first.stored.length == total.first.rebuilt.length - 1
    assert total.first.stored.last == tuple(items[lost][-3:])
    # the same row, named by its place in the row group, where a filter leaves out others
    [column] = pipeline(tmp_path, source={"where": "row >= 5"}).audit({"items": "items"}).columns
    assert column.total.first is not None
    assert column.total.first.row == total.first.row
    assert (column.total.rows, column.total.leaks) == (ROWS - 5, None)
    report = pipeline(tmp_path).audit({"items": "items"}, by="user", times="times")
    assert not report.clean
    assert sum(group.rows - group.equal for group in report.columns[0].groups) == 4
    facts = report.facts()
    assert facts["columns"][0]["total"]["extra"] == 2
    assert facts["clean"] is False


def test_some_rows_are_spread_over_the_table(fat: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feedline.fitting.history_audit._DETAIL_ROWS", 10)
    report = pipeline(fat).audit({"items": "items"}, rows=45)
    assert report.clean
    assert 45 <= report.rows <= 50
    assert len(report.columns[0].groups) == 2
    assert report.selected == ROWS


@pytest.mark.parametrize(
    ("compare", "options", "message"),
    [
        ({}, {}, "audit has nothing to compare"),
        ({"items": "items"}, {"rows": 0}, "rows must be at least 1: got 0"),
        ({"itemz": "items"}, {}, "unknown feature: got 'itemz'.*Did you mean `items`"),
        ({"own": "items"}, {}, "'own' reads no history"),
        ({"items": "item"}, {}, "--compare names column 'item', which is not in the table. Did you mean 'items'"),
        ({"items": "user"}, {}, "--compare needs a column of lists: got 'user' of type int64"),
        ({"items": "items"}, {"times": "ts"}, "--times needs a column of lists"),
        ({"items": "items"}, {"by": "day"}, "--by names column 'day', which is not in the table"),
        ({"items": "items"}, {"by": "items"}, "--by needs a column of single values"),
        ({"items": "words"}, {}, "'items' cannot be compared with column 'words': got lists of int32"),
        ({"items": "items"}, {"times": "words"}, "--times words: time 'ts' of the rows .* cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    fat: Path, tmp_path: Path, compare: dict[str, str], options: dict[str, Any], message: str
):
    table = pq.read_table(fat / "rows", partitioning=None)
    table = table.append_column("words", pa.array([["x"]] * ROWS, pa.list_(pa.string())))
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "part.parquet")
    own = pipeline(fat, source={"table": str(tmp_path / "rows")}, work_dir=str(tmp_path / "work"))
    with pytest.raises(SpecError, match=message):
        own.audit(compare, **options)
