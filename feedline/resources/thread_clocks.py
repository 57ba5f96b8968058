"""Clocks of threads: CPU time, waiting for a CPU, the CPU time of Polars' own threads, and that of whole processes.

Runs in: every process that computes blocks. Linux keeps these counts per thread; elsewhere some are 0.
A query of Polars runs in the thread that calls it and in those of its pool, so the caller's CPU time is a part of what
it used. The pool serves all block threads of a process: what it used since it was last asked about is taken by one of
them, and the sum over all blocks is right, even if a single block's part is not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POOL = "polars-"  # and a number: the names of the threads of Polars' pool
# A look at a pool of 64 threads takes 50 us; looked at so rarely, that is a thousandth of a core.
_POOL_EVERY_S = 0.05
_POOL_SEARCHES_S = 1.0


def contended_s() -> float:
    """Seconds for which the calling thread was ready to run, but other threads had the CPUs; 0 where it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no Linux, or one without these counts
        descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)  # twice a block: a Path takes 30 us
        try:
            return int(os.read(descriptor, 100).split()[1]) / 1e9
        finally:
            os.close(descriptor)
    return 0.0


def process_cpu_s(pid: int) -> float:
    """The CPU seconds of a process; 0 where that is unknown."""
    process = _process(pid)
    return 0.0 if process is None else process[1]


def tree_cpu_s(root: int) -> float:
    """The CPU seconds of a process and of all that it has started, directly or not, and that still run; 0 where that is
    unknown. Takes 25 us per process of the host."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    processes = {pid: process for pid in pids if (process := _process(pid)) is not None}
    tree, missing = {root}, set(processes)
    while more := {pid for pid in missing if processes[pid][0] in tree}:
        tree |= more
        missing -= more
    return sum(processes[pid][1] for pid in tree if pid in processes)


def _process(pid: int) -> tuple[int, float] | None:
    """The parent of a process, and its CPU seconds; None if it ended, or there is no /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second field is the name, which may hold spaces; after it, the numbers are those of proc(5), less 3.
        numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(numbers[1]), (int(numbers[11]) + int(numbers[12])) / _TICKS_PER_S
    return None


class PoolClock:
    """The CPU seconds of Polars' threads in this process, each of which is taken once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: tuple[int, ...] = ()
        self._due_s = 0.0
        self._taken_s = 0.0

    def take(self, now_s: float) -> float:
        """The CPU seconds since the last call; 0 if that was a moment ago, or if there is no pool yet. now_s: of a
        monotonic clock."""
        if now_s < self._due_s or not self._lock.acquire(blocking=False):
            return 0.0
        try:
            if not self._clocks:
                self._clocks = _pool_clocks()
            self._due_s = now_s + (_POOL_EVERY_S if self._clocks else _POOL_SEARCHES_S)
            used_s = sum(map(_read_clock, self._clocks))
            seconds, self._taken_s = used_s - self._taken_s, used_s
            return max(0.0, seconds)
        finally:
            self._lock.release()


POOL = PoolClock()


def _pool_clocks() -> tuple[int, ...]:
    """The kernel's CPU clocks of the threads of Polars' pool, which has its size from its first query on."""
    clocks = []
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it ended
                name = (task / "comm").read_text(encoding="ascii", errors="replace").strip()
                if name.startswith(_POOL) and name.removeprefix(_POOL).isdigit():
                    clocks.append(~int(task.name) << 3 | 6)  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED
    return tuple(clocks)


def _read_clock(clock: int) -> float:
    with contextlib.suppress(OSError):
        return time.clock_gettime(clock)
    return 0.0
