"""What a worker cannot read is said with its host, and never blamed on the table while the feeder can read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.blocks.environment import Reach, check_table, check_work_dir, unreadable
from feedline.errors import ClusterError, CorruptFileError, TableChangedError, TableNotFoundError
from feedline.service.cluster.worker_checks import WorkerRead, read_again
from feedline.warehouse.reading.fragment import Fragment, fragment_at
from feedline.warehouse.snapshot.take import take_snapshot

GONE = "t/0.parquet is gone: it was there when the snapshot was taken. Take a new snapshot"


@pytest.fixture
def fragment(tmp_path: Path) -> Fragment:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "t" / "0.parquet")
    snapshot = take_snapshot(str(tmp_path / "t"), work_dir=str(tmp_path / "work"))
    return fragment_at(snapshot, 0, np.array([0]), np.array([3]))


def reach(fragment: Fragment, work_dir: Path | None = None) -> Reach:
    name = next(str(path.relative_to(work_dir)) for path in work_dir.glob("snapshots/*")) if work_dir else ""
    return Reach(host="feeder-1", fragment=fragment, work_dir=str(work_dir) if work_dir else None, snapshot=name)


def test_a_worker_that_does_not_see_the_table_names_both_hosts(fragment: Fragment, tmp_path: Path):
    assert unreadable(fragment) is None
    check_table(reach(fragment))
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    assert isinstance(unreadable(fragment), TableChangedError)
    with pytest.raises(ClusterError, match=r"a worker on .* cannot read the table: .*is gone.* feeder-1 reads"):
        check_table(reach(fragment))


def test_a_worker_that_does_not_see_work_dir_is_told(fragment: Fragment, tmp_path: Path):
    seen = reach(fragment, tmp_path / "work")
    check_work_dir(seen)
    check_work_dir(reach(fragment))  # workers do not write to it
    (tmp_path / "work").rename(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match=r"cannot read work_dir: .*it is not there.* feeder on feeder-1 wrote it"):
        check_work_dir(seen)


def read_or(error: Exception | None) -> Any:
    def read(task: int) -> int:
        if task == 1 and error is not None:
            raise error
        return 10 * task

    return read


def test_what_a_worker_could_not_read_is_read_here_and_the_worker_left_out():
    results = [WorkerRead(read_or(TableNotFoundError("t does not exist")))(task) for task in range(3)]
    left_out: list[str] = []

    def leave_out(worker: str, why: str) -> bool:
        left_out.append(why)
        return True

    assert list(read_again(read_or(None), range(3), results, leave_out)) == [0, 10, 20]
    assert ["cannot read the table: t does not exist; but" in why for why in left_out] == [True]
    rest: Iterator[int] = read_again(read_or(None), range(3), results, lambda worker, why: False)
    with pytest.raises(ClusterError, match="cannot read the table"):
        list(rest)
    with pytest.raises(TableNotFoundError):  # gone here, too
        list(read_again(read_or(TableNotFoundError("t does not exist")), range(3), results, leave_out))


def test_damage_is_the_same_everywhere():
    with pytest.raises(CorruptFileError):
        WorkerRead(read_or(CorruptFileError("t/0.parquet is not valid Parquet")))(1)
