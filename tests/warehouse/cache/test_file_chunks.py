"""Column chunks that a store delivered are kept, and read instead of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from feedline.errors import StoreError
from feedline.warehouse.cache.cache_folder import CacheRef, open_folder
from feedline.warehouse.cache.file_chunks import FileChunks
from feedline.warehouse.storage.ranges import Range, SparseFile

SIZE = 100_000
CONTENT = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).tobytes()
VERSION = ("s3://b/t/f.parquet", str(SIZE), "tag 00", "digest")
A, B, C = (4, 30_100), (30_000, 60_100), (60_000, SIZE)  # as Arrow reads chunks: with padding into the next one


@dataclass
class Store:
    """Delivers ranges of the file, and counts them."""

    file: SparseFile = field(default_factory=lambda: SparseFile(SIZE))
    fetched: list[Range] = field(default_factory=list)

    def fetch(self, ranges: Sequence[Range]) -> None:
        for start, stop in ranges:
            self.fetched.append((start, stop))
            self.file.write(start, memoryview(CONTENT)[start:stop])


@pytest.fixture
def chunks(tmp_path: Path) -> FileChunks:
    ref = CacheRef(folder=str(tmp_path / "cache"), size=10 * 2**20, free=0, shared=False)
    return FileChunks(cache=ref, table="s3://b/t", path="ds=1/f.parquet", partition={"ds": 1})


def read(chunks: FileChunks, *ranges: Range, version: Sequence[str] = VERSION, row_group: int = 0) -> list[Range]:
    """Fill a new file; returns what was fetched for it."""
    store = Store()
    chunks.fill(store.file, version, row_group, ranges, store.fetch)
    for start, stop in ranges:
        assert store.file.read_range(start, stop).to_pybytes() == CONTENT[start:stop]
    return store.fetched


def entries(chunks: FileChunks) -> list[Path]:
    return sorted(Path(chunks.cache.folder).rglob("*.entry"))


def test_the_second_read_fetches_nothing(chunks: FileChunks) -> None:
    assert read(chunks, A, B) == [A, B]
    assert read(chunks, A, B) == []
    counters = open_folder(chunks.cache).counters
    assert (counters.hits, counters.misses, counters.damaged) == (2, 2, 0)


def test_other_columns_of_a_row_group_are_fetched_alone(chunks: FileChunks) -> None:
    read(chunks, A)
    assert read(chunks, A, B, C) == [B, C]
    assert read(chunks, C, A) == []


def test_other_row_groups_and_versions_are_other_entries(chunks: FileChunks) -> None:
    read(chunks, A)
    assert read(chunks, A, row_group=1) == [A]
    for index in range(len(VERSION)):
        changed = tuple(part + "x" if index == at else part for at, part in enumerate(VERSION))
        assert read(chunks, A, version=changed) == [A]


def test_a_damaged_chunk_is_fetched_again_and_counted(chunks: FileChunks) -> None:
    read(chunks, A, B)
    [entry] = entries(chunks)
    content = bytearray(entry.read_bytes())
    content[len(content) // 4] ^= 1
    entry.write_bytes(content)
    assert A in read(chunks, A, B)
    assert open_folder(chunks.cache).counters.damaged == 1
    read(chunks, A, B)  # the damaged file is gone, with B
    assert read(chunks, A, B) == []


def test_what_a_store_failed_to_deliver_is_not_kept(chunks: FileChunks) -> None:
    def fail(ranges: Sequence[Range]) -> None:
        raise StoreError("the store is down")

    with pytest.raises(StoreError, match="the store is down"):
        chunks.fill(SparseFile(SIZE), VERSION, 0, [A], fail)
    assert entries(chunks) == []
    assert read(chunks, A) == [A]  # nobody holds the row group


def test_a_full_cache_delivers_nevertheless(chunks: FileChunks) -> None:
    small = replace(chunks, cache=replace(chunks.cache, size=100_000))
    for _ in range(2):
        for row_group in range(8):
            read(small, A, B, C, row_group=row_group)
    folder = open_folder(small.cache)
    assert folder.space.rescan() <= 120_000


def test_threads_that_need_a_row_group_at_once_fetch_it_once(chunks: FileChunks) -> None:
    entered, leave = threading.Event(), threading.Event()
    fetched: list[Range] = []

    class Slow(Store):
        def fetch(self, ranges: Sequence[Range]) -> None:
            entered.set()
            assert leave.wait(30)
            super().fetch(ranges)
            fetched.extend(ranges)

    def run() -> None:
        store = Slow()
        chunks.fill(store.file, VERSION, 0, [A, B], store.fetch)
        assert store.file.read_range(*A).to_pybytes() == CONTENT[slice(*A)]

    first = threading.Thread(target=run)
    first.start()
    assert entered.wait(30)
    others = [threading.Thread(target=run) for _ in range(3)]
    for thread in others:
        thread.start()
    leave.set()
    for thread in [first, *others]:
        thread.join(60)
    assert fetched == [A, B]
