"""Files on mounts that fail for a moment are read to the end, from where the failure came."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Table
from feedline.errors import StoreError, TableChangedError, TableError
from feedline.warehouse.parquet import open_file
from feedline.warehouse.parquet.decode import DecodedRows, FileDecoder
from feedline.warehouse.storage import retry
from feedline.warehouse.storage.retry import RetryPolicy

ROWS = 10_000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of one file, whose row groups are read in chunks. Pauses are short."""
    monkeypatch.setattr(retry, "POLICY", RetryPolicy(first_s=0.001, longest_s=0.002, deadline_s=0.5))
    values = pa.table(
        {"id": range(ROWS), "name": [str(n % 7) for n in range(ROWS)], "ids": [[n, n] for n in range(ROWS)]}
    )
    (tmp_path / "table").mkdir()
    pq.write_table(values, tmp_path / "table" / "part.parquet", row_group_size=ROWS // 2)
    return tmp_path / "table"


class Mount:
    """A mount that fails while rows are decoded: at every n-th batch, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, *, every: int, times: int) -> None:
        self._batches: Callable[..., Iterator[DecodedRows]] = FileDecoder.batches
        self._error, self._every, self._times = error, every, times
        self.failures = self._taken = 0
        own = self
        monkeypatch.setattr(FileDecoder, "batches", lambda *args, **options: own.batches(*args, **options))

    def batches(self, decoder: Any, parquet: Any, request: Any, read: Any) -> Iterator[DecodedRows]:
        for batch in self._batches(decoder, parquet, replace(request, chunk_rows=500), read):
            self._taken += 1
            if self._taken % self._every == 0 and self.failures < self._times:
                self.failures += 1
                raise OSError(self._error, os.strerror(self._error))
            yield batch


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ECONNRESET])
def test_a_mount_that_fails_for_a_moment_loses_and_repeats_no_row(
    table: Path, error: int, monkeypatch: pytest.MonkeyPatch
):
    expected = pq.read_table(table / "part.parquet")
    snapshot = Table(str(table))
    mount = Mount(monkeypatch, error, every=3, times=5)
    assert snapshot.read().cast(expected.schema).equals(expected)
    assert mount.failures == 5


def test_a_stale_file_is_opened_again(table: Path, monkeypatch: pytest.MonkeyPatch):
    expected = pq.read_table(table / "part.parquet")
    failures = [OSError(errno.ESTALE, "Stale file handle")] * 2
    whole = open_file._LocalFile._open

    def opening(file: Any) -> Any:
        if failures:
            raise failures.pop()
        return whole(file)

    snapshot = Table(str(table))
    snapshot.snapshot()
    monkeypatch.setattr(open_file._LocalFile, "_open", opening)
    assert snapshot.read().num_rows == expected.num_rows
    assert not failures


def test_a_mount_that_stays_away_is_an_error_that_names_the_file(table: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = Table(str(table))
    Mount(monkeypatch, errno.ESTALE, every=2, times=1_000_000)
    with pytest.raises(StoreError, match=r"part\.parquet could not be read: gave up after \d+ attempts(?s:.*)Stale"):
        snapshot.read()


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES])
def test_final_failures_are_not_repeated(table: Path, error: int, monkeypatch: pytest.MonkeyPatch):
    snapshot = Table(str(table))
    mount = Mount(monkeypatch, error, every=2, times=9)
    with pytest.raises((TableError, TableChangedError)):
        snapshot.read()
    assert mount.failures == 1


def test_a_file_replaced_while_its_mount_was_away_is_refused(table: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = Table(str(table))
    mount = Mount(monkeypatch, errno.ESTALE, every=3, times=1)

    def replaced(*arguments: Any, **options: Any) -> Iterator[DecodedRows]:
        try:
            yield from mount.batches(*arguments, **options)
        except OSError:
            pq.write_table(pa.table({"id": [1]}), table / "part.parquet")
            raise

    monkeypatch.setattr(FileDecoder, "batches", replaced)
    with pytest.raises(TableChangedError, match=r"part\.parquet changed after the snapshot was taken"):
        snapshot.read()
