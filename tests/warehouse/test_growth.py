"""The cost per file of loops over a table's files does not grow with the number of files.

Counted, not timed: comparisons of names, by names that count them, and allocated bytes (which a mask over all row
groups, or a copy of them in another type, would raise).
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedline.planning import skip_bad_files
from feedline.warehouse.optimize import optimize
from feedline.warehouse.optimize.optimize import Partition
from feedline.warehouse.optimize.survey import file_fragment
from feedline.warehouse.rebase.file_changes import by_file
from feedline.warehouse.snapshot.column_facts import Facts
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits

GROUPS = 3
FEW, MANY = 1_000, 50_000
NOTHING_BYTES = 4_096  # less than a byte per row group of the larger table


def table_of(files: int) -> Snapshot:
    """A snapshot of generated files of three row groups."""
    facts = {
        "path": [f"f{number}" for number in range(files)],
        "bytes": pa.array(np.full(files, 1000)),
        "mtime_ns": pa.array(np.arange(files)),
        "footer_digest": [b"digest"] * files,
        "footer_bytes": pa.array(np.full(files, 100)),
        "rows": pa.array(np.full(files, 10 * GROUPS)),
    }
    groups = {
        "file": pa.array(np.repeat(np.arange(files, dtype=np.int32), GROUPS)),
        "row_group": pa.array(np.tile(np.arange(GROUPS, dtype=np.int32), files)),
        "rows": pa.array(np.full(files * GROUPS, 10)),
        "bytes": pa.array(np.full(files * GROUPS, 300)),
    }
    return Snapshot(
        id="made-up",
        uri="/nowhere",
        schema=pa.schema({"x": pa.int64()}),
        partition_columns=(),
        files=pa.table(facts),
        row_groups=pa.table(groups),
        facts=Facts(lambda _: pa.nulls(0)),
        file_schemas=(),
    )


def allocated(call: Callable[[], Any]) -> int:
    """The peak of bytes that a call allocates."""
    call()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class Name(str):
    """A path that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def partition_of(files: tuple[int, ...]) -> Partition:
    return Partition(folder="", files=files, rows=10, bytes=10, sources="", alone=True)


@pytest.mark.parametrize("files", [FEW, MANY])
def test_row_groups_of_a_file_are_found_without_a_pass_over_the_table(files: int):
    snapshot, last = table_of(files), files - 1
    expected = [GROUPS * last, GROUPS * last + 1, GROUPS * last + 2]
    assert snapshot.row_groups_of(last).tolist() == expected
    assert file_fragment(snapshot, last).row_groups == (0, 1, 2)
    assert [fragment.row_groups for fragment in optimize._row_groups(snapshot, partition_of((last,)))] == [
        (0,),
        (1,),
        (2,),
    ]
    splits = plan_splits(snapshot.rows_per_row_group, snapshot.file_of_row_group, 20)
    assert [splits.rows[split] for split in splits.of_file(last)] == [20, 10]
    for call in (
        lambda: snapshot.row_groups_of(last),
        lambda: file_fragment(snapshot, last),
        lambda: list(optimize._row_groups(snapshot, partition_of((last,)))),
        lambda: splits.of_file(last),
        lambda: list(by_file(snapshot, expected)),
    ):
        assert allocated(call) < NOTHING_BYTES


def test_row_groups_come_file_by_file():
    snapshot = table_of(5)
    found = {file: groups.tolist() for file, groups in by_file(snapshot, [0, 2, 3, 9, 11, 12])}
    assert found == {0: [0, 2], 1: [3], 3: [9, 11], 4: [12]}
    assert list(by_file(snapshot, [])) == []


@pytest.mark.parametrize("files", [100, 200])
def test_files_that_are_kept_are_not_compared_with_each_other(files: int, monkeypatch: pytest.MonkeyPatch):
    """`small_partitions: keep`: a unit per file."""
    names = [Name(f"f{number}") for number in range(files) for _ in range(GROUPS)]
    groups = [SimpleNamespace(path=name) for name in names]
    monkeypatch.setattr(optimize, "_row_groups", lambda snapshot, partition: iter(groups))
    recipe: Any = SimpleNamespace(cluster_by=(), limits=SimpleNamespace(file_bytes=1000))
    Name.compared = 0
    found = optimize.small_units(table_of(1), partition_of((0,)), recipe, None, keep_files=True)  # type: ignore[arg-type]
    assert Name.compared <= 2 * GROUPS * files
    assert [[fragment.path for fragment in unit.fragments] for unit in found or ()] == [
        [f"f{number}"] * GROUPS for number in range(files)
    ]
    assert {unit.units for unit in found or ()} == {files}


def test_bad_files_are_found_with_their_facts():
    snapshot = table_of(100)
    found = skip_bad_files._bad_files_of(snapshot, {"f97": "rot", "f3": "mould"})
    assert {path: (bad.file, bad.reason, bad.mtime_ns, bad.rows) for path, bad in found.items()} == {
        "f3": ("/nowhere/f3", "mould", 3, 30),
        "f97": ("/nowhere/f97", "rot", 97, 30),
    }
