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

from feedline.warehouse.optimize.landing import HIDDEN, Target, finished

# Runs `optimize`, and kills itself just before the n-th call of a method.
MURDER = """
import os, signal, sys, json
sys.path.insert(0, {tests!r})
from pathlib import Path
from feedline.warehouse.optimize import landing
from feedline.warehouse.parquet import writer
from optimized import CLUSTERED, assert_clustered, rewrite

def deadly(owner, name, turn):
    calls, method = [], getattr(owner, name)
    def call(*args, **kwargs):
        calls.append(1)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)
    setattr(owner, name, call)

class Moves:
    '''A local filesystem whose moves are counted.'''
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def move(self, *args):
        self.inner.move(*args)

where, turn = sys.argv[3], int(sys.argv[4])
if where == "rename":
    where, landing.exchange = "move", lambda one, other: False
if where == "move":
    begin = landing.Target.land
    def land(self, *args, **kwargs):
        self.filesystem = Moves(self.filesystem)
        begin(self, *args, **kwargs)
    landing.Target.land = land
    deadly(Moves, "move", turn)
elif where == "exchange":
    deadly(landing, "exchange", turn)
elif where == "removal":
    exchange = landing.exchange
    def last(*args):
        exchange(*args)
        os.kill(os.getpid(), signal.SIGKILL)
    landing.exchange = last
else:
    deadly({{"group": writer.TableWriter, "file": writer.TableWriter, "land": landing.Target}}[where],
           {{"group": "_write_group", "file": "_end_file", "land": "land"}}[where], turn)
rewrite(Path(sys.argv[1]), Path(sys.argv[2]), **json.loads(sys.argv[5]))
"""


def killed(source: Path, target: Path, where: str, turn: int, **settings: object) -> None:
    """Run until the n-th call of that kind."""
    code = MURDER.format(tests=str(Path(__file__).resolve().parents[1] / "support"))
    command = [sys.executable, "-c", code, str(source), str(target), where, str(turn), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_whole(source: Path, target: Path) -> int:
    """What readers see: whole files of whole partitions, each with its source's rows; returns how many."""
    landed = Target(str(target)).landed()
    for folder, files in landed.items():
        note = files[0].note
        assert finished(files, note["settings"], note["sources"]), folder
        for path in files_of(target / folder):
            pq.ParquetFile(path).read()
        assert multiset(in_arrow(target / folder)) == multiset(in_arrow(source / folder))
    return len(landed)


@pytest.mark.parametrize(
    ("small", "where", "turn"),
    [
        *((True, where, turn) for where, turn in (("group", 9), ("land", 2), ("move", 4))),
        *((False, where, turn) for where, turn in (("group", 1), ("file", 3), ("move", 2))),
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
    [("move", 2, 1), ("exchange", 2, 1), ("removal", 1, 1), ("rename", 2, 0), ("rename", 3, 0), ("rename", 4, 1)],
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


@pytest.mark.parametrize("turn", [2, 5])
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
    source, target = warehouse(tmp_path / "in", days=8, rows=3000), tmp_path / "out"
    command = [sys.executable, "-m", "feedline", "optimize", str(source), str(target), "--cluster-by", "session"]
    options = ["--threads", "1", "--row-group-rows", "50"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("8 of 8 partitions to write"), first
    os.kill(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "finished partitions stay" in rest
    done = assert_whole(source, target)
    assert done < 8
    again = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=120, check=True)
    report = json.loads(again.stdout)
    assert (report["finished"], report["written"]) == (done, 8 - done)
    assert multiset(in_arrow(target)) == multiset(in_arrow(source))
