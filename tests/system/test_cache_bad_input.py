"""Batches are those without a cache, whatever happens to its folder meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cache_entries import files_of, filled
from pipelines import Place, furnished, image, oracle

from feedline import Pipeline
from feedline.errors import SpecError
from feedline.warehouse.cache import entry_file
from feedline.warehouse.cache.cache_folder import CacheFolder, open_folder
from feedline.warehouse.cache.maintenance import verify_entries

OFF = {"cache": "off"}
TIGHT = 300_000  # less than a job would keep
DAY = 'ds == "2026-01-01"'


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def job(place: Place, name: str = "one", *, size: int = 2**30, seed: int = 3, **changes: Any) -> Path:
    cache = {"dir": str(place.folder / "cache"), "size": size, "free": 1, "mode": "features"}
    shuffle, source = {"seed": seed, "window_rows": 1024}, {"where": DAY, **changes.pop("source", {})}
    return place.write(f"{name}.yaml", name=name, cache=cache, shuffle=shuffle, source=source, **changes)


def cache_of(path: Path) -> CacheFolder:
    """The folder as this process has opened it for a job."""
    ref = Pipeline.from_yaml(path).plan().source.job.cache
    assert ref is not None
    return open_folder(ref)


def assert_right(path: Path, epochs: int = 2) -> None:
    for epoch in range(epochs):
        assert oracle(path, epoch=epoch) == oracle(path, set=OFF, epoch=epoch)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["writev", "ftruncate", "rename", "utime"])
def test_no_space(place: Place, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = job(place)
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    if call == "rename":
        monkeypatch.setattr(Path, call, failing(errno.ENOSPC))
    assert_right(path, 1)
    assert cache_of(path).counters.skipped > 0 or call == "ftruncate"


def test_a_folder_that_is_read_only_is_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write to any folder: what opens files for writing fails here."""
    path, other = (
        job(place),
        job(
            place, "other", features={"dense": {"dense_2": [{"fill_null": 0}], "dense_1": [{"fill_null": 0}, "log1p"]}}
        ),
    )
    assert_right(path, 1)
    files, opened = files_of(place.folder / "cache"), os.open

    def open_to_read(name: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(name).startswith(str(place.folder / "cache")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(name, flags, *mode, **options)

    found = cache_of(path).counters.hits
    monkeypatch.setattr(os, "open", open_to_read)
    assert_right(other, 1)
    assert_right(path, 1)
    assert files_of(place.folder / "cache") == files
    assert cache_of(path).counters.hits > found
    assert cache_of(path).counters.skipped > 0


def test_a_foreign_folder_is_refused(place: Place) -> None:
    (place.folder / "cache").mkdir()
    (place.folder / "cache" / "thesis.tex").touch()
    path = job(place)
    with pytest.raises(SpecError, match="is not a cache: got 1 files or folders"):
        oracle(path)
    assert [file.name for file in (place.folder / "cache").iterdir()] == ["thesis.tex"]


def test_entries_of_another_version_stay(place: Place) -> None:
    path = job(place)
    assert_right(path, 1)
    files = files_of(place.folder / "cache")
    for file in files:
        content = bytearray(file.read_bytes())
        content[8] += 1  # the version; the checksum, too, is another one
        file.write_bytes(content)
    assert_right(path, 1)
    (place.folder / "cache" / "v1").rename(place.folder / "cache" / "v9")
    assert_right(path, 1)
    assert len([*(place.folder / "cache" / "v9").rglob("*.entry")]) == len(files_of(place.folder / "cache"))


@pytest.mark.parametrize("ahead_s", [-7200.0, 4e8, pytest.param(7200.0, marks=pytest.mark.nightly)])
def test_hosts_with_clocks_apart_share_a_full_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The second job's host is ahead of the first one's, or behind; far ahead, all that others have written is old."""
    first = job(place, size=TIGHT)
    second = job(place, "other", size=TIGHT + 1, seed=4, source={"where": f"{DAY} and id_0 >= 0"})
    assert_right(first, 1)
    now_s = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now_s() + ahead_s)
        assert_right(second)
    assert_right(first)
    assert ahead_s < 1e6 or cache_of(second).counters.evicted > 2
    for path in (first, second):
        assert cache_of(path).counters.damaged == 0
    assert cache_of(first).space.rescan() <= TIGHT + 1


@pytest.mark.parametrize("when", ["listed", "opened"])
def test_entries_are_evicted_while_they_are_read(place: Place, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    path = job(place)
    assert_right(path, 1)
    init = entry_file.EntryFile.__init__

    def vanishing(file: entry_file.EntryFile, name: str) -> None:
        if when == "listed":
            Path(name).unlink()
        init(file, name)
        if when == "opened":
            shutil.rmtree(Path(name).parent)

    with monkeypatch.context() as patch:
        patch.setattr(entry_file.EntryFile, "__init__", vanishing)
        assert_right(path, 1)
    assert cache_of(path).counters.damaged == 0
    assert_right(path, 1)


def test_a_cache_is_removed_while_it_is_used(place: Place) -> None:
    path = job(place)
    batches = Pipeline.from_yaml(path).batches(0)
    seen = [image(next(batches)) for _ in range(10)]
    shutil.rmtree(place.folder / "cache")
    seen += [image(batch) for batch in batches]
    assert seen == oracle(path, set=OFF)


@pytest.mark.parametrize("locks", [True, False])
def test_jobs_fill_the_same_entries_at_once(place: Place, monkeypatch: pytest.MonkeyPatch, locks: bool) -> None:
    """Without locks as on two hosts whose mount has none: both compute, and write the same file."""
    paths = [job(place), job(place, "other", seed=4)]
    expected = [oracle(path, set=OFF) for path in paths]
    if not locks:
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    barrier = threading.Barrier(2)

    def read(path: Path) -> list[bytes]:
        barrier.wait(60)
        return oracle(path)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, paths)) == expected
    report = verify_entries(str(place.folder / "cache"))
    assert report.files > 0
    assert report.damaged == ()
    assert not files_of(place.folder / "cache", ".tmp")
    assert (cache_of(paths[0]).counters.duplicates > 0) is not locks


def test_artifacts_are_fitted_again_under_the_same_name(place: Place) -> None:
    features = {"categorical": {"str_0": [{"vocabulary": {"min_count": 2}}], "id_0": [{"modulo": 7}]}}
    images = []
    for where in ("id_0 % 2 == 0", "id_0 % 3 == 0"):
        path = job(place, features=features, fit={"where": where})
        Pipeline.from_yaml(path).fit()
        counters = cache_of(path).counters
        before = counters.hits
        assert_right(path, 1)
        images.append(oracle(path))
    assert images[0] != images[1]
    assert counters.hits > before  # of what is not learnt


def test_a_table_is_rewritten_under_the_cache(place: Place, clicks: Path) -> None:
    table = place.folder / "copy"
    shutil.copytree(clicks, table)
    path = job(place, source={"table": str(table)})
    assert_right(path, 1)
    before = oracle(path)
    for file in table.rglob("*.parquet"):
        rows = pq.read_table(file, partitioning=None)
        dense = pc.add(rows["dense_0"], 1).cast(rows.schema.field("dense_0").type)
        rows = rows.set_column(rows.schema.get_field_index("dense_0"), rows.schema.field("dense_0"), dense)
        pq.write_table(rows, file, row_group_size=1_024)
    assert_right(path, 1)
    assert oracle(path) != before


def test_files_that_are_cut_off_or_misplaced(place: Place) -> None:
    """Files that are cut off, or of another row group, are not taken."""
    path = job(place)
    filled(place.folder / "cache")
    assert_right(path, 1)
    files = files_of(place.folder / "cache")
    for number, file in enumerate(files):
        if number % 3 == 0:
            file.write_bytes(file.read_bytes()[: number * 100])
        elif number % 3 == 1:
            shutil.copy(files[number - 1], file)
    assert_right(path, 1)
    assert cache_of(path).counters.damaged > 0
