"""How many cores and how much memory may this process use? Asks the kernel, cgroup limits included.

Runs in: feeder, trainer, CLI. Linux files are read where they exist; elsewhere psutil's figures serve.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Cores that this process may run on: its affinity, cut by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def available_memory_bytes() -> int:
    """Bytes that can be allocated now without swapping or meeting the cgroup's limit."""
    free = int(psutil.virtual_memory().available)
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read(_CGROUP / limit_name), _read(_CGROUP / used_name)
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
