"""The life of a feeder process: signals, the processes it belongs to, its log and scratch folder.

Runs in: the feeder. A feeder belongs to the process that started it, or, if it serves the ranks of a host, to all
trainers that are attached. It ends with the last of them, even if its main thread is busy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from feedline.loader.ring.launch import shorten_log

_LOG_CHECK_S = 5.0
# Time for the orderly shutdown of an orphan; after that it is killed.
_SHUTDOWN_S = 10.0


@functools.cache
def startup_seconds() -> float:
    """Seconds from the start of this process to the first call, made after its imports."""
    started_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


class Ownership:
    """The processes that a feeder belongs to. scratch: its folder for Dask's workers, removed when it ends. is_owned:
    whether a trainer is connected. While one is, signals do not end the feeder (default: they do)."""

    def __init__(self, scratch: str | None, *, is_owned: Callable[[], bool] | None = None) -> None:
        self._scratch = scratch
        self._is_owned = is_owned
        self._orphaned = threading.Event()
        self._lock = threading.Lock()
        self._owners: set[int] = set()
        # Set by the signal that ends the feeder, whose exception is lost where a finalizer runs when the signal comes.
        self.is_ending = False

    def add(self, pid: int) -> None:
        """End the feeder when this process and all others that were added have ended."""
        with self._lock:
            if pid <= 0 or pid in self._owners:  # 0: in another container, where only its connection ends
                return
            self._owners.add(pid)
        watch_process(pid, lambda: self._remove(pid))

    def _remove(self, pid: int) -> None:
        """Runs in a thread: shut down in order, or kill the process if the main thread is stuck."""
        with self._lock:
            self._owners.remove(pid)
            if self._owners:
                return
        self._orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SHUTDOWN_S)
        with self._lock:
            if self._owners:  # another has come
                self._orphaned.clear()
                return
        remove_scratch(self._scratch)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Set the feeder's signal handlers, and remove its scratch folder at the end.

        Ctrl-C and a launcher's signals to all processes are left to the parent: a trainer then saves its state while
        its feeder still delivers. The end of the last connection, SIGTERM after that, and the death of the owners end
        the feeder in order; SIGTERM alone ends only one of `feedline run`.
        """

        def end(signum: int, _frame: object) -> None:
            if self._is_owned is None or self._orphaned.is_set() or not self._is_owned():
                ignore_sigterm()
                self.is_ending = True
                raise SystemExit(128 + signum)

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hangup = () if self._is_owned is None else (signal.SIGHUP,)
        for number in (signal.SIGUSR1, signal.SIGUSR2, *hangup):
            signal.signal(number, signal.SIG_IGN)  # inherited by its child processes
        signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            ignore_sigterm()
            remove_scratch(self._scratch)


def ignore_sigterm() -> None:
    """Protect the shutdown from a second SIGTERM and from the death of the owners."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def remove_scratch(scratch: str | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def keep_log_short() -> None:
    """Limit the size of the log, from a thread for the life of the process."""

    def keep() -> None:
        while True:
            shorten_log(sys.stderr.fileno())
            time.sleep(_LOG_CHECK_S)

    threading.Thread(target=keep, name="feedline-log", daemon=True).start()


def watch_process(pid: int, then: Callable[[], None]) -> None:
    """Call `then` from a thread when a process ends, even if the main thread is busy."""
    pidfd = None
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        pidfd = os.pidfd_open(pid)

    def watch() -> None:
        if pidfd is not None:
            poll = select.poll()  # a feeder may have more than the 1,024 descriptors of `select`
            poll.register(pidfd, select.POLLIN)
            poll.poll()
            os.close(pidfd)
        then()

    threading.Thread(target=watch, name="feedline-owner", daemon=True).start()
