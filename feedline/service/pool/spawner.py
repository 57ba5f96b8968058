"""Start the worker processes of a feeder: the interface, and the one that lets each import for itself.

Runs in: the feeder (`Spawner`, `ImportingSpawner`), each worker process (`run_worker`). A worker belongs to the process
that started it and dies with it, whatever it does then; it ends by itself when the sockets that it was given end.
Signals that a terminal or a launcher sends to all processes of a job are left to the trainer.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

import polars as pl

from feedline.errors import ClusterError
from feedline.resources.allocators import use_huge_pages

Run = Callable[[Sequence[int]], None]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Spawner(Protocol):
    """Starts worker processes and reports their ends. All calls come from the feeder's main thread: the kernel ends the
    processes that a thread has started together with it."""

    def spawn(self, descriptors: Sequence[int], *, threads: int) -> int:
        """Start a worker that gets copies of these descriptors, in this order, and nothing else. threads: of Polars'
        pool in it. Returns its pid. Raises ClusterError if no worker can be started."""

    def fileno(self) -> int:
        """A descriptor that is readable when `ended` has something to report."""

    def ended(self) -> list[tuple[int, int]]:
        """Pid and exit status, as `subprocess` has it (-9: by SIGKILL), of workers that ended since the last call."""

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a worker; nothing happens if it has ended."""

    def close(self) -> None:
        """Wait for the end of the workers, whose sockets were closed; kill those that stay longer than 2 s."""

    @property
    def is_alive(self) -> bool:
        """Whether it can start workers. Once it cannot, `ended` has reported all, and it is to be closed."""


# Time that workers have to end by themselves.
EXIT_S = 2.0


class ImportingSpawner:
    """Starts workers as new Python processes, for 1.3 s of CPU time each. run: a module's function, which each worker
    calls with its descriptors."""

    def __init__(self, run: Run) -> None:
        self._run = f"{run.__module__}:{run.__qualname__}"
        self._ends = select.epoll()  # of the workers' pidfds
        self._workers: dict[int, subprocess.Popen[bytes]] = {}  # by pidfd

    def spawn(self, descriptors: Sequence[int], *, threads: int) -> int:
        command = [sys.executable, "-P", "-m", "feedline", "block-worker"]
        words = [self._run, threads, os.getpid(), *descriptors]
        try:
            process = subprocess.Popen(
                [*command, *map(str, words)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env={**os.environ, "POLARS_MAX_THREADS": str(threads)},
            )
        except OSError as error:
            raise ClusterError(f"a worker process cannot be started: {error}") from error
        pidfd = os.pidfd_open(process.pid)
        self._workers[pidfd] = process
        self._ends.register(pidfd, select.EPOLLIN)
        return process.pid

    def fileno(self) -> int:
        return self._ends.fileno()

    def ended(self) -> list[tuple[int, int]]:
        return [self._remove(pidfd) for pidfd, _ in self._ends.poll(0)]

    def kill(self, pid: int) -> None:
        for process in self._workers.values():
            if process.pid == pid:
                process.kill()

    def close(self) -> None:
        deadline_s = time.monotonic() + EXIT_S
        for process in self._workers.values():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for pidfd in list(self._workers):
            self._remove(pidfd)
        self._ends.close()

    @property
    def is_alive(self) -> bool:
        return True

    def _remove(self, pidfd: int) -> tuple[int, int]:
        process = self._workers.pop(pidfd)
        self._ends.unregister(pidfd)
        os.close(pidfd)
        return process.pid, process.wait()


def run_worker(run: Run, descriptors: Sequence[int], *, threads: int, parent: int) -> NoReturn:
    """Be a worker: set up this process, compute, and end it without the interpreter's cleaning up, in which native
    libraries wait for threads that a forked process does not have. parent: the process that started it."""
    status = 1
    try:
        die_with(parent)
        ignore_signals()
        name_process("feedline-block")
        use_huge_pages(True)  # the feeder has none until its first batch
        if (generator := sys.modules.get("numpy.random")) is not None:  # its import takes 9 ms
            generator.seed()  # of user functions; `random` seeds itself after each fork
        _set_polars_threads(threads)
        gc.freeze()
        gc.enable()
        run(descriptors)
        status = 0
    except BaseException:  # the process ends here
        traceback.print_exc()
    finally:
        end_process(status)


def end_process(status: int) -> NoReturn:
    """End this process at once, with what it has printed."""
    try:
        flush_streams()
    finally:
        os._exit(status)


def flush_streams() -> None:
    """Write out what was printed: a forked process would print it again."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads, or it is closed
            stream.flush()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end it if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def ignore_signals() -> None:
    """Ignore the signals that are meant for trainers."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def name_process(name: str) -> None:
    """Show a name of up to 15 bytes in lists of processes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()))


def _set_polars_threads(threads: int) -> None:
    """Set the size of Polars' pool, which starts with the first query: Polars reads the variable once, at its import,
    and again here."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    variables = {"POLARS_MAX_THREADS": str(threads)}
    pl.Config.load(json.dumps({"environment": variables, "direct": {}}))


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
