"""The benchmark of histories divides what it says, over tables of the shape that it says; all of it runs, tiny."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import histories  # noqa: E402
import history_tables  # noqa: E402

pytestmark = pytest.mark.nightly

IN_PROCESS = ("stored", "read", "coclustered", "projection", "lookups")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


def test_fat_rows_hold_the_events_before_them(folder: Path) -> None:
    """Lists of both orders, by DuckDB."""
    tables = history_tables.Tables(folder, histories.parse(["--tiny"]))
    events = f"'{tables.events}/**/*.parquet'"
    for order, samples in ((history_tables.CLUSTERED, tables.of_users), (history_tables.BY_TIME, tables.scattered)):
        lists = ", ".join(
            f"list(e.{name} order by e.timestamp, e.event_no) as {name}" for name in ("item_id", "event_no")
        )
        seen = (
            f"select s.uid, s.timestamp, {lists} from (select distinct uid, timestamp from {events}) s "
            f"join {events} e on e.uid = s.uid and e.timestamp < s.timestamp group by all"
        )
        found = duckdb.sql(
            f"select s.h_item_id, coalesce(e.item_id[-64:], []) from '{tables.fat(64, order)}/*.parquet' s "
            f"left join ({seen}) e on s.uid = e.uid and s.timestamp = e.timestamp"
        ).fetchall()
        assert [one for one, _ in found] == [other for _, other in found]
        assert len(found) == samples.rows.height > 100
        assert max(len(one) for one, _ in found) == 64


@pytest.mark.parametrize("only", [",".join(IN_PROCESS), "rate", "pooled,prepare"])
def test_tiny_prints_every_row(folder: Path, only: str) -> None:
    """Loaders of the same samples deliver the same sums, or the benchmark fails. In a process of its own: at the end of
    a loader it ends all of its children that are left, of which these tests have some."""
    found = folder / "found.json"
    command = [sys.executable, histories.__file__, "--tiny", "--tables", str(folder), "--only", only]
    done = subprocess.run([*command, "--json", str(found)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())
    assert len(rows) == {"rate": 3, "pooled,prepare": 5}.get(only, 10)
    assert all(row["ratio"] > 0 for row in rows)


def test_events_that_samples_see_are_counted_once() -> None:
    """[0, 5) and [2, 6) of one user, [8, 9) of another: 7 events; of the last two of each, 3 and 1."""
    samples = object.__new__(history_tables.Samples)
    for name, values in (("starts", [0, 0, 8]), ("stops", [5, 6, 9])):
        object.__setattr__(samples, name, histories.np.array(values))
    assert (samples.seen(100), samples.seen(2)) == (7, 4)


def test_a_row_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        histories.parse(["--only", "rate,speed"])
    assert "no row is called 'speed'" in capsys.readouterr().err
