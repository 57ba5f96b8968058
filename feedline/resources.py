"""Find out what this machine gives a process: cores, memory, and the instructions that numpy uses.

Linux files, including cgroup limits, are read where they exist; elsewhere psutil's figures are used.

When it is imported, numpy selects the loops of log1p, exp and others by the processor, and their float results differ
in the last bits: `NPY_DISABLE_CPU_FEATURES` turns loops off, and must be set before. Its names are those of the running
numpy ("X86_V4", once "AVX512F"); other names are ignored with a warning that is easily missed, so they are taken from
numpy itself.

`x86-64-v3` is the level of AVX2 and FMA, which every x86 server since 2015 has. No lower one is offered: below it glibc
computes exp, pow and sin differently (measured with GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2), whatever numpy does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]  # where np.show_runtime looks as well
    __cpu_baseline__,
    __cpu_dispatch__,
    __cpu_features__,
)

from feedline.errors import ClusterError

_PR_SET_THP_DISABLE = 41
_CGROUP = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")
# Of a cgroup's memory: the limit, what is used, and the counts of cached files, by whether it is of version 1.
_MEMORY_FILES = {
    False: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    True: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}
SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"
# A feeder allocates and frees blocks of tens of megabytes all its life. Allocators that return memory to the kernel at
# once pay for it again page by page; one that never does keeps its peak and what lies between the pieces. See
# docs/decisions/0003-keep-freed-memory.md and 0019. They are read when a process starts, so they are set in its
# environment, where the user's own settings win.


def allocator_environment(threads: int) -> dict[str, str]:
    """The variables by which the allocators of Arrow and numpy keep what a process of so many block threads frees."""
    return {
        "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
        # Keep what was used in the last 10 s; other threads, which need little, use the memory of the block threads.
        "JE_ARROW_MALLOC_CONF": f"dirty_decay_ms:10000,narenas:{threads}",
        "MIMALLOC_PURGE_DELAY": "-1",  # Arrow's pool where pyarrow was built without jemalloc: never purge
        # numpy's memory, by glibc: in one arena, since others give each of their heaps of 64 MiB back when it is empty;
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(2**30),  # keep up to 1 GiB of free heap,
        "MALLOC_MMAP_THRESHOLD_": str(2**25),  # take arrays up to 32 MiB (the most glibc allows) from the heap,
        "MALLOC_TOP_PAD_": str(2**26),  # which grows in steps of 64 MiB
    }


def available_cores(affinity: Collection[int] | None = None) -> int:
    """Cores that this process may run on: its affinity (default: the current one), limited by the quotas of its cgroup
    and of those above it."""
    cores = len(affinity or _affinity(0)) or os.cpu_count() or 1
    return max(1, min([cores, *_cpu_quotas()]))


def launcher_affinity() -> frozenset[int]:
    """CPUs that the process which started this one may run on, and this one: those of all ranks of a host, where a
    launcher binds each rank to its own."""
    return _affinity(os.getppid()) | _affinity(0)


def rank_cores(ranks: int) -> int:
    """Cores for one rank of a host: its share of the launcher's cores, no more than it may run on itself."""
    return min(available_cores(), max(1, available_cores(launcher_affinity()) // ranks))


def widen_affinity(cpus: Collection[int]) -> None:
    """Run on these CPUs, as far as the cpuset of this process's cgroup has them."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # the cpuset has none of them
            os.sched_setaffinity(0, cpus)


def _affinity(process: int) -> frozenset[int]:
    """The CPUs that a process may run on; empty if unknown."""
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
    """Bytes that can be allocated now without swapping or reaching a limit of this process's cgroup or one above it.

    A cgroup's usage includes files that the kernel has cached, which it drops first: they count as available.
    """
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
    """The folders of the cgroups that limit a resource of this process, and whether they are of version 1.

    In a container the process's own cgroup is the root of what it sees; elsewhere (Slurm, systemd) it lies below.
    """
    for line in _read(_PROC_CGROUP).splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP / controller if controllers else _CGROUP
        own = root / path.lstrip("/")
        below = [own, *own.parents][: len(own.relative_to(root).parts)]
        for folder in [*(each for each in below if ".." not in each.parts), root]:
            yield folder, bool(controllers)


def _free_bytes() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    import psutil  # noqa: PLC0415 -- 20 ms that Linux does not need

    return int(psutil.virtual_memory().available)


def use_huge_pages(use: bool) -> None:
    """Let the kernel back this process's new memory with huge pages, as its settings say, or with none (Linux).

    A huge page is quick where the kernel has one. In a virtual machine it usually has to come from the host first: then
    a feeder's first block, which touches 300 MB, takes up to a second longer than with small pages.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, int(not use), 0, 0, 0)


def make_scratch() -> str:
    """Make a folder for what a feeder's Dask workers keep on disk. Feeder and parent both remove it."""
    return tempfile.mkdtemp(prefix="feedline-")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


Cpu = Literal["native", "x86-64-v3"]
DISABLE, ENABLE = "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"
# numpy's names, over its versions, for the parts of x86-64-v3.
_V3 = frozenset(
    {
        *("MMX", "SSE", "SSE2", "SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42", "LAHF", "CX16", "X86_V2"),
        *("AVX", "F16C", "FMA3", "AVX2", "MOVBE", "BMI", "BMI2", "LZCNT", "X86_V3"),
    }
)


def active_instructions() -> tuple[str, ...]:
    """The instructions that this process's numpy uses, by numpy's names: the baseline and enabled dispatched ones."""
    return (*__cpu_baseline__, *(name for name in __cpu_dispatch__ if __cpu_features__.get(name)))


def level_instructions(cpu: Cpu) -> tuple[str, ...]:
    """The instructions that a process with this numpy must use at a level."""
    if cpu == "native":
        return active_instructions()
    return tuple(name for name in (*__cpu_baseline__, *__cpu_dispatch__) if name in _V3)


def choose_cpu(cpu: Cpu | None, *, shared: bool) -> Cpu:
    """The level of a cluster: the requested one, else x86-64-v3 where machines that may differ share the work.

    On other architectures, and on a processor below the level, the default is native: the workers' instructions are
    compared in any case. Raises ClusterError where x86-64-v3 is requested there.
    """
    reached = platform.machine() in ("x86_64", "AMD64") and all(map(__cpu_features__.get, ("AVX2", "FMA3")))
    if cpu is None:
        return "x86-64-v3" if shared and reached else "native"
    if cpu == "x86-64-v3" and not reached:
        raise ClusterError(
            f"cluster.cpu requests instructions that this machine lacks: got x86-64-v3 on {platform.machine()} with "
            f"{' '.join(active_instructions())}, expected a processor with AVX2 and FMA. Write `cpu: native`"
        )
    return cpu


def cpu_environment(cpu: Cpu) -> dict[str, str]:
    """The environment to set before a process on this machine imports numpy; empty for native."""
    if cpu == "native":
        return {}
    disabled = os.environ.get(DISABLE, "").replace(",", " ").split()  # inactive in this process
    beyond = [name for name in __cpu_dispatch__ if name not in _V3]
    names = [name for name in beyond if __cpu_features__.get(name) or name in disabled]
    # numpy refuses both variables at once, unless one is empty
    return {DISABLE: " ".join(names)} | ({ENABLE: ""} if ENABLE in os.environ else {})


def instructions_remedy(expected: str) -> str:
    """The remedy for a process that must use the expected instructions."""
    required = expected.split()
    missing = [name for name in required if name not in active_instructions()]
    if missing:
        return (
            f"This machine has no {' '.join(missing)}, or {DISABLE} turns it off: remove the machine or the variable, "
            "or see `cluster.cpu`"
        )
    line = disabling_line(set(active_instructions()).difference(required))
    return f"Start it with {line} in its environment, or see `cluster.cpu`"


def disabling_line(names: Iterable[str]) -> str:
    """The line to add to an image or a launcher, to disable these instructions."""
    disabled = set(names)
    return f'{DISABLE}="{" ".join(name for name in __cpu_dispatch__ if name in disabled)}"'


@functools.cache
def libc() -> str:
    """The C library and its version."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (OSError, ValueError):
        return " ".join(platform.libc_ver()).strip() or "unknown"


@functools.cache
def libm() -> str:
    """Digest of the results of exp, pow, sin and others, whose code glibc selects by processor and GLIBC_TUNABLES.

    Without FMA one in 1,000 to 2,500 results of Python's exp, expm1, sin, cos and pow differs (glibc 2.36; 20,000
    points each), hence so many points here; they take 3 ms.
    """
    points = [0.37 + 0.731 * index for index in range(8192)]
    scaled = [point / 100 for point in points]
    results = [*map(math.exp, scaled), *map(math.expm1, scaled), *map(math.sin, points), *map(math.cos, points)]
    results += [math.pow(point, 1.7) for point in points]
    return hashlib.blake2b(struct.pack(f"<{len(results)}d", *results), digest_size=4).hexdigest()
