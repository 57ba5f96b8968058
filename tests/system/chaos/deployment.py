"""A training of two ranks on a Dask cluster, as a launcher and a cluster manager keep it: what ends starts again.

Processes reach each other through proxies, and read wall clocks that can jump (those of Python: `time.time`).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import struct
import sys
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from pipelines import Place, eventually
from processes import SUPPORT, Program, free_port
from proxy import Proxy

RANKS = 2
PATIENCE_S = 150.0  # for a batch, while everything starts anew
ASK_S = 1.0  # between two questions how many workers are needed
_LOCAL = "tcp://127.0.0.1"
_JUMPING = """
import mmap, os, struct, time
_path = os.environ.get("CHAOS_CLOCK")
if _path:
    with open(_path, "rb") as _file:
        _view = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
    _time = time.time
    time.time = lambda: _time() + struct.unpack("d", _view)[0]
"""
SMALL = {"source": {"split_rows": 512}, "shuffle": {"window_rows": 1024}, "batch": {"size": 64, "tail": "pad"}}


class Clock:
    """The wall clock of some processes: that of the machine, and an offset."""

    def __init__(self, folder: Path, name: str) -> None:
        module = folder / "sitecustomize.py"
        module.write_text(_JUMPING)
        file = folder / f"{name}.clock"
        file.write_bytes(bytes(8))
        self.environment = {
            "CHAOS_CLOCK": str(file),
            "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with file.open("r+b") as opened:
            self._view = mmap.mmap(opened.fileno(), 8)

    def jump(self, seconds: float) -> None:
        """Set the offset."""
        self._view[:] = struct.pack("d", seconds)

    def close(self) -> None:
        self._view.close()


class Worker:
    """A worker process, and the proxy through which others fetch from it."""

    def __init__(self, scheduler_port: int, environment: dict[str, str]) -> None:
        port = free_port()
        self.proxy = Proxy(port)
        self.proxy.__enter__()
        where = ("--port", str(port), "--contact-address", f"127.0.0.1:{self.proxy.port}")
        options = ("--threads", "1", "--cpu", "native")
        words = [sys.executable, "-m", "feedline", "worker", f"{_LOCAL}:{scheduler_port}", *where, *options]
        self.program = Program(words, env=environment)

    def close(self) -> None:
        self.program.close()
        self.proxy.__exit__()


class Deployment:
    """The processes of a run. `keep` starts again what has ended, and takes the number of workers to `workers`;
    with `follows_demand`, to what the jobs need, at most `workers`. Workers that are too many drain.

    Trainers may end by signals; one that ends with an error is an error of the test unless `pardons` finds its reason
    in the last words. with_clocks: wall clocks can jump; without, processes start by a fork of the tests' servers.
    """

    def __init__(
        self, place: Place, *, workers: int = 2, with_run: bool = True, with_clocks: bool = True, **changes: object
    ) -> None:
        self.place = place
        self.workers = workers
        self.starts: Counter[str] = Counter()
        self._done: set[int] = set()
        self._read, self._batches = [0] * RANKS, [0] * RANKS  # bytes and lines of the receipts
        self._ended: deque[tuple[str, Program]] = deque(maxlen=6)
        self.pardons: tuple[str, ...] = ()
        self.pardoned: Counter[str] = Counter()
        self.receipts = place.folder / "receipts"
        self.receipts.mkdir()
        folder = place.folder / "clocks"
        folder.mkdir()
        roles = ("host", "scheduler", "workers") if with_clocks else ()
        self.clocks = {name: Clock(folder, name) for name in roles}
        own = {"TMPDIR": str(place.folder / "dask"), "PYTHONWARNINGS": "ignore"}
        (place.folder / "dask").mkdir()  # what killed workers leave there is Dask's
        self._cluster = {**os.environ, **own}
        self._port, self._http_port = free_port(), free_port()
        self._stack = ExitStack()
        self.to_scheduler = self._stack.enter_context(Proxy(self._port))
        self.of_workers = self._stack.enter_context(Proxy(self._port))
        cluster = {"scheduler": f"{_LOCAL}:{self.to_scheduler.port}", "wait_s": 120}
        self.path = place.write(lanes=4, cluster=cluster, **{**SMALL, **changes})
        port = str(free_port())
        common = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        host = {**os.environ, **self._clock("host")}
        self._run_environment = host
        self._rank_environments = [
            {**host, **common, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)
        ]
        self.scheduler = self._start_scheduler()
        self.fleet: list[Worker] = []
        self._leaving: list[Worker] = []
        self.follows_demand, self._demand, self._ask_s = False, 1, 0.0
        self.run = self._start_run() if with_run else None
        self.trainers = [self._start_trainer(rank) for rank in range(RANKS)]
        self.keep()

    # -- starting -------------------------------------------------------------------------------------------------

    def _clock(self, role: str) -> dict[str, str]:
        """The variables of processes whose clock can jump."""
        return self.clocks[role].environment if role in self.clocks else {}

    def _start_scheduler(self) -> Program:
        self.starts["scheduler"] += 1
        options = ("--port", str(self._port), "--dashboard", f"127.0.0.1:{self._http_port}")
        environment = {**self._cluster, **self._clock("scheduler")}
        return Program([sys.executable, "-m", "feedline", "scheduler", *options], env=environment)

    def _start_worker(self) -> Worker:
        self.starts["worker"] += 1
        return Worker(self.of_workers.port, {**self._cluster, **self._clock("workers")})

    def _start_run(self) -> Program:
        self.starts["run"] += 1
        words = [sys.executable, "-m", "feedline", "run", str(self.path), "--world-size", str(RANKS)]
        return Program(words, env=self._run_environment)

    def _start_trainer(self, rank: int) -> Program:
        self.starts["trainer"] += 1
        words = [
            sys.executable,
            str(SUPPORT / "receipt_trainer.py"),
            str(self.path),
            str(self.receipts),
        ]
        return Program(words, env=self._rank_environments[rank])

    def keep(self) -> None:
        """Start again what has ended."""
        if self.scheduler.process.poll() is not None:
            self._end("scheduler", self.scheduler)
            self.scheduler = self._start_scheduler()
        for worker in [each for each in self.fleet if each.program.process.poll() is not None]:
            self._end("worker", worker.program)
            worker.close()
            self.fleet.remove(worker)
        workers = self._demanded() if self.follows_demand else self.workers
        while len(self.fleet) < workers:
            self.fleet.append(self._start_worker())
        while len(self.fleet) > workers:
            self.starts["scale-in"] += 1
            self._leaving.append(self.fleet.pop())
            self._leaving[-1].program.process.terminate()
        for worker in [each for each in self._leaving if each.program.process.poll() is not None]:
            worker.close()
            self._leaving.remove(worker)
        if self.run is not None and self.run.process.poll() is not None:
            self._end("run", self.run)
            self.run = self._start_run()
        for rank, trainer in enumerate(self.trainers):
            status = trainer.process.poll()
            if status is None or rank in self._done:
                continue
            if status == 0:
                self._done.add(rank)
                continue
            self._judge(trainer)
            self._end(f"trainer {rank}", trainer)
            self.trainers[rank] = self._start_trainer(rank)

    def _end(self, name: str, program: Program) -> None:
        """Close one that has ended, and keep its last words."""
        program.close()
        self._ended.append((f"{name}, ended with {program.process.returncode}", program))

    def _demanded(self) -> int:
        """As many workers as the scheduler says that the jobs need, at most `workers`; the last answer while it gives
        none."""
        now_s = time.monotonic()
        if now_s >= self._ask_s:
            self._ask_s = now_s + ASK_S
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self._http_port}/api/v1/adaptive_target"
                with urllib.request.urlopen(url, timeout=0.3) as answer:
                    self._demand = int(json.load(answer)["workers"])
        return max(1, min(self._demand, self.workers))

    def _judge(self, trainer: Program) -> None:
        status = trainer.wait()
        if status < 0:
            return
        pardon = next((reason for reason in self.pardons if reason in trainer.text), None)
        assert pardon is not None, f"a trainer ended with status {status}:\n{trainer.text}"
        self.pardoned[pardon] += 1

    # -- looking --------------------------------------------------------------------------------------------------

    def feeders(self) -> list[psutil.Process]:
        """The feeders, whoever has started them."""
        return living(lambda words: "feed" in words and str(self.path) in words)

    def victims(self, kind: str) -> list[psutil.Process]:
        """The processes of a kind."""
        if kind == "feeder":
            return self.feeders()
        programs = {
            "worker": [worker.program for worker in self.fleet],
            "scheduler": [self.scheduler],
            "trainer": self.trainers,
            "run": [] if self.run is None else [self.run],
        }[kind]
        return [psutil.Process(each.pid) for each in programs if each.process.poll() is None]

    def batches(self) -> list[int]:
        """How many receipts each rank has written."""
        for rank in range(RANKS):
            file = self.receipts / f"{rank}.jsonl"
            if file.exists():
                with file.open("rb") as opened:
                    opened.seek(self._read[rank])
                    new = opened.read()
                self._read[rank] += len(new)
                self._batches[rank] += new.count(b"\n")
        return list(self._batches)

    def await_batches(self, number: int, during: Callable[[], None] = lambda: None) -> float:
        """Wait until each rank has got `number` more batches; the longest time in which one got none, in seconds."""
        start = self.batches()
        last, changed_s, longest_s = start, [time.monotonic()] * RANKS, 0.0
        while any(now - before < number for now, before in zip(last, start, strict=True)):
            self.keep()
            during()
            time.sleep(0.02)
            now, now_s = self.batches(), time.monotonic()
            for rank in range(RANKS):
                gap_s = now_s - changed_s[rank]
                if now[rank] > last[rank]:
                    changed_s[rank] = now_s
                longest_s = max(longest_s, gap_s)
            last = now
            assert longest_s < PATIENCE_S, self.words()
        return longest_s

    def words(self) -> str:
        """What the processes have said last."""
        programs = [*self._ended, ("scheduler", self.scheduler), *([] if self.run is None else [("run", self.run)])]
        programs += [(f"trainer {rank}", trainer) for rank, trainer in enumerate(self.trainers)]
        programs += [(f"worker {number}", worker.program) for number, worker in enumerate(self.fleet)]
        return "\n".join(f"-- {name}, {each.pid}\n{''.join(each.lines[-40:])}" for name, each in programs)

    # -- ending ---------------------------------------------------------------------------------------------------

    def finish(self) -> int:
        """Let both trainers end after an epoch that neither has finished; its number."""
        self.await_batches(1)
        epochs = [json.loads((self.receipts / f"{rank}.state").read_text())["epoch"] for rank in range(RANKS)]
        last = max(epochs) + 1
        (self.receipts / "last").write_text(str(last))
        deadline_s = time.monotonic() + 4 * PATIENCE_S
        while len(self._done) < RANKS:
            self.keep()
            assert time.monotonic() < deadline_s, self.words()
            time.sleep(0.05)
        return last

    def close(self) -> None:
        """End everything; asserts that feeders end with their trainers and their run."""
        for trainer in self.trainers:
            trainer.close()
        if self.run is not None:
            self.run.process.terminate()
            self.run.wait(30)
            self.run.close()
        outliving = not eventually(lambda: not self.feeders(), within_s=30)
        for feeder in self.feeders():
            feeder.kill()
        for worker in [*self.fleet, *self._leaving]:
            worker.close()
        self.scheduler.close()
        self._stack.close()
        for clock in self.clocks.values():
            clock.close()
        assert not outliving, "feeders outlive their trainers"


def living(wanted: Callable[[Sequence[str]], bool]) -> list[psutil.Process]:
    """The living processes whose command is wanted."""

    def found() -> Iterator[psutil.Process]:
        for each in psutil.process_iter(["cmdline", "status"]):
            if each.info["status"] != psutil.STATUS_ZOMBIE and wanted(each.info["cmdline"] or []):
                yield each

    return list(found())


def pick(generator: random.Random, victims: Sequence[psutil.Process]) -> psutil.Process | None:
    """A random one, if there are any."""
    return generator.choice(victims) if victims else None
