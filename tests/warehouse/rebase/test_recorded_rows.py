"""Identities of delivered rows are recorded per piece, and found again by file and row group."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.warehouse.reading.fragment import Fragment, fragment_at, pack_mask
from feedline.warehouse.rebase.recorded_rows import (
    IdentifyTask,
    Recording,
    Records,
    identify_task,
    recorder_of,
    remaining_rows,
    save_records,
    spans_of,
)
from feedline.warehouse.rebase.row_identity import Identity, identity_of
from feedline.warehouse.snapshot.take import take_snapshot

ROWS = pl.DataFrame({"id": range(10), "session": [n // 4 for n in range(10)]})


@pytest.fixture
def identity() -> Identity:
    found = identity_of(ROWS.to_arrow().schema, ["id"], by="session")
    assert found is not None
    return found


@pytest.fixture
def recording(tmp_path: Path, identity: Identity) -> Recording:
    (tmp_path / "w" / "snapshots").mkdir(parents=True)
    return Recording(identity=identity, work_dir=str(tmp_path / "w"))


@pytest.fixture
def fragment(tmp_path: Path) -> Fragment:
    """Three row groups: of 4, 4 and 2 rows."""
    pq.write_table(ROWS.to_arrow(), tmp_path / "t.parquet", row_group_size=4)
    snapshot = take_snapshot(str(tmp_path / "t.parquet"))
    return fragment_at(snapshot, 0, np.arange(3), np.array([4, 4, 2]))


def record(recording: Recording, fragment: Fragment, skip: int, rows: pl.DataFrame) -> None:
    recorder = recorder_of(recording, fragment, skip, rows.height)
    assert recorder is not None
    recorder.add(rows.head(1))
    recorder.add(rows.slice(1))
    recorder.write()


def found(recording: Recording, fragment: Fragment) -> dict[int, list[int | None]]:
    """The recorded identities, as the rows of `ROWS` that have them."""
    row_of = {int(word): row for row, word in enumerate(recording.identity.rows(ROWS))}
    runs = recording.identity.runs(ROWS)
    result: dict[int, list[int | None]] = {}
    for group, records in Records(recording.work_dir, recording.identity).of(fragment).items():
        rows = [row_of[int(word)] if there else None for word, there in zip(records.rows, records.present, strict=True)]
        assert all(records.runs[at] == runs[row] for at, row in enumerate(rows) if row is not None)
        result[group] = rows
    return result


def test_pieces_add_up_and_rows_between_them_are_missing(recording: Recording, fragment: Fragment):
    record(recording, fragment, 1, ROWS.slice(1, 2))
    record(recording, fragment, 6, ROWS.slice(6, 3))
    assert found(recording, fragment) == {0: [None, 1, 2, None], 1: [None, None, 6, 7], 2: [8, None]}


def test_rows_of_a_rebased_fragment_lie_between_the_excluded(recording: Recording, fragment: Fragment):
    masks = (np.array([True, False, True, False]), np.zeros(4, np.bool_), np.array([True, True]))
    rest = replace(fragment, excluded=(pack_mask(masks[0]), None, pack_mask(masks[2])))
    assert remaining_rows(rest) == 6
    assert spans_of(rest, 1, 4) == [(1, 2), (0, 3), (0, 0)]
    record(recording, rest, 1, ROWS[[3, 4, 5, 6]])
    assert found(recording, fragment) == {0: [None, None, None, 3], 1: [4, 5, 6, None], 2: [None, None]}


def test_what_is_recorded_is_not_recorded_again(recording: Recording, fragment: Fragment):
    record(recording, fragment, 2, ROWS.slice(2, 3))
    assert recorder_of(recording, fragment, 2, 3) is None
    record(recording, fragment, 0, ROWS)
    assert recorder_of(recording, fragment, 5, 3) is None  # all rows are known
    assert recorder_of(None, fragment, 0, 10) is None
    assert recorder_of(recording, fragment, 0, 0) is None


def test_a_piece_of_other_rows_than_planned_is_not_recorded(recording: Recording, fragment: Fragment):
    recorder = recorder_of(recording, fragment, 0, 10)
    assert recorder is not None
    recorder.add(ROWS.head(9))
    recorder.write()
    assert found(recording, fragment) == {0: [None] * 4, 1: [None] * 4, 2: [None] * 2}


def test_records_of_other_files_counts_and_identities_are_not_used(
    recording: Recording, fragment: Fragment, identity: Identity
):
    record(recording, fragment, 0, ROWS)
    nothing = {0: [None] * 4, 1: [None] * 4, 2: [None] * 2}
    assert found(recording, replace(fragment, footer_digest=b"other")) == nothing
    assert found(recording, replace(fragment, path="other.parquet")) == nothing
    assert found(recording, replace(fragment, mtime_ns=fragment.mtime_ns + 1)) == nothing, "written again in place"
    assert found(recording, replace(fragment, tag="new")) == nothing
    assert found(replace(recording, identity=replace(identity, kept="where")), fragment) == nothing
    assert found(recording, replace(fragment, expected=(3, 4, 2)))[0] == [None] * 3


def test_a_damaged_record_counts_as_none(recording: Recording, fragment: Fragment):
    record(recording, fragment, 0, ROWS)
    [file] = Path(recording.work_dir).glob("rows/*/*")
    file.write_bytes(file.read_bytes()[:-1])
    assert found(recording, fragment)[2] == [None, None]


def test_a_work_dir_that_is_not_there_is_said_once(
    recording: Recording, fragment: Fragment, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    absent = replace(recording, work_dir=str(tmp_path / "absent"))
    with caplog.at_level(logging.WARNING):
        assert recorder_of(absent, fragment, 0, 10) is None
        assert recorder_of(absent, fragment, 0, 10) is None
    [message] = [line.getMessage() for line in caplog.records]
    assert f"identities of rows are not recorded in {tmp_path / 'absent'} (it does not exist on this host)" in message


def test_identities_computed_from_the_table_are_recorded_like_those_of_a_run(
    recording: Recording, fragment: Fragment, identity: Identity
):
    schema = pa.schema([("id", pa.int64()), ("session", pa.int64())])
    task = IdentifyTask(fragment=fragment, identity=identity, where=None, sample=None, schema=schema)
    rows, runs = identify_task(task)
    assert rows.tolist() == identity.rows(ROWS).tolist()
    assert runs is not None
    assert runs.tolist() == identity.runs(ROWS).tolist()
    save_records(recording, fragment, rows, runs)
    assert found(recording, fragment) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8, 9]}
    some = replace(task, fragment=replace(fragment, expected=(0, 3, 2)), where="id >= 5")
    assert identify_task(some)[0].tolist() == identity.rows(ROWS.slice(5)).tolist()
