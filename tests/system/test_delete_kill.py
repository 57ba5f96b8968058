"""What is left when `delete` is killed, and does the same command do the rest? Real processes, killed at any moment."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deleted_rows import (
    delete_from,
    dying_deletion,
    dying_in_bytes,
    files_below,
    rows_left,
    rows_of,
    visits_table,
)
from forked import forked

from feedline import Table
from feedline.warehouse.optimize.landing import DELETES, HIDDEN

USERS = list(range(0, 40, 3))
SQL = f"user_id in ({', '.join(map(str, USERS))}) or ds = date '2026-01-02'"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"user_id": USERS}), tmp_path / "ids.parquet")
    return visits_table(tmp_path / "table", days=3)


def condition(table: Path) -> str:
    return f'user_id in file("{table.parent / "ids.parquet"}") or ds == "2026-01-02"'


def killed(run: object, *arguments: object) -> None:
    process = forked(run, *arguments)  # type: ignore[arg-type]
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()


def check_and_finish(table: Path, before: dict[str, pa.Table], after: dict[str, pa.Table]) -> None:
    """Each file is the old or the new one, readers see nothing else, and the same command does the rest."""
    found = rows_of(table)
    assert after.keys() <= found.keys() <= before.keys()
    for path, rows in found.items():
        assert rows.equals(before[path]) or rows.equals(after[path])
    assert len(Table(str(table)).read(["visit"])) == sum(map(len, found.values()))
    logs = [json.loads(log.read_text()) for log in (table / DELETES).glob("*.json")]
    assert len(logs) <= 1
    report = delete_from(table, condition(table), verify=True)
    assert report.is_met
    assert report.rows == sum(map(len, found.values())) - sum(map(len, after.values()))
    assert {path: rows.equals(after[path]) for path, rows in rows_of(table).items()} == dict.fromkeys(after, True)
    assert not (table / HIDDEN).exists()


@pytest.mark.parametrize(
    ("place", "turn"),
    [
        *(("log", 1), ("write", 3), ("move", 4), ("removal", 2), ("release", 1)),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("write", 1), ("move", 1), ("log", 2))),
    ],
)
def test_a_killed_run_leaves_old_and_new_files_and_the_next_one_does_the_rest(
    table: Path, place: str, turn: int
) -> None:
    before, after = rows_of(table), rows_left(table, SQL, ids=pa.table({"user_id": USERS}))
    killed(dying_deletion, str(table), condition(table), place, turn)
    check_and_finish(table, before, after)


def test_a_run_that_is_killed_within_a_file_leaves_the_old_one(table: Path) -> None:
    before, after = rows_of(table), rows_left(table, SQL)
    killed(dying_in_bytes, str(table), condition(table), 20_000)
    check_and_finish(table, before, after)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_runs_that_are_killed_again_and_again_come_to_an_end(table: Path, seed: int) -> None:
    rng = random.Random(seed)
    before, after = rows_of(table), rows_left(table, SQL)
    size = sum(path.stat().st_size for path in files_below(table))
    for _ in range(10):
        process = forked(dying_in_bytes, str(table), condition(table), rng.randrange(size))
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
        process.close()
        for path, rows in rows_of(table).items():
            assert rows.equals(before[path]) or rows.equals(after[path])
    assert delete_from(table, condition(table), verify=True).is_met
    assert {path: rows.equals(after[path]) for path, rows in rows_of(table).items()} == dict.fromkeys(after, True)
