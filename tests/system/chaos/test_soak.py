"""Trainer, feeder, scheduler and workers keep their memory, descriptors and threads over many epochs."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from deployment import SMALL
from pipelines import Place, furnished
from processes import Program, feedline, free_port

from feedline import FeedlineDataset

WARM_SHARE = 0.4  # of the samples: allocators and caches fill up meanwhile
GROWTH_BYTES = 12 * 2**20  # that comes and goes with the allocators' arenas: 12 KB in each of 1,000 epochs
EPOCHS, SAMPLES = 1000, 20
LONG_S = 600.0
# In that time. Dask keeps a connection for each call that ever waited beside others: a few more on a busy machine.
POOLED = 4
STEP_S = 0.01
RING, MOST_RINGS = "/memfd:feedline-ring (deleted)", 8


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


@dataclass(frozen=True)
class Usage:
    """What a process used. targets: of its descriptors, with how many each has."""

    rss: int  # without the pages of files, which the kernel takes away and brings back as other processes need memory
    descriptors: int  # without those of rings, which get more slots for fast trainers, up to 32: two for each memory
    threads: int
    targets: Counter[str]

    @classmethod
    def of(cls, process: psutil.Process) -> Usage:
        targets = Counter(map(_target, Path(f"/proc/{process.pid}/fd").iterdir()))
        rings = targets.pop(RING, 0)
        assert rings <= MOST_RINGS, f"{rings} memories of rings"
        status = Path(f"/proc/{process.pid}/status").read_text()
        kilobytes = map(int, re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+) kB$", status, re.MULTILINE))
        return cls(sum(kilobytes) << 10, targets.total(), process.num_threads(), targets)


def _target(link: Path) -> str:
    """What a descriptor refers to, without the number of a socket or pipe."""
    try:
        return re.sub(r":\[\d+\]", "", str(link.readlink()))
    except FileNotFoundError:  # closed meanwhile
        return "closed"


Samples = dict[str, list[Usage]]


def soak(
    dataset: FeedlineDataset,
    others: Mapping[str, psutil.Process],
    sample_due: Callable[[int], bool],
    done: Callable[[int], bool],
    step_s: float = 0.0,
) -> Samples:
    """Train until `done`; what the trainer, its feeder and others used whenever a sample was due, at the end of an
    epoch. step_s: the trainer's pause after each batch."""
    processes = {"trainer": psutil.Process(), "feeder": psutil.Process(dataset.facts["feeder"]), **others}
    samples: Samples = {name: [] for name in processes}
    total, epoch = 0.0, 0
    while not done(epoch):
        for batch in dataset:
            total += float(batch.dense.sum()) + float(batch.sparse["hist_0"].values[:1].sum())
            del batch
            if step_s:
                time.sleep(step_s)
        epoch += 1
        if sample_due(epoch):
            gc.collect()
            for name, process in processes.items():
                samples[name].append(Usage.of(process))
    assert dataset.stats().feeders == 1
    return samples


def assert_constant(name: str, samples: list[Usage], *, growth_bytes: int, spare: int = 0) -> None:
    """spare: descriptors and threads beyond the most of the first half."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    half = len(warm) // 2
    before, after = (min(each.rss for each in part) for part in (warm[:half], warm[half:]))
    assert after - before < growth_bytes, (name, [each.rss >> 20 for each in samples])
    most = max(warm[:half], key=lambda each: each.descriptors)
    new = warm[-1].targets - most.targets
    assert warm[-1].descriptors <= most.descriptors + spare, (name, [each.descriptors for each in samples], new)
    most_threads = max(each.threads for each in warm[:half])
    assert warm[-1].threads <= most_threads + spare, (name, [each.threads for each in samples])


@pytest.mark.nightly
def test_many_epochs_of_a_small_table(place: Place):
    small = place.folder / "small"
    small.mkdir()
    file = sorted(place.table.rglob("*.parquet"))[0]
    pq.write_table(pq.ParquetFile(file).read().slice(0, 300), small / "part.parquet", row_group_size=100)
    path = place.write(source={"table": str(small)}, batch={"size": 100})
    with FeedlineDataset(path) as dataset:
        used = soak(dataset, {}, lambda epoch: epoch % (EPOCHS // SAMPLES) == 0, lambda epoch: epoch == EPOCHS)
        for name, samples in used.items():
            assert_constant(name, samples, growth_bytes=GROWTH_BYTES)


class Samplings:
    """Says when samples are due: evenly over a time, each at the end of an epoch."""

    def __init__(self, limit_s: float, number: int = SAMPLES) -> None:
        self._begin_s, self._limit_s, self._number, self._taken = time.monotonic(), limit_s, number, 0

    def due(self, _: int) -> bool:
        due = time.monotonic() - self._begin_s >= (self._taken + 1) * self._limit_s / self._number
        self._taken += due
        return due

    def done(self, _: int) -> bool:
        return self._taken >= self._number


@pytest.mark.nightly
def test_a_scheduler_and_workers_elsewhere(place: Place):
    """Many blocks, and a ring that is full most of the time. Of Feedline's own commands: those of Dask keep a profile
    of each second of an hour, and more."""
    faulthandler.cancel_dump_traceback_later()  # the limit of other tests
    address = f"tcp://127.0.0.1:{free_port()}"
    scratch = place.folder / "scratch"  # where killed processes leave what is not checked
    scratch.mkdir()
    with ExitStack() as stack:

        def start(*words: object) -> Program:
            return stack.enter_context(feedline(*words, env={**os.environ, "TMPDIR": str(scratch)}))

        programs = {"scheduler": start("scheduler", "--port", address.rpartition(":")[2])}
        programs["scheduler"].line("scheduler at")
        for number in range(2):
            programs[f"worker {number}"] = start("worker", address, "--threads", 1, "--cpu", "native")
        others = {name: psutil.Process(program.pid) for name, program in programs.items()}
        with FeedlineDataset(place.write(**SMALL, cluster={"scheduler": address})) as dataset:
            samplings = Samplings(LONG_S)
            used = soak(dataset, others, samplings.due, samplings.done, STEP_S)
            for name, samples in used.items():
                assert_constant(name, samples, growth_bytes=GROWTH_BYTES, spare=POOLED)


@pytest.mark.nightly
def test_worker_processes_of_the_feeder(place: Place):
    faulthandler.cancel_dump_traceback_later()
    with FeedlineDataset(place.write(**SMALL, cluster={"workers": 2, "threads": 1})) as dataset:
        next(iter(dataset))
        workers = psutil.Process(dataset.facts["feeder"]).children(recursive=True)
        others = {
            f"worker {number}": each for number, each in enumerate(workers) if "spawn_main" in str(each.cmdline())
        }
        assert len(others) == 2
        samplings = Samplings(LONG_S)
        for name, samples in soak(dataset, others, samplings.due, samplings.done, STEP_S).items():
            assert_constant(name, samples, growth_bytes=GROWTH_BYTES)
