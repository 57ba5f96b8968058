"""A cluster behind a network that is slow, loses packets, or is cut: the stream stays as planned, and nothing hangs.

The scheduler and workers are on one host, a training on the other, with the kernel's TCP between them (lossy_link.py).
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lossy_link import Direction, Host, Link, lossy_link, missing_link
from pipelines import Place, eventually, furnished
from processes import SUPPORT, Program, running
from receipts import audit_receipts, read_receipts

from feedline import Pipeline

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_link()), reason=missing_link())]

PATIENCE_S = 120.0
ECHO_S = 17.5 + 7.5  # docs/decisions/0025-half-open-connections.md, and what a busy machine adds
SILENCE_S = 22.5 + 7.5  # likewise: the scheduler's `worker-ttl`
CUT, OPEN = Direction(passes=False), Direction()
# 79 blocks of four steps
SMALL = {"source": {"split_rows": 256}, "shuffle": {"window_rows": 256}, "batch": {"size": 64, "tail": "pad"}}
GONE = r"is gone; waiting for it"


class Cluster:
    """A scheduler on one host, and workers on any."""

    def __init__(self, stack: ExitStack, folder: Path, scheduler: Host, workers: Sequence[Host]) -> None:
        folder.mkdir()  # what killed workers leave there is Dask's
        self._own = {"TMPDIR": str(folder), "PYTHONWARNINGS": "ignore"}
        self.address = f"tcp://{scheduler.address}:8786"
        self.scheduler = self._start(stack, scheduler, "scheduler", "--host", scheduler.address)
        self.scheduler.line("scheduler at")
        options = ("--threads", "1", "--cpu", "native")
        self.workers = [self._start(stack, host, "worker", self.address, *options) for host in workers]
        for worker in self.workers:
            worker.line("serves")

    def _start(self, stack: ExitStack, host: Host, *words: object) -> Program:
        command = (*host.within, sys.executable, "-m", "feedline", *words, "--insecure")
        return stack.enter_context(running(*command, env={**os.environ, **self._own}))


class Training:
    """A feeder with one rank on a host; the rank writes receipts, and ends after an epoch."""

    def __init__(self, stack: ExitStack, place: Place, host: Host, at: Cluster, **changes: Any) -> None:
        self._stack, self._host, self._cluster = stack, host, at
        self._receipts = place.folder / f"receipts-{secrets.token_hex(4)}"
        self._receipts.mkdir()
        (self._receipts / "last").write_text("0")
        here = {"scheduler": at.address, "insecure": True, "wait_s": 120, "window": 2}
        changed = {**SMALL, **changes, "cluster": {**here, **changes.get("cluster", {})}}
        self.path = place.write(f"{self._receipts.name}.yaml", name=self._receipts.name, **changed)
        self.run = self._start("-m", "feedline", "run", self.path)
        self.run.line("waiting for a trainer")
        self.start_trainer()

    def start_trainer(self) -> None:
        """Start the rank, which continues from its state."""
        self.trainer = self._start(SUPPORT / "receipt_trainer.py", self.path, self._receipts)

    def batches(self) -> int:
        file = self._receipts / "0.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def gain(self, number: int) -> float:
        """Wait for so many more batches; the longest time without one, in seconds."""
        last, since_s, longest_s = self.batches(), time.monotonic(), 0.0
        end = last + number
        while last < end:
            time.sleep(0.02)
            now, now_s = self.batches(), time.monotonic()
            longest_s = max(longest_s, now_s - since_s)
            if now > last:
                last, since_s = now, now_s
            assert longest_s < PATIENCE_S, self.words()
            assert self.trainer.process.poll() is None, self.words()
        return longest_s

    def starve(self) -> None:
        """Wait until the rank has had no batch for a second."""
        last, since_s = self.batches(), time.monotonic()
        while time.monotonic() - since_s < 1:
            time.sleep(0.05)
            if (now := self.batches()) > last:
                last, since_s = now, time.monotonic()
            assert self.trainer.process.poll() is None, "the epoch ended without a network"

    def finish(self) -> None:
        """Let the rank end, and compare all that it received with the plan."""
        assert eventually(lambda: self.trainer.process.poll() is not None, within_s=PATIENCE_S), self.words()
        assert self.trainer.wait() == 0, self.words()
        pipeline = Pipeline.from_yaml(self.path)
        audit = audit_receipts(pipeline, read_receipts(self._receipts / "0.jsonl"))
        assert audit.equal, (audit.differences, audit.missing)
        assert not audit.again
        assert audit.batches == pipeline.plan().facts().steps

    def words(self) -> str:
        programs = {"scheduler": self._cluster.scheduler, "run": self.run, "trainer": self.trainer}
        programs |= {f"worker {number}": worker for number, worker in enumerate(self._cluster.workers)}
        return "\n".join(f"-- {name}\n{''.join(each.lines[-40:])}" for name, each in programs.items())

    def _start(self, *words: object) -> Program:
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
        return self._stack.enter_context(running(*self._host.within, sys.executable, *words, env=environment))


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    with lossy_link() as link:
        yield link


@pytest.fixture
def open_link(link: Link) -> Iterator[Link]:
    """The link, through which all passes at the beginning and at the end."""
    link.set()
    yield link
    link.set()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def far(place: Place, link: Link) -> Iterator[Cluster]:
    """A cluster of two workers on the first host."""
    one, _ = link.hosts
    with ExitStack() as stack:
        yield Cluster(stack, place.folder / "far", one, [one, one])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    "direction",
    [Direction(delay_s=0.02, loss=0.01), Direction(bytes_per_s=2.5e6)],
    ids=["20 ms and 1 % lost", "20 Mbit/s"],
)
def test_a_slow_network_changes_nothing(
    stack: ExitStack, place: Place, open_link: Link, far: Cluster, direction: Direction
):
    open_link.set(direction)
    training = Training(stack, place, open_link.hosts[1], far)
    training.finish()
    assert not re.search(f"fetching a block|{GONE}", training.run.text), training.words()


def test_blocks_that_travel_for_longer_than_a_fetch_may_take(
    stack: ExitStack, place: Place, open_link: Link, far: Cluster, tmp_path: Path
):
    """Four blocks of 6 MB, of which up to four share 8 Mbit/s: 23 s instead of 8."""
    rows, columns = 80_000, [f"c{number}" for number in range(72)]
    values = np.random.default_rng(1).random((len(columns), rows), np.float32)
    folder = tmp_path / "wide"
    folder.mkdir()
    pq.write_table(pa.table(dict(zip(columns, values, strict=True))), folder / "part.parquet", row_group_size=20_000)
    open_link.set(Direction(bytes_per_s=1e6))
    wide = {
        "source": {"table": str(folder), "split_rows": 20_000},
        "features": {"dense": {name: [] for name in columns}},
        "shuffle": {"window_rows": 20_000},
        "batch": {"size": 1000, "tail": "pad"},
        "memory": "512MiB",
    }
    training = Training(stack, place, open_link.hosts[1], far, **wide)
    training.finish()
    assert "fetching a block took more than" in training.run.text
    assert not re.search(GONE, training.run.text), training.words()


def test_a_cut_of_five_seconds_is_passed_over(stack: ExitStack, place: Place, open_link: Link, far: Cluster):
    training = Training(stack, place, open_link.hosts[1], far)
    training.gain(60)
    open_link.set(CUT)
    training.starve()
    time.sleep(4)  # with the second of `starve`
    open_link.set()
    assert training.gain(60) < 10
    training.finish()
    assert not re.search(GONE, training.run.text), training.words()


@pytest.mark.parametrize(("there", "back"), [(CUT, CUT), (CUT, OPEN), (OPEN, CUT)], ids=["both ways", "there", "back"])
def test_a_cut_scheduler_is_noticed_and_found_again(
    stack: ExitStack, place: Place, open_link: Link, far: Cluster, there: Direction, back: Direction
):
    training = Training(stack, place, open_link.hosts[1], far)
    training.gain(60)
    start_s = time.monotonic()
    open_link.set(there, back)
    training.run.line(r"has not answered for \d+ s, although its connection is open")
    training.run.line(GONE)
    assert time.monotonic() - start_s < ECHO_S, training.words()
    open_link.set()
    training.run.line(r"is back after \d+ s")
    training.gain(60)
    training.finish()


def test_a_scheduler_that_stays_cut_off_ends_the_trainer_after_wait_s(
    stack: ExitStack, place: Place, open_link: Link, far: Cluster
):
    """And its next start, too; when the network is back, the rank continues from its state."""
    training = Training(stack, place, open_link.hosts[1], far, cluster={"wait_s": 8})
    training.gain(60)
    open_link.set(CUT)
    for attempt in range(2):
        assert training.trainer.wait(PATIENCE_S) == 1
        assert re.search(r"ClusterError: no Dask scheduler .*answers at", training.trainer.text), training.words()
        if attempt:
            open_link.set()
        training.start_trainer()
    training.finish()


def test_others_compute_the_blocks_of_a_worker_that_is_cut_off(stack: ExitStack, place: Place, open_link: Link):
    """And it comes back by itself. The scheduler is on the trainer's host."""
    one, other = open_link.hosts
    cluster = Cluster(stack, place.folder / "near", other, [one, other])
    training = Training(stack, place, other, cluster, lanes=1)
    training.gain(60)
    start_s = time.monotonic()
    open_link.set(CUT)
    training.run.line("is lost: blocks that it had are computed on others")
    assert time.monotonic() - start_s < SILENCE_S, training.words()
    cluster.workers[0].line(r"has not answered worker .* although their connection is open")
    open_link.set()
    cluster.scheduler.line("is lost: 1 workers")
    cluster.scheduler.line("joined: 2 workers")
    training.finish()
