"""What is left when `optimize` is killed, and does the next run finish it? Real processes, killed at chosen moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forked import forked
from killed_optimize import killed_rewrite
from optimized import (
    CLUSTERED,
    assert_clustered,
    files_of,
    in_arrow,
    in_duckdb,
    in_polars,
    multiset,
    rewrite,
    warehouse,
)
from processes import SUPPORT, ended_here

from feedline.warehouse.optimize.landing import HIDDEN, is_complete, target_at


def killed(source: Path, target: Path, where: str, turn: int, **settings: object) -> None:
    """Run until the n-th call of that kind."""
    process = forked(killed_rewrite, str(source), str(target), where, turn, settings)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()


def assert_whole(source: Path, target: Path) -> int:
    """What readers see: whole files of whole partitions, each with its source's rows; returns how many."""
    landed = target_at(str(target)).notes_by_folder()
    for folder, notes in landed.items():
        note = notes[0]
        assert is_complete(notes, note["settings"], note["sources"]), folder
        for path in files_of(target / folder):
            pq.ParquetFile(path).read()
        assert multiset(in_arrow(target / folder)) == multiset(in_arrow(source / folder))
    return len(landed)


@pytest.mark.parametrize(
    ("small", "where", "turn"),
    [
        *((True, where, turn) for where, turn in (("land", 2), ("move", 4))),
        (False, "file", 3),
        pytest.param(True, "group", 9, marks=pytest.mark.nightly),
        *(pytest.param(False, where, turn, marks=pytest.mark.nightly) for where, turn in (("group", 1), ("move", 2))),
    ],
)
def test_a_killed_run_leaves_whole_partitions_and_the_next_run_does_the_rest(
    tmp_path: Path, where: str, turn: int, small: bool
) -> None:
    source, target = warehouse(tmp_path / "in"), tmp_path / "out"
    settings = {**CLUSTERED, "memory_bytes": None if small else 60_000}
    killed(source, target, where, turn, **settings)
    done = assert_whole(source, target)
    report = rewrite(source, target, **settings)
    assert (report.written, report.finished) == (3 - done, done)
    assert_clustered(target)
    for read in (in_arrow, in_duckdb, in_polars):
        assert multiset(read(target)) == multiset(read(source))
    assert not (target / HIDDEN).exists()


@pytest.mark.parametrize(
    ("where", "turn", "done"),
    [
        ("exchange", 2, 1),
        ("removal", 1, 1),
        ("rename", 3, 0),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (("move", 2, 1), ("rename", 2, 0), ("rename", 4, 1))
        ),
    ],
)
def test_a_partition_done_again_is_the_old_one_or_the_new_one(tmp_path: Path, where: str, turn: int, done: int) -> None:
    """The second run has other settings. A partition is missing only where it is renamed twice; none is ever mixed."""
    source, target = warehouse(tmp_path / "in", days=2), tmp_path / "out"
    rewrite(source, target, **CLUSTERED)
    killed(source, target, where, turn, **{**CLUSTERED, "row_group_rows": 100})
    assert assert_whole(source, target) == (1 if (where, turn) == ("rename", 3) else 2)
    report = rewrite(source, target, **{**CLUSTERED, "row_group_rows": 100})
    assert (report.written, report.finished) == (2 - done, done)
    assert_whole(source, target)
    for read in (in_arrow, in_duckdb, in_polars):
        assert multiset(read(target)) == multiset(read(source))
    assert not (target / HIDDEN).exists()


@pytest.mark.parametrize("turn", [5, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_table_without_partitions_lands_file_by_file(tmp_path: Path, turn: int) -> None:
    """Its folder is the target itself: a killed run may show some files; the next run knows that they are not all."""
    source, target = warehouse(tmp_path / "in", days=1) / "ds=2026-01-01", tmp_path / "out"
    settings = {**CLUSTERED, "memory_bytes": 60_000}
    killed(source, target, "move", turn, **settings)
    for path in files_of(target):
        pq.ParquetFile(path).read()
    assert rewrite(source, target, **settings).written == 1
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))


def test_ctrl_c_ends_the_command_and_the_same_command_goes_on(tmp_path: Path) -> None:
    source, target = warehouse(tmp_path / "in", days=4, rows=1000), tmp_path / "out"
    words = ["optimize", str(source), str(target), "--cluster-by", "session"]
    options = ["--threads", "1", "--row-group-rows", "20"]
    command = [sys.executable, SUPPORT / "optimize_that_speaks.py", *words, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == "writing: 0 of 12,000 rows\n", first
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "finished partitions stay" in rest
    done = assert_whole(source, target)
    assert done < 4
    report = json.loads(ended_here(*words, *options, "--json").stdout)
    assert (report["finished"], report["written"]) == (done, 4 - done)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))
