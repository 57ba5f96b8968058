"""Processes that fill a full cache are killed: batches are those without a cache, and the folder is whole and free."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from cache_entries import files_of, filled
from pipelines import Place, eventually, furnished, image, oracle
from processes import feedline

from feedline import FeedlineDataset, Pipeline
from feedline.warehouse.cache.cache_folder import FolderSpace
from feedline.warehouse.cache.flights import try_lock
from feedline.warehouse.cache.maintenance import verify_entries

SIZE = 400_000  # less than the jobs would keep
FILLER = 12  # files that are worth nothing any more, and leave no room
OLD_S = 40 * 86_400.0
DYING = Path(__file__).resolve().parents[1] / "support" / "dying_feeder.py"
OFF = {"cache": "off"}


@dataclass(frozen=True)
class FullCache:
    """A cache that is full of old entries, and two jobs that use it."""

    folder: Path
    place: Place

    def job(self, name: str, seed: int, **changes: Any) -> Path:
        """The pipeline of a job that uses it."""
        cache = {"dir": str(self.folder), "size": SIZE, "free": 1, "mode": "features"}
        shuffle = {"seed": seed, "window_rows": 1024}
        return self.place.write(f"{name}.yaml", name=name, work_dir=name, shuffle=shuffle, cache=cache, **changes)

    def check(self, writers: int = 2) -> None:
        """Nothing is damaged, no lock is held, files of dead writers go, and the bound is kept, but for an entry of
        each writer."""
        report = verify_entries(str(self.folder))
        assert (report.damaged, report.unreadable) == ((), ())
        for lock in (self.folder / "locks").iterdir():
            number = try_lock(str(lock))
            assert number is not None, lock
            os.close(number)
        for left in files_of(self.folder, ".tmp"):
            os.utime(left, (time.time() - 60,) * 2)
        largest = max(file.stat().st_size for file in files_of(self.folder))
        assert 0 < FolderSpace(str(self.folder), SIZE, 0, 0o600).rescan() <= SIZE + writers * (largest + 4096)
        assert not files_of(self.folder, ".tmp")


@pytest.fixture
def full(tmp_path: Path, clicks: Path) -> Iterator[FullCache]:
    folder = tmp_path / "cache"
    filled(folder, FILLER)
    for file in files_of(folder):
        os.utime(file, (time.time() - OLD_S,) * 2)
    with furnished(tmp_path, clicks) as place:
        yield FullCache(folder, place)


NIGHTLY = [pytest.param(moment, marks=pytest.mark.nightly) for moment in ("computing", "naming")]


@pytest.mark.parametrize("moment", ["writing", "evicting", *NIGHTLY])
def test_a_feeder_is_killed_while_it_fills_and_another_job_reads(
    full: FullCache, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{sys.executable} {DYING} {moment} {tmp_path / 'killed'}")
    paths = [full.job("one", 3), full.job("other", 4)]
    with FeedlineDataset(paths[0]) as one:
        other = Pipeline.from_yaml(paths[1]).batches(0)
        seen = [(image(first), image(second)) for first, second in zip(one, other, strict=True)]
        assert (one.stats().feeders, (tmp_path / "killed").exists()) == (2, True)
        counts = one.stats().cached
    assert [list(images) for images in zip(*seen, strict=True)] == [oracle(path, set=OFF) for path in paths]
    assert (counts.damaged, counts.waited_s < 20) == (0, True)
    assert counts.found > 0
    full.check()


@pytest.mark.nightly
def test_a_worker_process_is_killed_while_it_fills(full: FullCache):
    path = full.job("workers", 3, cluster={"workers": 2, "threads": 1})
    with FeedlineDataset(path) as dataset:
        seen = []
        for batch in dataset:
            seen.append(image(batch))
            if batch.step == 3:
                family = psutil.Process(dataset._feed._connection._feeder.pid).children(recursive=True)
                next(each for each in family if "spawn_main" in " ".join(each.cmdline())).kill()
    assert seen == oracle(path, set=OFF)
    full.check()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_runs_are_killed_at_random(full: FullCache, seed: int, tmp_path: Path):
    """Again and again, beside a trainer of another seed; then one that starts anew reads what is there."""
    own = tmp_path / "killed"  # for what a run and its feeder leave that are killed together
    own.mkdir()
    chance, paths = random.Random(seed), [full.job("run", 3, epochs=100), full.job("trainer", 4)]
    with FeedlineDataset(paths[1]) as dataset:
        for epoch in range(3):
            with feedline("run", paths[0], "--sink", "null", env={**os.environ, "TMPDIR": str(own)}) as run:
                assert eventually(run.descendants)
                seen = []
                victim = chance.randrange(70)
                for batch in dataset:
                    seen.append(image(batch))
                    if batch.step == victim:
                        chance.choice([*run.descendants(), psutil.Process(run.pid)]).kill()
                    elif batch.step == victim // 2:
                        psutil.Process(dataset._feed._connection._feeder.pid).kill()
                run.close()
            assert seen == oracle(paths[1], set=OFF, epoch=epoch)
    full.check(writers=4)
    with FeedlineDataset(paths[0]) as dataset:
        assert [image(batch) for batch in dataset] == oracle(paths[0], set=OFF)
    full.check(writers=4)
