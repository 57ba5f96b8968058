"""Cores and memory that this process may use: its affinity, the machine's free memory and the limits of its cgroups.

Linux files are read where they exist; elsewhere psutil's figures are used.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
# Of a cgroup's memory: the limit, what is used, and the counts of cached files, by whether it is of version 1.
_MEMORY_FILES = {
    False: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    True: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def available_cores(cpus: Collection[int] | None = None) -> int:
    """Cores that this process may run on: those of `cpus` (default: its affinity), limited by the quotas of its cgroup
    and of those above it."""
    cores = len(cpus or affinity()) or os.cpu_count() or 1
    return max(1, min([cores, *_cpu_quotas()]))


def launcher_affinity() -> frozenset[int]:
    """CPUs that the process which started this one may run on, and this one: those of all ranks of a host, where a
    launcher binds each rank to its own."""
    return affinity(os.getppid()) | affinity()


def rank_cores(ranks: int) -> int:
    """Cores for one rank of a host: its share of the launcher's cores, no more than it may run on itself."""
    return min(available_cores(), max(1, available_cores(launcher_affinity()) // ranks))


def widen_affinity(cpus: Collection[int]) -> None:
    """Run on these CPUs, as far as the cpuset of this process's cgroup has them."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # the cpuset has none of them
            os.sched_setaffinity(0, cpus)


def affinity(process: int = 0) -> frozenset[int]:
    """The CPUs that a process may run on (default: this one); empty if unknown."""
    with contextlib.suppress(OSError, AttributeError):
        return frozenset(os.sched_getaffinity(process))
    return frozenset()


def _cpu_quotas() -> Iterator[int]:
    """Cores by the quota of each cgroup that limits this process's CPU time, versions 2 and 1."""
    for folder, is_first in _cgroups("cpu"):
        if is_first:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        else:
            quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield math.ceil(int(quota) / int(period))


def available_memory_bytes() -> int:
    """Bytes that can be allocated now without swapping or reaching a limit of this process's cgroup or one above it. A
    cgroup's usage includes files that the kernel has cached, which it drops first: they count as available."""
    free = _free_bytes()
    for folder, is_first in _cgroups("memory"):
        limit_name, used_name, cache_names = _MEMORY_FILES[is_first]
        limit, used = _read(folder / limit_name), _read(folder / used_name)
        if limit.isdigit() and used.isdigit():
            counts = dict(line.split()[:2] for line in _read(folder / "memory.stat").splitlines())
            cached = sum(int(counts.get(name, 0)) for name in cache_names)
            free = min(free, max(0, int(limit) - int(used) + min(cached, int(used))))
    return free


def _cgroups(controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of the cgroups that limit a resource of this process, and whether they are of version 1. In a
    container the process's own cgroup is the root of what it sees; elsewhere (Slurm, systemd) it lies below."""
    for line in _read(_PROC_CGROUP).splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP / controller if controllers else _CGROUP
        deepest = root / path.lstrip("/")
        below = [deepest, *deepest.parents][: len(deepest.relative_to(root).parts)]
        for folder in [*(each for each in below if ".." not in each.parts), root]:
            yield folder, bool(controllers)


def _free_bytes() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    import psutil  # noqa: PLC0415 -- 20 ms that Linux does not need

    return int(psutil.virtual_memory().available)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
