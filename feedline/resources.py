"""How many cores and how much memory may this process use? Asks the kernel, cgroup limits included.

Runs in: feeder, trainer, CLI. Linux files are read where they exist; elsewhere psutil's figures serve.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"
# Blocks of tens of megabytes come and go for as long as a feeder lives. Allocators that give memory back to the kernel
# at once pay for it again page by page: with these settings a block takes 20 % (in order) to 40 % (shuffled) less CPU
# time. See docs/decisions/0003-keep-freed-memory.md. They are read when a process starts, so they travel in its
# environment; what the user has set stays.
ALLOCATOR_ENVIRONMENT = {
    "MIMALLOC_PURGE_DELAY": "-1",  # Arrow's pool: never purge
    "MALLOC_TRIM_THRESHOLD_": str(2**30),  # numpy's memory, by glibc: keep up to 1 GiB of free heap,
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # take arrays up to 32 MiB (the most glibc allows) from the heap,
    "MALLOC_TOP_PAD_": str(2**26),  # which grows in steps of 64 MiB
}


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


def make_scratch() -> str:
    """A folder for what Dask's workers of a feeder keep on disk. Both remove it, whoever dies: feeder and parent."""
    return tempfile.mkdtemp(prefix="feedline-")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
