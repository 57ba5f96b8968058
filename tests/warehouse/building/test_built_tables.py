"""The table that `build` makes of random logs: rows, labels and counts as DuckDB has them, bytes as before."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import (
    DAY_S,
    END_NS,
    FIRST_S,
    as_rows,
    drawn_logs,
    joined_by_sql,
    spec_of,
    table_bytes,
    times,
    write_logs,
)

from feedline.config.build_spec import BuildSpec
from feedline.errors import TableChangedError
from feedline.warehouse.building import partition
from feedline.warehouse.building.build import CLOSED, DUE, GONE, LATE, OPEN, BuildReport, build, look
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.delete.delete import DeleteRequest, delete_rows
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.optimize.optimize import TaskRunner
from feedline.warehouse.optimize.survey import file_fragment
from feedline.warehouse.snapshot.arrived_files import LandingRule, landed
from feedline.warehouse.table import Table

NAMES = (
    *("request_id", "item_id", "user_id", "ts", "clicked", "clicks", "dwell", "longest", "first_dwell"),
    *("ordered", "paid", "last_note", "age", "hist_0"),
)
COUNTED = ("logged", "duplicates", "keyless", "unmatched", "joined")
ONE = TaskRunner(threads=1, memory_bytes=1 << 30)
SMALL = TaskRunner(threads=2, memory_bytes=1)  # many buckets, where the least is lowered


def built(spec: BuildSpec, runner: TaskRunner = ONE, **options: object) -> BuildReport:
    return build(spec, now_ns=END_NS, **{"until_ns": END_NS, "runner": runner, **options})  # type: ignore[arg-type]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of a few rows, in joins and in files."""
    monkeypatch.setattr(partition, "_LEAST_JOIN_ROWS", 40)


@pytest.mark.parametrize(("rule", "grain_s", "small"), [("first", 900, True), ("all", 1, False)])
def test_rows_labels_and_counts_are_those_of_sql(rule: str, grain_s: int, small: bool) -> None:
    """The rule `last` is that of tests/warehouse/building/test_built_requests.py."""
    compare(seed=1, rule=rule, grain_s=grain_s, small=small)


@pytest.mark.nightly
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from(["last", "first", "all"]),
    grain_s=st.sampled_from([1, 60, 900]),
    small=st.booleans(),
)
def test_rows_labels_and_counts_of_many_logs_are_those_of_sql(seed: int, rule: str, grain_s: int, small: bool) -> None:
    compare(seed=seed, rule=rule, grain_s=grain_s, small=small)


def compare(*, seed: int, rule: str, grain_s: int, small: bool) -> None:
    logs = drawn_logs(seed, rows=120, grain_s=grain_s)
    with folder() as place, pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(partition, "_LEAST_JOIN_ROWS", 25)
        write_logs(logs, place / "logs", seed)
        report = built(spec_of(place, rule=rule), SMALL if small else ONE)
        samples = Table(place / "out").read()
        database = joined_by_sql(logs, rule)
        rows = database.sql("select * from samples").to_arrow_table()
        assert as_rows(samples, NAMES) == as_rows(rows, NAMES)
        for name in ("click", "order"):
            counted = database.sql(f"select day, {', '.join(COUNTED)} from counts_{name} order by day").fetchall()
            outcomes = [(each.folder, each.record.counts.outcomes[name]) for each in report.partitions if each.record]
            assert [(f"ds={day}", *counts) for day, *counts in counted] == [
                (part, *(getattr(counts, each) for each in COUNTED)) for part, counts in outcomes
            ]
        whole = [each.record.counts for each in report.partitions if each.record]
        assert sum(each.rows for each in whole) == samples.num_rows
        for each in whole:
            assert each.rows == each.impressions - each.keyless - each.duplicates - each.conflicting


@given(seed=st.integers(0, 10_000))
@examples(3, by_day=1)
def test_every_outcome_is_joined_once_or_unmatched(seed: int) -> None:
    logs = drawn_logs(seed, days=3)
    days = pc.floor_temporal(logs["impressions"]["ts"], unit="day").unique()
    with folder() as place:
        write_logs(logs, place / "logs")
        report = built(spec_of(place))
    for name, log in (("click", "clicks"), ("order", "orders")):
        parts = [each.record.counts.outcomes[name] for each in report.partitions if each.record]
        table = logs[log]
        own = table.filter(pc.is_in(pc.floor_temporal(table["ts"], unit="day"), value_set=days))
        assert sum(each.logged for each in parts) == own.num_rows
        beyond = table.num_rows - own.num_rows  # outcomes after the last day, of its impressions
        unique = sum(each.logged - each.duplicates - each.keyless for each in parts)
        assert unique <= sum(each.joined + each.unmatched for each in parts) <= unique + beyond


@pytest.mark.usefixtures("few_rows")
def test_bytes_do_not_depend_on_files_order_memory_or_threads(tmp_path: Path) -> None:
    logs = drawn_logs(5, days=1)
    write_logs(logs, tmp_path / "logs")
    spec = spec_of(tmp_path)
    built(spec)
    first = table_bytes(tmp_path / "out")
    assert len(first) == 2
    for seed, files, runner in ((1, 1, SMALL), (2, 5, ONE)):
        shutil.rmtree(tmp_path / "out")
        write_logs(logs, tmp_path / "logs", seed, files=files)
        built(spec, runner)
        assert table_bytes(tmp_path / "out") == first


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    write_logs(drawn_logs(6), tmp_path / "logs")
    spec = spec_of(tmp_path)
    assert built(spec).built == ("ds=2026-01-01", "ds=2026-01-02")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    again = built(spec)
    assert again.built == ()
    assert {each.state for each in again.partitions} == {CLOSED}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")} == stamps
    assert not (tmp_path / "out" / "_feedline").exists()


def test_partitions_are_open_until_the_watermark_has_passed_the_longest_time(tmp_path: Path) -> None:
    write_logs(drawn_logs(7), tmp_path / "logs")
    spec = spec_of(tmp_path)
    day_ns, hour_ns = DAY_S * 10**9, 3600 * 10**9
    end_ns = FIRST_S * 10**9 + day_ns
    early = look(spec, now_ns=END_NS, until_ns=end_ns + 2 * hour_ns - 1000, runner=ONE)
    assert [each.state for each in early.partitions] == [OPEN, OPEN]
    due = look(spec, now_ns=END_NS, until_ns=end_ns + 2 * hour_ns, runner=ONE)
    assert [each.state for each in due.partitions] == [DUE, OPEN]
    assert not (tmp_path / "out").exists()
    newest = pc.max(pa.concat_arrays([*drawn_logs(7)["orders"]["ts"].chunks, *drawn_logs(7)["clicks"]["ts"].chunks]))
    by_logs = look(spec, now_ns=END_NS, runner=ONE)
    assert by_logs.watermark is not None
    assert np.datetime64(by_logs.watermark[:19]) == np.datetime64(newest.as_py()) - np.timedelta64(1, "h")


def test_a_clock_that_is_ahead_closes_nothing(tmp_path: Path) -> None:
    logs = drawn_logs(8)
    ahead = logs["clicks"].slice(0, 1).set_column(2, "ts", times([FIRST_S + 300 * DAY_S]))
    logs["clicks"] = pa.concat_tables([logs["clicks"], ahead])
    write_logs(logs, tmp_path / "logs")
    now_ns = (FIRST_S + DAY_S) * 10**9
    report = look(spec_of(tmp_path), now_ns=now_ns, runner=ONE)
    assert report.ahead
    assert [each.state for each in report.partitions] == [OPEN, OPEN]


def late_part(logs: dict[str, pa.Table], name: str, rows: int) -> tuple[dict[str, pa.Table], pa.Table]:
    """The logs without some rows of one of them, and these."""
    table = logs[name]
    return {**logs, name: table.slice(rows)}, table.slice(0, rows)


def add_file(place: Path, name: str, table: pa.Table) -> None:
    path = place / "logs" / name / "arrived=9" / "late.parquet"
    path.parent.mkdir()
    pq.write_table(table, path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The table of logs of which no row is late."""
    folder = tmp_path_factory.mktemp("whole")
    write_logs(drawn_logs(9, days=1), folder / "logs")
    built(spec_of(folder))
    return table_bytes(folder / "out")


@pytest.mark.parametrize("name", ["clicks", pytest.param("orders", marks=pytest.mark.nightly), "users", "impressions"])
def test_late_rows_rebuild_their_partition(tmp_path: Path, whole: dict[str, bytes], name: str) -> None:
    logs = drawn_logs(9, days=1)
    early, late = late_part(logs, name, 40)
    write_logs(early, tmp_path / "logs")
    spec = spec_of(tmp_path, late="rebuild")
    built(spec)
    assert table_bytes(tmp_path / "out") != whole
    add_file(tmp_path, name, late)
    seen = look(spec, now_ns=END_NS, until_ns=END_NS, runner=ONE)
    assert {each.state for each in seen.partitions} == {LATE}
    built(spec)
    assert table_bytes(tmp_path / "out") == whole
    assert built(spec).built == ()


def test_late_rows_are_counted_and_dropped(tmp_path: Path) -> None:
    logs = drawn_logs(10)
    early, late = late_part(logs, "clicks", 30)
    write_logs(early, tmp_path / "logs")
    spec = spec_of(tmp_path)
    built(spec)
    before = table_bytes(tmp_path / "out")
    add_file(tmp_path, "clicks", late)
    report = built(spec)
    assert report.built == ()
    assert table_bytes(tmp_path / "out") == before
    at = late["ts"].cast(pa.int64()).to_numpy() // 10**6 - FIRST_S
    for day, each in enumerate(report.partitions):
        assert each.record is not None
        near = (at >= day * DAY_S) & (at < (day + 1) * DAY_S + 1800)
        assert each.record.counts.outcomes["click"].late == np.count_nonzero(near)
        assert each.record.counts.outcomes["order"].late == each.record.counts.late == 0
    again = built(spec)  # counted once
    assert again.partitions == report.partitions


def test_logs_that_are_gone_leave_the_table_as_it_is(tmp_path: Path) -> None:
    write_logs(drawn_logs(11, days=1), tmp_path / "logs")
    spec = spec_of(tmp_path, late="rebuild")
    built(spec)
    before = table_bytes(tmp_path / "out")
    logs = drawn_logs(12, days=3)
    at = logs["impressions"]["ts"].cast(pa.int64()).to_numpy() // 10**6
    logs["impressions"] = logs["impressions"].filter(pa.array(at >= FIRST_S + DAY_S))
    write_logs(logs, tmp_path / "logs", seed=3)
    report = built(spec)
    assert [each.state for each in report.partitions] == [GONE, CLOSED, CLOSED]
    kept = {name: content for name, content in table_bytes(tmp_path / "out").items() if "01-01" in name}
    assert kept == before


def test_negatives_are_kept_by_their_key_and_weighted(tmp_path: Path) -> None:
    logs = drawn_logs(13, rows=450, days=1)
    write_logs(logs, tmp_path / "logs")
    whole = spec_of(tmp_path)
    built(whole)
    every = Table(tmp_path / "out").read()
    sampled = spec_of(tmp_path, out="sampled", more="negatives: {where: not clicked, keep: 0.25, weight: w}\n")
    report = built(sampled)
    samples = Table(tmp_path / "sampled").read()
    positives = [*NAMES, "tags"]
    kept = samples.filter(samples["clicked"])
    assert as_rows(kept, positives) == as_rows(every.filter(every["clicked"]), positives)
    assert set(kept["w"].to_pylist()) == {1.0}
    negatives = samples.filter(pc.invert(samples["clicked"]))
    assert set(negatives["w"].to_pylist()) == {4.0}
    total = pc.sum(pc.invert(every["clicked"])).as_py()
    assert abs(negatives.num_rows - total / 4) < 4 * (total * 0.25 * 0.75) ** 0.5
    identity = NAMES[:3]
    assert set(as_rows(negatives, identity)) <= set(as_rows(every.filter(pc.invert(every["clicked"])), identity))
    away = sum(each.record.counts.sampled_away for each in report.partitions if each.record)
    assert away == total - negatives.num_rows
    salted = sampled.model_copy(
        update={
            "negatives": sampled.negatives.model_copy(update={"salt": 1}) if sampled.negatives else None,
            "out": sampled.out.model_copy(update={"table": str(tmp_path / "salted")}),
        }
    )
    built(salted)
    others = Table(tmp_path / "salted").read(where="not clicked")
    assert as_rows(others, NAMES[:3]) != as_rows(negatives, NAMES[:3])


def test_hours_clusters_and_groups_are_as_optimize_writes_them(tmp_path: Path) -> None:
    write_logs(drawn_logs(14), tmp_path / "logs")
    spec = spec_of(tmp_path)
    hourly = spec.model_copy(update={"out": spec.out.model_copy(update={"by": "hour(ts)"})})
    report = built(hourly, until_ns=(FIRST_S + 5 * 3600) * 10**9)
    assert report.built == tuple(f"ds=2026-01-01/hour=0{hour}" for hour in range(3))  # two hours later than each
    snapshot = Table(tmp_path / "out").snapshot()
    assert snapshot.partition_columns == ("ds", "hour")
    rows = Table(tmp_path / "out").read()
    hours = pc.hour(rows["ts"])
    assert hours.to_pylist() == rows["hour"].to_pylist()
    file = next((tmp_path / "out").rglob("*.parquet"))
    assert b"feedline.dedup" in pq.read_metadata(file).metadata
    for part in report.built:
        table = Table(tmp_path / "out" / part).read()
        users, at = table["user_id"].to_pylist(), table["ts"].to_pylist()
        runs = [list(run) for _, run in groupby(zip(users, at, strict=True), key=lambda row: row[0])]
        assert len(runs) == len(set(users))  # rows of a user together, by time
        assert all(run == sorted(run, key=lambda row: row[1]) for run in runs)


def test_a_row_of_a_wider_schema_joins_later_partitions(tmp_path: Path) -> None:
    logs = drawn_logs(15)
    write_logs(logs, tmp_path / "logs")
    spec = spec_of(tmp_path)
    built(spec, until_ns=(FIRST_S + DAY_S + 7200) * 10**9)
    wider = logs["impressions"].append_column("device", pa.array(["phone"] * logs["impressions"].num_rows))
    add_file(tmp_path, "impressions", wider.slice(0, 20))
    report = built(spec)
    assert report.built == ("ds=2026-01-02",)
    assert "device" in Table(tmp_path / "out").snapshot().schema.names
    assert [each.state for each in report.partitions] == [CLOSED, CLOSED]


def test_a_follower_reads_what_is_built_and_notices_what_is_built_again(tmp_path: Path) -> None:
    logs = drawn_logs(16)
    early, late = late_part(logs, "clicks", 60)
    write_logs(early, tmp_path / "logs")
    spec = spec_of(tmp_path, late="rebuild")
    built(spec, until_ns=(FIRST_S + DAY_S + 7200) * 10**9)
    (tmp_path / "out" / "ds=2026-01-03").mkdir()
    pq.write_table(pa.table({"ts": times([FIRST_S])}), tmp_path / "out" / "ds=2026-01-03" / "unfinished.parquet")
    landing = landed(discover(str(tmp_path / "out")), LandingRule())
    assert (landing.partitions, dict(landing.left_out)) == (1, {"ds=2026-01-03": "holds no _SUCCESS"})
    shutil.rmtree(tmp_path / "out" / "ds=2026-01-03")
    before = Table(tmp_path / "out").snapshot()
    add_file(tmp_path, "clicks", late)
    assert built(spec).built == ("ds=2026-01-01", "ds=2026-01-02")
    with pytest.raises(TableChangedError, match="ds=2026-01-01/part-0000-00000"), file_fragment(before, 0).open():
        pass


def test_logs_may_be_tables_with_a_log(tmp_path: Path) -> None:
    logs = drawn_logs(17, rows=90, days=1)
    write_logs(logs, tmp_path / "logs", files=1)
    built(spec_of(tmp_path))
    for name in ("impressions", "clicks"):
        shutil.rmtree(tmp_path / "logs" / name)
        write_deltalake(str(tmp_path / "logs" / name), logs[name])
    built(spec_of(tmp_path, out="delta"))
    assert table_bytes(tmp_path / "delta") == table_bytes(tmp_path / "out")


def test_bytes_do_not_depend_on_how_writers_name_elements_or_code_strings(tmp_path: Path) -> None:
    logs = drawn_logs(18, rows=90, days=1)
    write_logs(logs, tmp_path / "logs", files=1)
    built(spec_of(tmp_path))
    table = logs["impressions"]
    kinds = {
        "tags": pa.large_list(pa.field("item", pa.int64(), metadata={"PARQUET:field_id": "7"})),
        "user_id": pa.dictionary(pa.int32(), pa.string()),
    }
    schema = pa.schema([pa.field(each.name, kinds.get(each.name, each.type)) for each in table.schema])
    others = {"notes": pa.large_string()}
    orders = logs["orders"].set_column(4, "note", logs["orders"]["note"].cast(others["notes"]))
    write_logs({**logs, "impressions": table.cast(schema), "orders": orders}, tmp_path / "logs", seed=1)
    built(spec_of(tmp_path, out="other"))
    assert table_bytes(tmp_path / "other") == table_bytes(tmp_path / "out")


def test_built_tables_take_columns_and_lose_rows(tmp_path: Path) -> None:
    """Other commands leave folders of their own in a table, which builds pass over."""
    write_logs(drawn_logs(5), tmp_path / "logs")
    spec, table = spec_of(tmp_path), str(tmp_path / "out")
    built(spec)
    before = Table(table).read(columns=["user_id"]).num_rows
    report = delete_rows(table, DeleteRequest(where='user_id == "u3"'))
    assert 0 < report.rows == before - Table(table).read(columns=["user_id"]).num_rows
    add_columns(table, ExpressionValues(expression="clicks * 2", name="twice"))
    other = delete_rows(table, DeleteRequest(where='user_id == "u4"'))
    assert other.rows > 0
    assert built(spec).built == ()
    rows = Table(table).read(columns=["clicks", "twice"])
    assert rows.num_rows == before - report.rows - other.rows
    assert rows["twice"].to_pylist() == [2 * clicks for clicks in rows["clicks"].to_pylist()]
