"""What this machine gives a process: cores, memory, and the instructions that numpy computes with.

Linux files are read where they exist, cgroup limits included; elsewhere psutil's figures serve.

numpy picks the loops of log1p, exp and others when it is imported, by the processor, and their float results differ in
the last bits: `NPY_DISABLE_CPU_FEATURES` is what turns loops off, and has to be set before. Its names are those of the
running numpy ("X86_V4", once "AVX512F"); any other name is ignored with a warning that nobody sees, so they are taken
from numpy itself.

`x86-64-v3` is the level of AVX2 and FMA, which every x86 server since 2015 has. There is no lower one: below it glibc
computes exp, pow and sin differently (measured with GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2), whatever numpy does.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import psutil
from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]  # where np.show_runtime looks as well
    __cpu_baseline__,
    __cpu_dispatch__,
    __cpu_features__,
)

from feedline.errors import ClusterError

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


Cpu = Literal["native", "x86-64-v3"]
DISABLE, ENABLE = "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"
# What numpy has called the parts of x86-64-v3, alone or together.
_V3 = frozenset(
    {
        *("MMX", "SSE", "SSE2", "SSE3", "SSSE3", "SSE41", "POPCNT", "SSE42", "LAHF", "CX16", "X86_V2"),
        *("AVX", "F16C", "FMA3", "AVX2", "MOVBE", "BMI", "BMI2", "LZCNT", "X86_V3"),
    }
)


def active_instructions() -> tuple[str, ...]:
    """The instructions that this process's numpy computes with, by numpy's names: dispatched ones where enabled."""
    return (*__cpu_baseline__, *(name for name in __cpu_dispatch__ if __cpu_features__.get(name)))


def level_instructions(cpu: Cpu) -> tuple[str, ...]:
    """Those that a process of this numpy has to compute with at a level."""
    if cpu == "native":
        return active_instructions()
    return tuple(name for name in (*__cpu_baseline__, *__cpu_dispatch__) if name in _V3)


def choose_cpu(cpu: Cpu | None, *, shared: bool) -> Cpu:
    """The level of a cluster: what is asked for, else x86-64-v3 where machines that may differ share the work.

    Elsewhere than on x86, and on a processor that does not reach the level, the default is native: what the workers
    have is compared all the same. Raises ClusterError where x86-64-v3 is asked for there.
    """
    reached = platform.machine() in ("x86_64", "AMD64") and all(map(__cpu_features__.get, ("AVX2", "FMA3")))
    if cpu is None:
        return "x86-64-v3" if shared and reached else "native"
    if cpu == "x86-64-v3" and not reached:
        raise ClusterError(
            f"cluster.cpu asks for what this machine does not have: got x86-64-v3 on {platform.machine()} with "
            f"{' '.join(active_instructions())}, expected a processor with AVX2 and FMA. Write `cpu: native`"
        )
    return cpu


def cpu_environment(cpu: Cpu) -> dict[str, str]:
    """What to set before a process of this machine imports numpy; nothing for native."""
    if cpu == "native":
        return {}
    disabled = os.environ.get(DISABLE, "").replace(",", " ").split()  # off in this process, so not to be seen as active
    beyond = [name for name in __cpu_dispatch__ if name not in _V3]
    names = [name for name in beyond if __cpu_features__.get(name) or name in disabled]
    # numpy refuses both at once; an empty one counts as none
    return {DISABLE: " ".join(names)} | ({ENABLE: ""} if ENABLE in os.environ else {})


def instructions_remedy(expected: str) -> str:
    """What makes a process like this one compute with the expected instructions."""
    wanted = expected.split()
    missing = [name for name in wanted if name not in active_instructions()]
    if missing:
        return (
            f"This machine has no {' '.join(missing)}, or {DISABLE} turns it off: leave the machine or the variable "
            "out, or see `cluster.cpu`"
        )
    line = disabling_line(set(active_instructions()).difference(wanted))
    return f"Start it with {line} in its environment, or see `cluster.cpu`"


def disabling_line(names: Iterable[str]) -> str:
    """The line to add to an image or a launcher."""
    wanted = set(names)
    return f'{DISABLE}="{" ".join(name for name in __cpu_dispatch__ if name in wanted)}"'


@functools.cache
def libc() -> str:
    """The C library and its version."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (OSError, ValueError):
        return " ".join(platform.libc_ver()).strip() or "unknown"


@functools.cache
def libm() -> str:
    """Digest of what its exp, pow, sin and others return: glibc picks their code by processor and GLIBC_TUNABLES.

    Without FMA one in 1,000 to 2,500 results of Python's exp, expm1, sin, cos and pow differs (glibc 2.36; 20,000
    points each), hence so many here; they take 3 ms.
    """
    points = [0.37 + 0.731 * number for number in range(8192)]
    scaled = [point / 100 for point in points]
    results = [*map(math.exp, scaled), *map(math.expm1, scaled), *map(math.sin, points), *map(math.cos, points)]
    results += [math.pow(point, 1.7) for point in points]
    return hashlib.blake2b(struct.pack(f"<{len(results)}d", *results), digest_size=4).hexdigest()
