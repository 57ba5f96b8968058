"""The benchmark of deduplication divides what it says, over tables of the shape that it says; all of it runs, tiny."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

from feedline import Pipeline

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import dedup  # noqa: E402
import dedup_delivery  # noqa: E402
import dedup_stages  # noqa: E402

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dedup.Tables:
    """Tiny tables; the clustered one is generated so, as no test here needs the encodings of optimize."""
    folder = tmp_path_factory.mktemp("dedup")
    found = dedup.Tables(folder, dedup.parse(["--tiny"]))
    found.table = lambda layout, goal: found._generate("clustered-decode", 16.5, clustered=True)  # type: ignore[method-assign]
    return found


def test_the_group_repeats_as_often_as_the_formula_has_it(tables: dedup.Tables) -> None:
    """Runs of the clustered table, by DuckDB; the ratio of bytes, from batches."""
    folder = tables.table(dedup.CLUSTERED, "decode")
    changed = " or ".join(f"{name} is distinct from lag({name}) over w" for name in ("session_id", *dedup.COLUMNS))
    runs, rows, sessions = duckdb.sql(
        f"select sum(changed::int), count(*), count(distinct session_id) from (select {changed} as changed, session_id"
        f" from read_parquet('{folder}/*/*.parquet') window w as (order by request_id))"
    ).fetchall()[0]
    assert tables.session_rows() == pytest.approx(rows / sessions, rel=0.01)  # log order truncates other sessions
    [row] = dedup.through_ring(tables)
    assert row.ratio == pytest.approx(rows / runs, rel=0.1)
    formula = float(row.figures.removeprefix("formula ").split()[0])
    assert formula == pytest.approx(rows / (sessions + (rows - sessions) * 0.05), rel=0.01)
    batch = next(iter(Pipeline.from_yaml(tables.pipeline(folder)).batches()))
    assert dedup_stages.group_bytes(batch, "user") < batch.nbytes < batch.expanded().nbytes
    ragged = batch.groups["user"].sparse["hist_0"]
    histories = 6 * 12 * batch.groups["user"].unique_rows  # lengths int32, offsets int64
    assert dedup_stages.group_bytes(batch, "user") > histories + 4 * batch.rows + ragged.values.nbytes


def test_rows_divide_what_they_name(tables: dedup.Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, dedup.Case]] = []

    def deliver(cases: Mapping[str, dedup.Case], rounds: int) -> dict[str, float]:
        asked.append(cases)
        return {name: 8e5 if one.loader == "feedline" and not one.overrides else 1e5 for name, one in cases.items()}

    stages = {"read": 1.0, "transform": 1.0, "encode": 1.0}
    monkeypatch.setattr(dedup, "deliver", deliver)
    monkeypatch.setattr(
        dedup, "block_seconds", lambda *_: {"dedup": {**stages, "cpu": 3.0}, "plain": {**stages, "cpu": 6.0}}
    )
    monkeypatch.setattr(dedup, "decode_seconds", lambda *_: {"clustered": 8.0, "stored-once": 2.0})
    figures = {name: [row.ratio for row in dedup.MEASURES[name](tables)] for name in ("log", "loaders", "reading")}
    assert figures == {"log": [8.0], "loaders": [8.0], "reading": [8.0, 2.0]}
    assert [row.ratio for row in dedup.decoding(tables)] == [4.0]
    assert [row.ratio for row in dedup.nothing_repeats(tables)] == [0.125, 0.5]
    assert all(one.batch_size == 256 for cases in asked for one in cases.values())
    assert {one.loader for one in asked[1].values()} >= {"feedline", "thread-pool"}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # batches are never written to
def test_blocks_and_cuts_are_measured(tables: dedup.Tables) -> None:
    folder = tables.table(dedup.CLUSTERED, "decode")
    seconds = dedup_stages.block_seconds(dedup.plans_of(tables, folder), 1)
    assert all(stages["cpu"] > 0 and stages["encode"] > 0 for stages in seconds.values())
    [row] = dedup.cutting(tables)
    assert row.ratio > 0
    case = dedup.case(tables, folder, "thread-pool")
    found = dedup_delivery.train({**dedup_delivery.asdict(case), "work_dir": ""})
    assert (found["rows"], found["rows_per_s"] > 0) == (8_000, True)


def test_a_row_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dedup.parse(["--only", "ring,speed"])
    assert "no row is called 'speed'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="too few batches"):
        dedup_delivery.steady_rate([1.0, 2.0], [4, 4])


def test_tiny_prints_every_row(tmp_path: Path) -> None:
    assert dedup.main(["--tiny", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 14
    assert all(row["ratio"] > 0 for row in rows)
