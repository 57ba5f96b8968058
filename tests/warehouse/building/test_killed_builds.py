"""What is left when `build` is killed, and does the next run make the same table? Real processes, killed at chosen and
at random moments."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forked import forked
from killed_build import EVENTS, killed_build
from sample_logs import END_NS, REQUESTS, ROWS, drawn_logs, spec_of, table_bytes, write_logs

from feedline.config.build_spec import BuildSpec
from feedline.errors import TableError
from feedline.warehouse.building.build import build
from feedline.warehouse.optimize.landing import HIDDEN
from feedline.warehouse.optimize.optimize import TaskRunner

LOGS = drawn_logs(21, rows=100, whole_requests=True)
LAYOUTS = {"impressions": ROWS, "requests": REQUESTS}
KILLS, SEEDS = 4, 25  # of each layout: 200 kills in all


def built(spec: BuildSpec) -> None:
    build(spec, now_ns=END_NS, until_ns=END_NS, runner=TaskRunner(threads=1, memory_bytes=1 << 30))


def killed(folder: Path, where: tuple[str, ...], turn: int, *, without_exchange: bool = False) -> bool:
    """Run until the n-th event; False: it ended before."""
    process = forked(killed_build, str(folder), where, turn, without_exchange)
    process.join(120)
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL)
    return bool(code)


def assert_whole(folder: Path, tables: list[dict[str, bytes]]) -> None:
    """What readers see: partitions of one of these tables, each whole or missing."""
    seen = {name: content for name, content in table_bytes(folder).items() if not name.startswith(HIDDEN)}
    for day in ("ds=2026-01-01", "ds=2026-01-02"):
        own = {name: content for name, content in seen.items() if name.startswith(day)}
        wholes = [{name: each for name, each in table.items() if name.startswith(day)} for table in tables]
        assert own in ({}, *wholes), day
        for name in own:
            if name.endswith(".parquet"):
                pq.ParquetFile(folder / name).read()


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The tables that builds make that nobody kills, by layout."""
    folder = tmp_path_factory.mktemp("whole")
    write_logs(LOGS, folder / "logs", files=1)
    for name, layout in LAYOUTS.items():
        built(spec_of(folder, out=name, layout=layout))
    return {name: table_bytes(folder / name) for name in LAYOUTS}


@pytest.fixture
def whole(wholes: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return wholes["impressions"]


@pytest.mark.parametrize(
    ("where", "turn"),
    [
        ("spill", 3),
        ("file", 1),
        ("land", 4),
        ("claim", 2),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("land", 2), ("land", 5), ("claim", 1))),
    ],
)
def test_a_killed_build_leaves_whole_partitions_and_the_next_one_does_the_rest(
    tmp_path: Path, whole: dict[str, bytes], where: str, turn: int
) -> None:
    write_logs(LOGS, tmp_path / "logs", files=1)
    spec = spec_of(tmp_path)
    assert killed(tmp_path, (where,), turn)
    assert_whole(tmp_path / "out", [whole])
    built(spec)
    assert table_bytes(tmp_path / "out") == whole
    assert not (tmp_path / "out" / HIDDEN).exists()


@pytest.mark.parametrize("without_exchange", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_partition_built_again_is_the_old_one_or_the_new_one(
    tmp_path: Path, whole: dict[str, bytes], without_exchange: bool
) -> None:
    early = {**LOGS, "clicks": LOGS["clicks"].slice(40)}
    write_logs(early, tmp_path / "logs", files=1)
    spec = spec_of(tmp_path, late="rebuild")
    built(spec)
    before = table_bytes(tmp_path / "out")
    assert before != whole
    (tmp_path / "logs" / "clicks" / "arrived=9").mkdir()
    pq.write_table(LOGS["clicks"].slice(0, 40), tmp_path / "logs" / "clicks" / "arrived=9" / "late.parquet")
    for turn in (4, 5):  # around the exchange of the first partition
        assert killed(tmp_path, ("land",), turn, without_exchange=without_exchange)
        assert_whole(tmp_path / "out", [before, whole])
    built(spec)
    assert table_bytes(tmp_path / "out") == whole


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_kills_leave_the_same_table(
    tmp_path: Path, wholes: dict[str, dict[str, bytes]], layout: str, seed: int
) -> None:
    """Kill after kill, each run a little further, the rows of logs in any files and order."""
    draw, whole = random.Random(seed), wholes[layout]
    write_logs(LOGS, tmp_path / "logs", seed, files=draw.randint(1, 5))
    spec, kills = spec_of(tmp_path, layout=LAYOUTS[layout]), 0
    while kills < KILLS:
        is_killed = killed(tmp_path, tuple(EVENTS), draw.randint(1, 60), without_exchange=draw.random() < 0.2)
        assert_whole(tmp_path / "out", [whole])
        kills += is_killed
        if not is_killed:
            assert table_bytes(tmp_path / "out") == whole
            shutil.rmtree(tmp_path / "out")
    built(spec)
    assert table_bytes(tmp_path / "out") == whole
    assert not (tmp_path / "out" / HIDDEN).exists()


def test_two_builders_at_once_are_refused(tmp_path: Path) -> None:
    write_logs(LOGS, tmp_path / "logs", files=1)
    spec = spec_of(tmp_path)
    (tmp_path / "out").mkdir()
    lock = os.open(tmp_path / "out" / "_build.lock", os.O_RDWR | os.O_CREAT)
    try:
        os.write(lock, b"4711\n")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TableError, match="is being built by another run: got the lock of process 4711"):
            built(spec)
    finally:
        os.close(lock)
    built(spec)
    shutil.rmtree(tmp_path / "out")
