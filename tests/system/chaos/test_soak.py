"""Trainer and feeder keep their memory, descriptors and threads over many epochs."""

from __future__ import annotations

import faulthandler
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished

from feedline import FeedlineDataset

WARM_SHARE = 0.4  # of the samples: allocators and caches fill up meanwhile
GROWTH_BYTES = 12 * 2**20  # that comes and goes with the allocators' arenas: 12 KB in each of 1,000 epochs
SAMPLES = 20


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


@dataclass(frozen=True)
class Usage:
    rss: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> Usage:
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads())


def soak(dataset: FeedlineDataset, sample_due: Callable[[int], bool], done: Callable[[int], bool]) -> list[list[Usage]]:
    """Train until `done`; what trainer and feeder used whenever a sample was due, at the end of an epoch."""
    processes = [psutil.Process(), psutil.Process(dataset.facts["feeder"])]
    samples: list[list[Usage]] = [[], []]
    total, epoch = 0.0, 0
    while not done(epoch):
        for batch in dataset:
            total += float(batch.dense.sum()) + float(batch.sparse["hist_0"].values[:1].sum())
            del batch
        epoch += 1
        if sample_due(epoch):
            gc.collect()
            for found, process in zip(samples, processes, strict=True):
                found.append(Usage.of(process))
    assert dataset.stats().feeders == 1
    return samples


def assert_constant(samples: list[Usage]) -> None:
    warm = samples[int(len(samples) * WARM_SHARE) :]
    half = len(warm) // 2
    before, after = (min(each.rss for each in part) for part in (warm[:half], warm[half:]))
    assert after - before < GROWTH_BYTES, [each.rss >> 20 for each in samples]
    assert warm[-1].descriptors <= max(each.descriptors for each in warm[:half]), samples
    assert warm[-1].threads <= max(each.threads for each in warm[:half]), samples


def test_a_thousand_epochs_of_a_small_table(place: Place):
    small = place.folder / "small"
    small.mkdir()
    file = sorted(place.table.rglob("*.parquet"))[0]
    pq.write_table(pq.ParquetFile(file).read().slice(0, 300), small / "part.parquet", row_group_size=100)
    path = place.write(source={"table": str(small)}, batch={"size": 100})
    with FeedlineDataset(path) as dataset:
        used = soak(dataset, lambda epoch: epoch % (1000 // SAMPLES) == 0, lambda epoch: epoch == 1000)
        for samples in used:
            assert_constant(samples)


@pytest.mark.nightly
def test_ten_minutes(place: Place):
    """Worker processes, many blocks, and a ring that is full most of the time."""
    faulthandler.cancel_dump_traceback_later()  # the limit of other tests
    limit_s = 600.0
    small = {"source": {"split_rows": 512}, "shuffle": {"window_rows": 1024}, "batch": {"size": 64}}
    begin_s = time.monotonic()
    due = iter([(number + 1) * limit_s / SAMPLES for number in range(SAMPLES)])
    next_s = [next(due)]

    def sample_due(_: int) -> bool:
        if time.monotonic() - begin_s < next_s[0]:
            return False
        next_s[0] = next(due, float("inf"))
        return True

    with FeedlineDataset(place.write(**small, cluster={"workers": 2, "threads": 1})) as dataset:
        for samples in soak(dataset, sample_due, lambda _: time.monotonic() - begin_s > limit_s):
            assert_constant(samples)
