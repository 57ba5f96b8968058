"""Groups of columns that are stored once per run: which may be, and which a rewrite keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from optimized import CLUSTERED, files_of, rewrite, stored_row_groups, warehouse
from typer.testing import CliRunner

from feedline.cli import app
from feedline.errors import SpecError, TableArgumentError
from feedline.warehouse.optimize.footprint import footprint
from feedline.warehouse.optimize.repeated_columns import group_savings, groups_to_write
from feedline.warehouse.parquet.dedup_columns import flag_column
from feedline.warehouse.snapshot.take import take_snapshot

GROUPS = (("user", ("word", "ids", "holes")), ("cost", ("price",)))


def test_the_groups_of_the_source_are_kept_unless_others_are_named(tmp_path: Path) -> None:
    groups = {1: ("user", ("word", "ids")), 2: ("user", ("ids", "holes"))}
    source = warehouse(tmp_path / "in", days=2, rows=60)
    for day, group in groups.items():  # a table whose partitions were written at different times
        folder = f"ds=2026-01-0{day}"
        rewrite(source / folder, tmp_path / "out" / folder, **CLUSTERED, dedup=(group, GROUPS[1]))
    before = footprint(take_snapshot(str(tmp_path / "out")), ["ids"], map=lambda task, tasks: [*map(task, tasks)])
    stored = {"user": ("word", "ids", "holes"), "cost": ("price",)}
    flags = [table for table, _, _ in stored_row_groups(files_of(tmp_path / "out"))]
    assert before.groups == stored
    assert before.runs == {
        name: sum(table[f"__run_{name}"].to_pylist().count(True) for table in flags) for name in stored
    }
    assert before.projection.bytes == before.column_bytes["ids"] + before.column_bytes["__run_user"]
    assert groups_to_write((), expand=False, before=before) == tuple(stored.items())
    assert groups_to_write((), expand=True, before=before) == ()
    assert groups_to_write(GROUPS[1:], expand=False, before=before) == GROUPS[1:]
    apart = replace(before, groups={"a": ("word", "ids"), "b": ("ids",)})
    with pytest.raises(TableArgumentError, match="store column 'ids' in different groups: got a and b"):
        groups_to_write((), expand=False, before=apart)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--dedup=user=wrd"],
            "--dedup user names column 'wrd', which is not in the table's files. Did you mean 'word'?",
        ),
        (["--dedup=user=ds,word"], "--dedup user names the partition key 'ds', whose values are the folders' names"),
        (["--dedup=a=word", "--dedup=b=ids,word"], "--dedup names column 'word' 2 times, in a and b: "),
        (["--dedup=a=word,word"], "--dedup names column 'word' 2 times, in a: "),
        (["--dedup=user="], "--dedup names group 'user' without columns"),
        (["--dedup=user"], "--dedup is not a group: got 'user', expected one list, --dedup user=column,column"),
        (["--dedup=user=word", "--dedup=user=ids"], "--dedup is not a group: got group 'user' twice"),
        (["--dedup=a b=word"], "--dedup has a bad group name: got 'a b', expected letters, digits"),
        (["--dedup=user=w{3..1}"], "--dedup user: a range must ascend"),
        (["--dedup=user=__run_x"], "--dedup user names column '__run_x', which is not in the table's files"),
        (
            ["--dedup=user=word", "--expand"],
            "--expand stores every column in every row, and --dedup once per run: got both",
        ),
        (
            ["--dedup=user=word", "--flatten", "word"],
            "--dedup user names column 'word', whose keys --flatten makes columns",
        ),
    ],
)
def test_groups_that_cannot_be_stored_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    source = warehouse(tmp_path / "in", days=1, rows=10, files=1)
    command = ["optimize", str(source), str(tmp_path / "out"), *arguments]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, SpecError), done.output
    assert words in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_savings_compare_the_bytes_of_columns_with_their_flags():
    flag = flag_column("g")
    before = SimpleNamespace(column_bytes={"x": 100, "y": 50, "z": 7})
    after = SimpleNamespace(rows=40, runs={"g": 10}, column_bytes={"x": 30, "y": 20, flag: 5, "z": 7})
    [saving] = group_savings(before, after, (("g", ("x", "y")),))
    assert (saving.rows, saving.runs, saving.factor) == (40, 10, 4.0)
    assert (saving.bytes_before, saving.bytes_after) == (150, 55)
    [empty] = group_savings(before, SimpleNamespace(rows=0, runs={}, column_bytes={}), (("g", ("x",)),))
    assert empty.factor == 1.0
