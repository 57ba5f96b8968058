"""Borders of epochs: files named by their content, and the decision on the one after each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from feedline.errors import CorruptFileError, StateError, TableError
from feedline.planning.epoch_snapshot import (
    Next,
    files_seen,
    load_border,
    load_seen,
    read_next,
    save_border,
    split_border,
    work_location,
    write_next,
)

SNAPSHOT = "a" * 64


def test_a_border_is_loaded_by_the_id_in_a_states_snapshot(tmp_path: Path):
    first = save_border(str(tmp_path), SNAPSHOT, epoch=0)
    after = save_border(str(tmp_path), "b" * 64, epoch=1, previous=first)
    assert split_border(after.name) == ("b" * 64, after.id)
    assert split_border(SNAPSHOT) == (SNAPSHOT, None)
    assert load_border(str(tmp_path), after.id) == after
    assert (after.epoch, after.previous, first.previous) == (1, first.id, "")


def test_each_run_has_borders_of_its_own_and_the_ranks_of_a_run_have_the_same(tmp_path: Path):
    first, other = (save_border(str(tmp_path), SNAPSHOT, epoch=0) for _ in range(2))
    assert first.id != other.id, "a second run on the same snapshot"
    again = [save_border(str(tmp_path), SNAPSHOT, epoch=1, previous=first) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0].id != save_border(str(tmp_path), SNAPSHOT, epoch=1, previous=other).id


def test_the_files_that_epochs_have_read_are_kept_with_the_border(tmp_path: Path):
    facts = {"path": ["a", "b"], "bytes": [1, 2], "mtime_ns": [3, 4], "etag": pa.nulls(2, pa.string())}
    seen = pa.table({**facts, "footer_digest": [b"x", b"y"]})
    border = save_border(str(tmp_path), SNAPSHOT, epoch=0, seen=seen)
    assert load_seen(str(tmp_path), border).equals(seen)
    seen = seen.select(["path", "bytes"])
    more = pa.table({"path": ["b", "c"], "bytes": [3, 4]})
    assert files_seen(seen, more).to_pylist() == [
        {"path": "a", "bytes": 1},
        {"path": "b", "bytes": 3},
        {"path": "c", "bytes": 4},
    ]
    assert files_seen(seen.slice(0, 0), more).equals(more)


def test_the_decision_on_the_next_border_is_read_again(tmp_path: Path):
    location = work_location(str(tmp_path))
    border = save_border(str(tmp_path), SNAPSHOT, epoch=0)
    assert read_next(location, border) is None
    for decision in (Next(border="c" * 32, until=None), Next(border=None, until="2026-01-01")):
        write_next(location, border, decision)
        assert read_next(location, border) == decision
    (tmp_path / border.pointer).write_text("{")
    with pytest.raises(CorruptFileError, match=r"follow/.*\.next\.json is damaged"):
        read_next(location, border)


def test_a_border_that_is_not_there_names_the_work_dir(tmp_path: Path):
    with pytest.raises(StateError, match=r"border f{32} is not in .*which all its hosts share"):
        load_border(str(tmp_path), "f" * 32)
    with pytest.raises(TableError, match="id of a border is invalid"):
        load_border(str(tmp_path), "../x")
