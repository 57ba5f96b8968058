"""The metrics of a process itself: memory, CPU time, descriptors, and Python's release.

Runs in: feeders, workers and schedulers, in the thread that answers a scrape. Reads Linux's /proc; the names are those
that Prometheus' client libraries share.
"""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from feedline.service.monitoring.metric import Metric, information, single

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """This process at a moment. started_s: Unix time."""

    virtual_bytes: int
    resident_bytes: int
    started_s: float
    cpu_s: float
    open_fds: int
    max_fds: float


def read_process() -> ProcessState | None:
    """The state of this process; None where there is no /proc."""
    try:
        # The second field is the name, in parentheses, and may hold spaces; the numbers are those of proc(5), less 3.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        open_fds = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # that of the listing
    except OSError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessState(
        virtual_bytes=int(fields[20]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        started_s=_booted_s() + int(fields[19]) / _TICKS_PER_S,
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        open_fds=open_fds,
        max_fds=float("inf") if limit == resource.RLIM_INFINITY else limit,
    )


@cache
def _booted_s() -> int:
    """Unix time of the machine's start."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("btime "))


PROCESS_METRICS: tuple[Metric[ProcessState], ...] = (
    single("process_virtual_memory_bytes", "Virtual memory.", lambda state: state.virtual_bytes, {}),
    single("process_resident_memory_bytes", "Resident memory.", lambda state: state.resident_bytes, {}),
    single("process_start_time_seconds", "Unix time of the process's start.", lambda state: state.started_s, {}),
    single("process_cpu_seconds_total", "CPU seconds of the user and the system.", lambda state: state.cpu_s, {}),
    single("process_open_fds", "Open file descriptors.", lambda state: state.open_fds, {}),
    single("process_max_fds", "Limit of open file descriptors.", lambda state: state.max_fds, {}),
    information(
        "python_info",
        "The release of Python.",
        {
            "implementation": lambda state: platform.python_implementation(),
            "major": lambda state: platform.python_version_tuple()[0],
            "minor": lambda state: platform.python_version_tuple()[1],
            "patchlevel": lambda state: platform.python_version_tuple()[2],
            "version": lambda state: platform.python_version(),
        },
    ),
)
