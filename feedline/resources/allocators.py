"""Settings of a process's memory: the allocators of Arrow, Polars and numpy, and the kernel's huge pages.

A feeder allocates and frees blocks of tens of megabytes all its life, so its allocators keep what is freed, within
limits: docs/decisions/0019-window-and-memory.md. They read their settings when a process starts, so these are
set in its environment, where the user's own settings win; a command that rewrites tables sets them for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Mapping

_PR_SET_THP_DISABLE = 41
# What Polars sets for itself when it is imported: before what is set already, which wins, and also where nothing is.
_POLARS = "_RJEM_MALLOC_CONF"
_OF_POLARS = re.compile(r"dirty_decay_ms:-?\d+,muzzy_decay_ms:-?\d+,?")

_OF_GLIBC = {"MALLOC_ARENA_MAX": -8, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TOP_PAD_": -2}


def allocator_environment(threads: int) -> dict[str, str]:
    """The variables by which allocators keep what a process of so many block threads frees."""
    return {
        "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
        # Keep what was used in the last 10 s; other threads, which need little, use the memory of the block threads.
        # Ask for huge pages: a page fault takes up to 5 us on a virtual machine, and each worker process has its own.
        "JE_ARROW_MALLOC_CONF": f"dirty_decay_ms:10000,narenas:{threads},thp:always",
        # Polars' own allocator likewise.
        _POLARS: f"dirty_decay_ms:10000,muzzy_decay_ms:-1,narenas:{threads},thp:always",
        "MIMALLOC_PURGE_DELAY": "-1",  # Arrow's pool where pyarrow was built without jemalloc: never purge
        # numpy's memory, by glibc: in one arena, since others give each of their heaps of 64 MiB back when it is empty;
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(2**30),  # keep up to 1 GiB of free heap,
        "MALLOC_MMAP_THRESHOLD_": str(2**25),  # take arrays up to 32 MiB (the most glibc allows) from the heap,
        "MALLOC_TOP_PAD_": str(2**26),  # which grows in steps of 64 MiB
    }


def own_or_users(threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables; where the user has set one in an environment, it stays."""
    own = allocator_environment(threads)
    if _OF_POLARS.fullmatch(environment.get(_POLARS, "")):
        environment = {name: value for name, value in environment.items() if name != _POLARS}
    return {name: environment.get(name, value) for name, value in own.items()}


def keep_freed_memory(threads: int) -> None:
    """Have the allocators of this process keep what so many threads free. Arrow and Polars, which read the environment
    when they are imported, must not have been; glibc, which has read it, is told."""
    own = own_or_users(threads, os.environ)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        allocator = ctypes.CDLL(None).mallopt
        for name in _OF_GLIBC.keys() - os.environ.keys():
            allocator(_OF_GLIBC[name], int(own[name]))
    os.environ.update(own)


def use_huge_pages(use: bool) -> None:
    """Let the kernel back this process's new memory with huge pages, as its settings say, or with none (Linux). In
    virtual machines they make a feeder's first block, which touches 300 MB, up to a second slower."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, int(not use), 0, 0, 0)
