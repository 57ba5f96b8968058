"""A folder stays below its bound and leaves the floor of free space, whoever else writes to it."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cache_entries import columns_of, files_of, filled, group_of, ref_of, stop_halfway
from forked import forked
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.cache import cache_folder, flights
from feedline.warehouse.cache.cache_folder import CacheFolder, FolderSpace, WriteBudget
from feedline.warehouse.cache.flights import CacheCounters

FILE_BYTES = 36_864  # of columns_of, in whole blocks


def space_of(folder: Path, size: int | None, free: int = 0) -> FolderSpace:
    return FolderSpace(str(folder), size, free, 0o600)


def test_a_file_has_the_bytes_that_the_tests_assume(tmp_path: Path):
    assert filled(tmp_path, groups=2).space.rescan() == 2 * FILE_BYTES


def test_there_is_room_below_the_bound(tmp_path: Path):
    filled(tmp_path, groups=2)
    counters = CacheCounters()
    assert space_of(tmp_path, 3 * FILE_BYTES).make_room(FILE_BYTES, 0.0, counters)
    assert not space_of(tmp_path, 3 * FILE_BYTES).make_room(3 * FILE_BYTES + 1, 1e9, counters)
    assert counters.evicted == 0
    assert len(files_of(tmp_path)) == 2


def test_files_of_more_benefit_stay(tmp_path: Path):
    cache = CacheFolder(ref_of(tmp_path, 4 * FILE_BYTES))
    for number in range(4):
        assert cache.put(group_of(number), columns_of(group_of(number)), cpu_s=(1.0, 100.0, 1.0, 100.0)[number])
    assert cache.put(group_of(9), columns_of(group_of(9)), cpu_s=10.0)
    assert cache.space.rescan() <= 4 * FILE_BYTES
    there = {number for number in (0, 1, 2, 3, 9) if cache.find(group_of(number), list(columns_of(group_of(number))))}
    assert {1, 3, 9} <= there
    assert len(there) + cache.counters.evicted == 5


def test_a_file_of_less_benefit_is_refused_without_another_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path, groups=2)
    space, counters = space_of(tmp_path, 2 * FILE_BYTES), CacheCounters()
    assert not space.make_room(FILE_BYTES, 1.0, counters)
    listed: list[str] = []
    whole = cache_folder.eviction.list_entries
    with monkeypatch.context() as patch:
        patch.setattr(cache_folder.eviction, "list_entries", lambda folder: listed.append(folder) or whole(folder))
        assert not space.make_room(FILE_BYTES, 0.9, counters)
        assert not listed
        patch.setattr(cache_folder, "_REFUSED_S", 0.0)
        space.make_room(FILE_BYTES, 0.9, counters)
        assert listed
    assert counters.evicted == 0
    assert space.make_room(FILE_BYTES, 100.0, counters)  # of more benefit
    assert counters.evicted == 2  # a twentieth of the bound goes with what has to


def test_a_folder_over_its_bound_shrinks(tmp_path: Path):
    filled(tmp_path, groups=10)
    space = space_of(tmp_path, 3 * FILE_BYTES)
    assert not space.make_room(FILE_BYTES, 0.0, CacheCounters())  # worth nothing, so nothing makes way for it
    assert space.rescan() == 3 * FILE_BYTES


def test_the_floor_of_free_space_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path, groups=3)
    whole = 100 * FILE_BYTES

    def statvfs(path: str) -> SimpleNamespace:
        used = 90 * FILE_BYTES + sum(FILE_BYTES for _ in files_of(tmp_path))
        return SimpleNamespace(f_blocks=whole, f_bavail=whole - used, f_frsize=1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", statvfs)
        assert space_of(tmp_path, None).bound == 10 * FILE_BYTES
        size = 20 * FILE_BYTES
        assert space_of(tmp_path, size, free=6 * FILE_BYTES).make_room(FILE_BYTES, 0.0, CacheCounters())
        assert not space_of(tmp_path, size, free=7 * FILE_BYTES).make_room(FILE_BYTES, 0.0, CacheCounters())
        assert len(files_of(tmp_path)) == 3
        assert space_of(tmp_path, size, free=7 * FILE_BYTES).make_room(FILE_BYTES, 9.0, CacheCounters())
        assert len(files_of(tmp_path)) == 1  # a twentieth of the bound goes with what has to
        space_of(tmp_path, size, free=10 * FILE_BYTES).make_room(FILE_BYTES, 0.0, CacheCounters())
        assert files_of(tmp_path) == []  # below the floor, files go in any case


def test_one_process_evicts_at_a_time(tmp_path: Path):
    cache = filled(tmp_path, groups=3)
    lock = flights.try_lock(str(tmp_path / "locks" / "evict"))
    assert lock is not None
    tight, counters = space_of(tmp_path, 3 * FILE_BYTES), CacheCounters()
    assert not tight.make_room(FILE_BYTES, 100.0, counters)
    os.close(lock)
    assert tight.make_room(FILE_BYTES, 100.0, counters)
    assert (counters.evicted, cache.space.rescan()) == (2, FILE_BYTES)


def test_what_others_write_is_seen_by_the_next_listing(tmp_path: Path):
    space, counters = space_of(tmp_path, 4 * FILE_BYTES), CacheCounters()
    CacheFolder(ref_of(tmp_path))
    assert space.make_room(FILE_BYTES, 1.0, counters)
    filled(tmp_path, groups=4)
    space.note_written(FILE_BYTES)
    assert not space.make_room(FILE_BYTES, 1.0, counters)


def test_a_dead_writers_file_goes_with_the_first_listing(tmp_path: Path):
    cache = filled(tmp_path, groups=1)
    [entry] = files_of(tmp_path)
    left = entry.with_name(".left.tmp")
    left.write_bytes(bytes(FILE_BYTES))
    os.utime(left, (time.time() - 60,) * 2)
    roomy = space_of(tmp_path, 2**30)
    assert roomy.make_room(FILE_BYTES, 1.0, CacheCounters())
    assert not left.exists()
    assert roomy.rescan() == cache.space.rescan() == FILE_BYTES


def test_a_killed_writers_file_is_removed_when_room_is_made(tmp_path: Path):
    cache = filled(tmp_path, groups=2)
    entries = files_of(tmp_path)
    halfway = multiprocessing.get_context("forkserver").Event()
    process = forked(stop_halfway, str(tmp_path), 5, halfway)
    assert halfway.wait(30)
    [left] = files_of(tmp_path, ".tmp")
    os.utime(left, (time.time() - 60,) * 2)
    tight = space_of(tmp_path, cache.space.rescan())
    assert not tight.make_room(tight.bound, 0.0, CacheCounters())
    assert left.exists()  # its writer lives
    process.kill()
    process.join(30)
    tight = space_of(tmp_path, cache.space.rescan())
    assert not tight.make_room(tight.bound, 0.0, CacheCounters())
    assert not left.exists()
    assert files_of(tmp_path) == entries


SECONDS = st.floats(1e-4, 10)


@given(st.floats(0.01, 1), SECONDS, SECONDS, st.integers(1, 300))
def test_writing_keeps_to_its_share_after_the_first_entry(share: float, made_s: float, written_s: float, count: int):
    budget, written = WriteBudget(share), 0
    for _ in range(count):
        writes = budget.allows()
        written += writes
        budget.spend(made_s=made_s, written_s=written_s if writes else 0.0)
    assert written * written_s <= max(share * count * made_s, written_s) * (1 + 1e-9)
    if written < count and share * made_s <= written_s:  # what is left is too little for another entry
        assert (written + 1) * written_s >= share * (count - 1) * made_s * (1 - 1e-9)


def test_some_seconds_are_free_and_without_a_share_all_are():
    unbound = WriteBudget(None)
    unbound.spend(made_s=1.0, written_s=100.0)
    assert unbound.allows()
    budget, written = WriteBudget(0.01, free_s=1.0), 0
    while budget.allows():
        budget.spend(made_s=1.0, written_s=0.125)
        written += 1
    assert written == 8
