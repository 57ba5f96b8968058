"""A real Dask cluster for `scale.py`: a scheduler, many workers of this process whose blocks sleep, several feeders.

The scheduler is a process of its own, whose CPU time is read, or, where messages are counted, in this process: then
every message is written here, and counted where Dask's comm writes it. Everything listens on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import psutil
from distributed import Scheduler
from distributed.comm.tcp import TCP
from distributed.utils import LoopRunner
from scale_feeder import RankFeeder, Workload, sleep_on_workers

from feedline.config.cluster_section import ClusterSpec
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.dask_patches.worker_patches import PagelessWorker
from feedline.service.scheduler.extension import install

_START_S = 60.0
_CONFIG = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.target": False,
}


@contextlib.contextmanager
def scheduler_process() -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler in a process of its own: its address and its process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        command += ["--no-dashboard", "--no-show", "--scheduler-file", str(file)]
        command += ["--preload", "feedline.service.scheduler.preload"]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}  # it reads the tasks
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield _address_in(file, process), psutil.Process(process.pid)
            finally:
                process.terminate()


def _address_in(file: Path, process: subprocess.Popen[bytes]) -> str:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise RuntimeError("the scheduler did not start")


class Workers:
    """Workers of this process, on an event loop of their own, and perhaps their scheduler."""

    def __init__(self) -> None:
        sleep_on_workers()
        logging.disable(logging.CRITICAL)  # messages of Dask about workers and clients that end in the middle of work
        self._config = dask.config.set(_CONFIG)
        self._runner = LoopRunner(asynchronous=False)
        self._runner.start()
        self._loop: Any = self._runner.loop
        self.workers: list[PagelessWorker] = []
        self._scheduler: Scheduler | None = None

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop.asyncio_loop).result(_START_S)

    def start_scheduler(self) -> str:
        """A scheduler in this process."""

        async def start() -> str:
            self._scheduler = await Scheduler(
                host="127.0.0.1", port=0, dashboard=False, dashboard_address="127.0.0.1:0"
            )
            install(self._scheduler)
            return str(self._scheduler.address)

        return str(self._call(start()))

    def start(self, address: str, count: int, threads: int) -> None:
        """Start workers, a few at a time."""

        async def start(index: int) -> PagelessWorker:
            options = {"nthreads": threads, "memory_limit": 0, "host": "127.0.0.1", "name": f"w{index}"}
            return await PagelessWorker(address, heartbeat_interval="5s", **options)

        async def start_all() -> list[PagelessWorker]:
            started: list[PagelessWorker] = []
            for first in range(0, count, 16):
                started += await asyncio.gather(*(start(index) for index in range(first, min(first + 16, count))))
            return started

        self.workers = self._call(start_all())

    def lose(self, count: int) -> None:
        """End some workers at once, with what they compute and hold."""
        lost, self.workers = self.workers[:count], self.workers[count:]
        self._call(_end(lost))

    def close(self) -> None:
        self._call(_end(self.workers))
        if self._scheduler is not None:
            self._call(self._scheduler.close())
        self._runner.stop()
        self._config.__exit__(None, None, None)


async def _end(workers: Sequence[PagelessWorker]) -> None:
    await asyncio.gather(*(worker.close(timeout=0, executor_wait=False) for worker in workers))


class RankThread:
    """A feeder in a thread of its own, on a client of its own."""

    def __init__(self, address: str, workload: Workload, schedule: Any, **options: Any) -> None:
        self._cluster = open_cluster(ClusterRequest(ClusterSpec(scheduler=address, wait_s=_START_S), threads=1))
        self._cluster.client.wait_for_workers(1, timeout=_START_S)
        self._woken = threading.Event()
        self._end = threading.Event()
        self._workload, self._schedule, self._options = workload, schedule, options
        self.feeder: RankFeeder
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, start_s: float) -> None:
        """Start feeder and trainer."""
        self.feeder = RankFeeder(
            self._cluster,
            self._workload,
            self._schedule,
            clock=time.monotonic,
            wake=self._woken.set,
            start_s=start_s,
            **self._options,
        )
        self._thread.start()

    def _run(self) -> None:
        report_s = 0.0
        while not self._end.is_set():
            self._woken.clear()
            now_s = time.monotonic()
            if now_s >= report_s:
                report_s = now_s + 1.0
                dask = self._cluster.dask
                if dask is not None:
                    dask.reporter.report = self.feeder.report(now_s)
            due_s = self.feeder.advance(now_s)
            self._woken.wait(max(0.0, min(due_s - time.monotonic(), 0.5)))

    def connections(self) -> set[str]:
        """The workers that its client is connected to."""
        pool = self._cluster.client.rpc
        scheduler = str(self._cluster.client.scheduler_info()["address"])
        open_ones = {address for comms in (pool.available, pool.occupied) for address, each in comms.items() if each}
        return open_ones - {scheduler}

    def close(self) -> None:
        self._end.set()
        self._woken.set()
        self._thread.join()
        self.feeder.delivery.close()
        self._cluster.close()


@dataclass(slots=True)
class WireCount:
    """Messages and bytes that Dask's comms wrote: those of the scheduler's connections, and those between clients and
    workers."""

    scheduler: str = ""
    messages: int = 0
    nbytes: int = 0
    direct_messages: int = 0
    direct_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, comm: TCP, nbytes: int) -> None:
        """Count a message."""
        with self.lock:
            if self.scheduler in (comm.local_address, comm.peer_address):
                self.messages += 1
                self.nbytes += nbytes
            else:
                self.direct_messages += 1
                self.direct_bytes += nbytes


@contextlib.contextmanager
def counted() -> Iterator[WireCount]:
    """Count what this process writes to its TCP comms."""
    count, original = WireCount(), TCP.write

    async def write(comm: TCP, message: Any, *arguments: Any, **options: Any) -> Any:
        nbytes = await original(comm, message, *arguments, **options)
        count.add(comm, int(nbytes))
        return nbytes

    with mock.patch.object(TCP, "write", write):
        yield count


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
