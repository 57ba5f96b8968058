"""What `build` says of logs and specs that do not fit, each by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sample_logs import END_NS, drawn_logs, spec_of, times, write_logs

from feedline.config.build_spec import BuildSpec
from feedline.errors import ExpressionError, TableArgumentError, TableError, TableNotFoundError
from feedline.warehouse.building.build import build, look
from feedline.warehouse.building.record import Record
from feedline.warehouse.optimize.optimize import TaskRunner
from feedline.warehouse.table import Table

Logs = dict[str, pa.Table]
ONE = TaskRunner(threads=1, memory_bytes=1 << 30)


def made(spec: BuildSpec, **options: object) -> None:
    build(spec, now_ns=END_NS, **{"until_ns": END_NS, "runner": ONE, **options})  # type: ignore[arg-type]


def cast(name: str, column: str, kind: pa.DataType) -> Callable[[Logs], None]:
    def change(logs: Logs) -> None:
        table = logs[name]
        index = table.schema.get_field_index(column)
        logs[name] = table.set_column(index, column, table[column].cast(kind))

    return change


def renamed(name: str, old: str, new: str) -> Callable[[Logs], None]:
    def change(logs: Logs) -> None:
        names = [new if each == old else each for each in logs[name].schema.names]
        logs[name] = logs[name].rename_columns(names)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            cast("clicks", "ts", pa.timestamp("us", "UTC")),
            "times of impressions and of outcome click cannot be compared",
        ),
        (cast("impressions", "ts", pa.int64()), "time 'ts' of impressions is no timestamp: got int64"),
        (cast("clicks", "item_id", pa.string()), "key 'item_id' of outcome click cannot be compared: got int64 in the"),
        (cast("orders", "item_id", pa.float64()), "key 'item_id' of outcome order cannot be compared"),
        (
            cast("clicks", "dwell_ms", pa.string()),
            "label 'dwell' is made of column 'dwell_ms' of outcome click: got str",
        ),
        (renamed("clicks", "request_id", "request"), "key of outcome click names column 'request_id', which is not in"),
        (renamed("impressions", "ts", "at"), "time of impressions names column 'ts', which is not in its files"),
        (renamed("orders", "price", "prize"), "Did you mean 'prize'?"),
        (
            renamed("users", "age", "position"),
            "column 'position' is in the table twice: got it from impressions and fea",
        ),
        (renamed("impressions", "position", "clicked"), "column 'clicked' is in the table twice"),
        (renamed("impressions", "position", "ds"), "column 'ds' of impressions has a name of the table's own"),
        (renamed("users", "hist_0", "list_0"), "out.dedup.user matches no column: got 'hist_*'"),
    ],
)
def test_logs_that_do_not_fit_are_refused(tmp_path: Path, change: Callable[[Logs], None], message: str) -> None:
    logs = drawn_logs(31, rows=60)
    change(logs)
    write_logs(logs, tmp_path / "logs", files=1)
    with pytest.raises(TableArgumentError) as error:
        look(spec_of(tmp_path), now_ns=END_NS, runner=ONE)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_specs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_logs(drawn_logs(32, rows=60), tmp_path / "logs", files=1)
    with pytest.raises(ExpressionError, match=r"unknown column .*cliked"):
        look(spec_of(tmp_path, more="negatives: {where: not cliked, keep: 0.5}\n"), now_ns=END_NS, runner=ONE)
    with pytest.raises(TableArgumentError, match="source and target overlap"):
        look(spec_of(tmp_path, out="logs/clicks/out"), now_ns=END_NS, runner=ONE)
    spec = spec_of(tmp_path)
    nested = spec.model_copy(update={"out": spec.out.model_copy(update={"cluster_by": ("tags",)})})
    with pytest.raises(TableArgumentError, match=r"out\.cluster_by names column 'tags' of type list"):
        look(nested, now_ns=END_NS, runner=ONE)
    (tmp_path / "logs" / "clicks").rename(tmp_path / "elsewhere")
    with pytest.raises(TableNotFoundError, match="clicks does not exist"):
        look(spec, now_ns=END_NS, runner=ONE)


def test_a_table_of_another_writer_or_spec_is_refused(tmp_path: Path) -> None:
    write_logs(drawn_logs(33, rows=60, days=1), tmp_path / "logs", files=1)
    spec = spec_of(tmp_path)
    (tmp_path / "out" / "ds=2026-01-01").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "out" / "ds=2026-01-01" / "mine.parquet")
    with pytest.raises(
        TableArgumentError, match=r"is not empty: it holds ds=2026-01-01/mine\.parquet, which feedline bu"
    ):
        made(spec)
    (tmp_path / "out" / "ds=2026-01-01" / "mine.parquet").unlink()
    made(spec)
    other = spec.model_copy(update={"out": spec.out.model_copy(update={"sort_by": ("position",)})})
    with pytest.raises(TableArgumentError, match=r"was built by another samples.yaml: .*\(--rebuild\)"):
        made(other)
    made(other, rebuild=True)
    made(other)
    with pytest.raises(TableArgumentError, match=r"was built by another samples\.yaml"):
        made(spec)
    for path in (tmp_path / "logs" / "impressions").rglob("*.parquet"):
        path.rename(path.with_name("other.parquet"))
    with pytest.raises(TableArgumentError, match="partition ds=2026-01-01 cannot be built again: its logs no longer"):
        made(spec, rebuild=True)


def test_a_record_that_was_altered_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"[]", b'{"version": 1}', b'{"version": 1, "counts": 3}'):
        with pytest.raises(TableError, match=r"out/_build.json is no record of a build"):
            Record.from_json(content, "out/_build.json")
    with pytest.raises(TableError, match="is of another version: got 9, expected 1"):
        Record.from_json(b'{"version": 9}', "out/_build.json")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "out has no space left: .*run the same command again to continue"),
        (PermissionError(13, "Permission denied"), "out could not be written: .*Permission denied"),
    ],
)
def test_a_disk_that_refuses_in_the_middle_leaves_what_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    write_logs(drawn_logs(34, rows=60, days=1), tmp_path / "logs", files=1)
    spec = spec_of(tmp_path)

    def refuse(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("feedline.warehouse.building.partition.upload", refuse)
        with pytest.raises(TableError, match=message):
            made(spec)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    made(spec)
    assert Table(tmp_path / "out").read().num_rows


def test_rows_without_time_are_counted_and_left_out(tmp_path: Path) -> None:
    logs = drawn_logs(35, rows=60, days=1)
    table = logs["impressions"]
    without = table.slice(0, 5).set_column(3, "ts", pa.nulls(5, pa.timestamp("us")))
    write_logs({**logs, "impressions": pa.concat_tables([table, without])}, tmp_path / "logs", files=1)
    report = build(spec_of(tmp_path), now_ns=END_NS, until_ns=END_NS, runner=ONE)
    assert dict(report.timeless) == {"impressions": 5}
    assert report.partitions[0].record is not None
    assert report.partitions[0].record.counts.impressions == table.num_rows


def test_times_of_another_unit_and_zone_are_the_same_moments(tmp_path: Path) -> None:
    logs = drawn_logs(36, rows=90, days=1)
    write_logs(logs, tmp_path / "logs", files=1)
    made(spec_of(tmp_path))
    zoned = {}
    for (name, table), (unit, zone) in zip(
        logs.items(), (("ns", "UTC"), ("ms", "Asia/Tokyo"), ("s", "UTC"), ("us", "UTC")), strict=True
    ):
        column = "since" if name == "users" else "ts"
        kind = pa.timestamp(unit, zone)
        index = table.schema.get_field_index(column)
        zoned[name] = table.set_column(index, column, table[column].cast(pa.timestamp(unit)).cast(kind))
    write_logs(zoned, tmp_path / "logs", files=2)
    made(spec_of(tmp_path, out="zoned"))
    one, other = Table(tmp_path / "out").read(), Table(tmp_path / "zoned").read()
    assert one.drop_columns(["ts"]).equals(other.drop_columns(["ts"]))
    assert other.schema.field("ts").type == pa.timestamp("ns", "UTC")


def test_row_groups_without_statistics_are_read(tmp_path: Path) -> None:
    logs = drawn_logs(37, rows=90, days=1)
    write_logs(logs, tmp_path / "logs", files=1)
    made(spec_of(tmp_path))
    for name in ("impressions", "clicks"):
        [path] = (tmp_path / "logs" / name).rglob("*.parquet")
        pq.write_table(logs[name], path, write_statistics=False, row_group_size=30)
    made(spec_of(tmp_path, out="unknown"))
    assert Table(tmp_path / "out").read().equals(Table(tmp_path / "unknown").read())


def test_a_partition_without_rows_is_closed(tmp_path: Path) -> None:
    write_logs(drawn_logs(38, rows=60, days=1), tmp_path / "logs", files=1)
    spec = spec_of(tmp_path)
    none = spec.model_copy(update={"impressions": spec.impressions.model_copy(update={"where": "position > 99"})})
    made(none)
    assert sorted(path.name for path in (tmp_path / "out" / "ds=2026-01-01").iterdir()) == ["_SUCCESS", "_build.json"]
    assert build(none, now_ns=END_NS, until_ns=END_NS, runner=ONE).built == ()


def test_a_time_beyond_the_range_of_its_unit_is_an_error(tmp_path: Path) -> None:
    logs = drawn_logs(39, rows=60, days=1)
    logs["orders"] = logs["orders"].set_column(2, "ts", logs["orders"]["ts"].cast(pa.timestamp("ns")))
    index = logs["clicks"].schema.get_field_index("ts")
    far = pa.concat_tables([logs["clicks"], logs["clicks"].slice(0, 1).set_column(index, "ts", times([4e11]))])
    write_logs({**logs, "clicks": far}, tmp_path / "logs", files=1)
    with pytest.raises(ValueError, match="time 'ts' of outcome click is out of range"):
        look(spec_of(tmp_path), now_ns=END_NS, runner=ONE)
