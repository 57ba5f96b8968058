"""CPU seconds of the parts of a run of Feedline: block processes, feeder, the feeder's loop, and trainers.

Runs in a trainer's process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

TRAINERS = ("trainer.py", "rank_trainers.py")
_NS = 1e-9


class CpuOfParts:
    """What the parts have used since this was made. feeder: its process; measurer: of which all are descendants
    (default: the parent)."""

    def __init__(self, feeder: int, measurer: int = 0) -> None:
        self._feeder, self._measurer = feeder, measurer or os.getppid()
        self._before = self._count()

    def since(self) -> dict[str, float]:
        """CPU seconds of `blocks` (all other processes), `feeder` (but its loop), `loop` and `trainer` (all ranks)."""
        spent = {part: seconds - self._before[part] for part, seconds in self._count().items()}
        return spent | {"feeder": max(0.0, spent["feeder"])}  # of a few milliseconds: processes are counted in ticks

    def _count(self) -> dict[str, float]:
        found = {"blocks": 0.0, "feeder": 0.0, "loop": main_thread_cpu_s(self._feeder), "trainer": 0.0}
        for process in psutil.Process(self._measurer).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[self._part(process)] += cpu_s(process)
        found["feeder"] -= found["loop"]
        return found

    def _part(self, process: psutil.Process) -> str:
        if process.pid == self._feeder:
            return "feeder"
        is_trainer = any(Path(word).name in TRAINERS for word in process.cmdline()[1:3])
        return "trainer" if is_trainer else "blocks"


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds so far of a process and of its children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def main_thread_cpu_s(process: int) -> float:
    """CPU seconds so far of a process's first thread, by the scheduler's count where the kernel keeps one."""
    try:
        return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]) * _NS
    except OSError:
        threads = psutil.Process(process).threads()
        return sum(float(each.user_time + each.system_time) for each in threads if each.id == process)
