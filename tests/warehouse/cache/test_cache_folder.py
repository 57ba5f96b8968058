"""Columns that were put are found, whole and unharmed, or missing; and no state of the disk is an error."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cache_entries import (
    column_of,
    columns_of,
    digest_of,
    files_of,
    fill_until_killed,
    group_of,
    ref_of,
    right_or_missing,
    same,
)
from forked import forked

from feedline.errors import SpecError
from feedline.warehouse.cache import cache_folder
from feedline.warehouse.cache.cache_folder import (
    CacheFolder,
    check_folder,
    entry_files,
    open_folder,
)

GROUP = group_of(0)
TRUTH = columns_of(GROUP)
FAULTS = [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.ESTALE]


@pytest.fixture
def cache(tmp_path: Path) -> CacheFolder:
    return CacheFolder(ref_of(tmp_path / "cache"))


def mode_of(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_a_folder_is_opened_once_per_process(tmp_path: Path):
    ref = ref_of(tmp_path / "cache")
    assert open_folder(ref) is open_folder(ref_of(tmp_path / "cache"))
    assert open_folder(ref) is not open_folder(ref_of(tmp_path / "cache", 2**20))


def test_columns_that_were_put_are_found(cache: CacheFolder):
    assert cache.find(GROUP, list(TRUTH)) == {}
    assert cache.put(GROUP, TRUTH, cpu_s=1.0)
    found = cache.find(GROUP, list(TRUTH))
    assert sorted(found) == sorted(TRUTH)
    assert right_or_missing(found, TRUTH)
    assert (cache.counters.hits, cache.counters.misses) == (3, 3)
    assert cache.counters.bytes_read == sum(column.nbytes for column in TRUTH.values())
    assert cache.counters.bytes_written == files_of(cache.ref.folder)[0].stat().st_size


def test_some_columns_of_several_files_are_found(cache: CacheFolder):
    names = list(TRUTH)
    cache.put(GROUP, {name: TRUTH[name] for name in names[:1]}, cpu_s=1.0)
    cache.put(GROUP, {name: TRUTH[name] for name in names[1:]}, cpu_s=1.0)
    assert len(entry_files(cache.ref.folder, GROUP.digest)) == 2
    found = cache.find(GROUP, [names[2], digest_of("other"), names[0], names[0]])
    assert sorted(found) == sorted([names[0], names[2]])
    assert right_or_missing(found, TRUTH)
    assert (cache.counters.hits, cache.counters.misses) == (2, 1)
    assert cache.find(group_of(1), names) == {}
    assert cache.find(GROUP, []) == {}


def test_the_same_columns_put_twice_are_one_file(cache: CacheFolder):
    assert cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert cache.put(GROUP, dict(reversed(TRUTH.items())), cpu_s=2.0)
    assert cache.put(GROUP, {}, cpu_s=2.0)
    assert len(files_of(cache.ref.folder)) == 1
    assert right_or_missing(cache.find(GROUP, list(TRUTH)), TRUTH)


@pytest.mark.parametrize("name", ["../../../../etc", "ABCDEF0123", "abc", "", "0123456789abcdef\n"])
def test_digests_are_hex(cache: CacheFolder, name: str):
    with pytest.raises(ValueError, match="hex of 8 digits or more"):
        cache.put(GROUP, {name: column_of("x")}, cpu_s=1.0)


def test_a_damaged_file_is_counted_removed_and_missing(cache: CacheFolder, caplog: pytest.LogCaptureFixture):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    for _ in range(2):
        [path] = files_of(cache.ref.folder)
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
        assert cache.find(GROUP, list(TRUTH)) == {}
        assert files_of(cache.ref.folder) == []
        cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert cache.counters.damaged == 2
    assert cache.take_damaged() == 2
    assert cache.take_damaged() == 0
    assert [record.message.count("is damaged") for record in caplog.records] == [1]


def test_a_file_of_another_row_group_is_not_taken(cache: CacheFolder):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    other = group_of(1)
    cache.put(other, TRUTH, cpu_s=1.0)
    first, second = files_of(cache.ref.folder)
    second.write_bytes(first.read_bytes())
    moved = next(group for group in (GROUP, other) if group.digest == second.parent.name)
    assert cache.find(moved, list(TRUTH)) == {}
    assert cache.counters.damaged == 1
    assert not second.exists()


def test_a_file_of_another_version_stays(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr("feedline.warehouse.cache.entry_file.VERSION", 2)
        cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert cache.find(GROUP, list(TRUTH)) == {}
    assert len(files_of(cache.ref.folder)) == 1
    assert cache.counters.damaged == 0


def test_killed_writers_leave_whole_files_or_none(tmp_path: Path):
    folder = tmp_path / "cache"
    cache = CacheFolder(ref_of(folder))
    truths = [(group_of(number), columns_of(group_of(number), 3, 100_000)) for number in range(3)]
    for _ in range(6):
        started = multiprocessing.get_context("forkserver").Event()
        process = forked(fill_until_killed, str(folder), len(truths), 100_000, started)
        for _ in range(2):
            assert started.wait(30)
            started.clear()
        process.kill()
        process.join(30)
        for group, truth in truths:
            assert right_or_missing(cache.find(group, list(truth)), truth)
    assert cache.counters.damaged == 0


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("call", ["open", "writev", "utime", "statvfs"])
def test_a_disk_that_fails_is_counted_and_said_once(
    cache: CacheFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, call: str
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        kept = [cache.put(group_of(each), columns_of(group_of(each)), cpu_s=1.0) for each in range(3)]
    assert kept == [False] * 3
    assert cache.counters.skipped == 9
    assert [os.strerror(number) in record.message for record in caplog.records] == [True]
    assert caplog.records[0].levelno == logging.WARNING
    assert files_of(cache.ref.folder) == files_of(cache.ref.folder, ".tmp") == []
    assert cache.put(GROUP, TRUTH, cpu_s=1.0)  # once the disk is well


def test_a_rename_that_fails_leaves_no_file(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        assert not cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert files_of(cache.ref.folder, ".tmp") == []


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("call", ["open", "preadv", "pread", "scandir"])
def test_what_cannot_be_read_is_missing(
    cache: CacheFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, call: str
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    cache.put(GROUP, TRUTH, cpu_s=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert [cache.find(GROUP, list(TRUTH)) for _ in range(2)] == [{}, {}]
    assert cache.counters.misses == 6
    assert len(caplog.records) == (call != "scandir")
    assert len(cache.find(GROUP, list(TRUTH))) == 3  # the file has stayed
    assert cache.counters.damaged == 0


def test_a_read_that_ends_early_is_continued(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    whole = os.preadv
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda number, views, at: whole(number, [views[0][:1_000]], at))
        found = cache.find(GROUP, list(TRUTH))
    assert len(found) == 3
    assert right_or_missing(found, TRUTH)


def test_a_folder_that_cannot_be_created_serves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", fail)
    cache = CacheFolder(ref_of(tmp_path / "missing" / "cache"))
    assert not cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert cache.find(GROUP, list(TRUTH)) == {}
    with cache.flight(GROUP) as waited:
        assert not waited
    assert cache.space.rescan() == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_folder_that_vanishes_is_missed_and_not_refilled(cache: CacheFolder):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    for path in sorted(Path(cache.ref.folder).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Path(cache.ref.folder).rmdir()
    assert cache.find(GROUP, list(TRUTH)) == {}
    assert not cache.put(GROUP, TRUTH, cpu_s=1.0)


def test_a_row_groups_folder_that_was_evicted_is_made_again(cache: CacheFolder):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    [path] = files_of(cache.ref.folder)
    path.unlink()
    path.parent.rmdir()
    assert cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert len(cache.find(GROUP, list(TRUTH))) == 3


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ('{"format": 2}', "is of another format: got 2, expected 1 or less. Use the Feedline that made it"),
        ('{"format": "1"}', "is of another format: got '1', expected 1 or less. Use the Feedline that made it"),
        ("{}", "is damaged: got other content, expected a JSON object with a format. Delete the folder"),
        ("[1]", "is damaged: got other content"),
        ("nonsense", "is damaged: got other content"),
        ("\udcff", "is damaged: got other content"),
    ],
)
def test_a_marker_that_is_not_ours_is_refused(tmp_path: Path, marker: str, expected: str):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / cache_folder.MARKER).write_bytes(marker.encode(errors="surrogateescape"))
    with pytest.raises(SpecError, match=expected) as raised:
        open_folder(ref_of(folder))
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("marker", [b"", b'{"for', bytes(13), b'{"format"' + bytes(4)])
def test_a_marker_that_a_crash_has_cut_off_is_written_again(tmp_path: Path, marker: bytes):
    empty, kept = tmp_path / "empty", tmp_path / "kept"
    assert CacheFolder(ref_of(kept)).put(GROUP, TRUTH, cpu_s=1.0)
    empty.mkdir()
    for folder in (empty, kept):
        (folder / cache_folder.MARKER).write_bytes(marker)
        assert check_folder(str(folder)) == (folder is kept)
        found = CacheFolder(ref_of(folder)).find(GROUP, list(TRUTH))
        assert len(found) == (3 if folder is kept else 0)
        assert json.loads((folder / cache_folder.MARKER).read_text()) == {"format": 1}
        assert {path.name for path in folder.iterdir()} <= {cache_folder.MARKER, "locks", "v1"}


def test_a_foreign_folder_with_an_empty_marker_is_refused(tmp_path: Path):
    (tmp_path / cache_folder.MARKER).touch()
    (tmp_path / "v1").mkdir()
    (tmp_path / "a.parquet").touch()
    with pytest.raises(SpecError, match="is not a cache: got 3 files or folders"):
        CacheFolder(ref_of(tmp_path))


def test_a_foreign_folder_is_refused(tmp_path: Path):
    (tmp_path / "a.parquet").touch()
    (tmp_path / "b").mkdir()
    with pytest.raises(SpecError, match=r"is not a cache: got 2 files or folders.*Name another"):
        CacheFolder(ref_of(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b"]
    with pytest.raises(SpecError, match=r"must be a folder: got a file. Name another"):
        CacheFolder(ref_of(tmp_path / "a.parquet"))


def test_an_empty_folder_becomes_a_cache(tmp_path: Path):
    assert not check_folder(str(tmp_path))
    assert not check_folder(str(tmp_path / "missing"))
    CacheFolder(ref_of(tmp_path))
    assert check_folder(str(tmp_path))
    assert json.loads((tmp_path / cache_folder.MARKER).read_text()) == {"format": 1}


@pytest.mark.parametrize(("shared", "folder_mode", "file_mode"), [(False, 0o700, 0o600), (True, 0o770, 0o660)])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_new_folder_is_its_owners_or_its_groups(
    tmp_path: Path, shared: bool, folder_mode: int, file_mode: int, umask: int
):
    before = os.umask(umask)
    try:
        cache = CacheFolder(ref_of(tmp_path / "cache", shared=shared))
        cache.put(GROUP, TRUTH, cpu_s=1.0)
        with cache.flight(GROUP):
            pass
    finally:
        os.umask(before)
    paths = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert {mode_of(path) for path in paths if path.is_dir()} == {folder_mode}
    assert {mode_of(path) for path in paths if path.is_file()} == {file_mode}


def test_an_existing_folder_keeps_its_mode(tmp_path: Path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o750)
    cache = CacheFolder(ref_of(folder, shared=True))
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert {mode_of(path) for path in [folder, *folder.rglob("*")] if path.is_dir()} == {0o750}
    assert {mode_of(path) for path in files_of(folder)} == {0o640}


def test_times_in_the_future_do_no_harm(cache: CacheFolder):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    [path] = files_of(cache.ref.folder)
    os.utime(path, (2**33, 2**33))
    assert len(cache.find(GROUP, list(TRUTH))) == 3
    assert abs(path.stat().st_mtime - time.time()) < 120  # touched, so now
    os.utime(path, (2**33, 2**33))
    tight = CacheFolder(ref_of(Path(cache.ref.folder), 40_000))
    assert tight.put(group_of(1), columns_of(group_of(1)), cpu_s=9.0)
    assert not path.exists()


def test_a_use_is_noted_once_a_minute(cache: CacheFolder):
    cache.put(GROUP, TRUTH, cpu_s=1.0)
    [path] = files_of(cache.ref.folder)
    os.utime(path, ns=(0, 1_000 * 10**9 + 4))
    cache.find(GROUP, list(TRUTH))
    touched = path.stat().st_mtime_ns
    assert touched % 10**9 == 5
    assert abs(touched // 10**9 - time.time()) < 60
    os.utime(path, ns=(0, 7))
    cache.find(GROUP, list(TRUTH))
    assert path.stat().st_mtime_ns == 7


def test_the_bound_is_kept_while_a_thread_reads(tmp_path: Path):
    cache = CacheFolder(ref_of(tmp_path / "cache", 200_000))
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            for number in range(60):
                truth = columns_of(group_of(number))
                if not right_or_missing(cache.find(group_of(number), list(truth)), truth):
                    wrong.append(number)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(60):  # each is worth more than twice the one before
            assert cache.put(group_of(number), columns_of(group_of(number)), cpu_s=3.0**number)
            assert cache.space.rescan() <= 200_000
    finally:
        done.set()
        reader.join(30)
    assert not wrong
    assert cache.counters.damaged == 0
    assert cache.counters.evicted > 40
    assert len(cache.find(group_of(59), list(columns_of(group_of(59))))) == 3


def test_a_full_cache_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    cache = CacheFolder(ref_of(tmp_path / "cache", 100_000))
    kept = [cache.put(group_of(number), columns_of(group_of(number)), cpu_s=1.0) for number in range(10)]
    assert kept[0]
    assert not kept[-1]
    assert cache.counters.skipped == 3 * kept.count(False)
    assert [("is full of entries" in record.message) for record in caplog.records] == [True]


def test_an_entry_larger_than_the_cache_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    cache = CacheFolder(ref_of(tmp_path / "cache", 10_000))
    assert not cache.put(GROUP, TRUTH, cpu_s=1.0)
    assert "is smaller than an entry" in caplog.text


def test_threads_put_and_find_at_once(cache: CacheFolder):
    start, wrong = threading.Barrier(4), []

    def run(seed: int) -> None:
        start.wait(30)
        for number in np.random.default_rng(seed).integers(0, 8, 30).tolist():
            truth = columns_of(group_of(number))
            cache.put(group_of(number), truth, cpu_s=1.0)
            found = cache.find(group_of(number), list(truth))
            if len(found) != len(truth) or not all(same(found[name], truth[name]) for name in truth):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert cache.space.rescan() == sum(-(-path.stat().st_size // 4096) * 4096 for path in files_of(cache.ref.folder))


def test_without_a_size_the_bound_is_a_tenth_of_the_file_system(tmp_path: Path):
    disk = os.statvfs(tmp_path)
    assert CacheFolder(ref_of(tmp_path / "cache", None)).space.bound == disk.f_blocks * disk.f_frsize // 10
