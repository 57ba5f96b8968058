"""Measure what the cache policy needs of a machine: rates of a folder's disk, and of memory.

Runs in: every process that computes blocks with a cache that decides for itself, once per folder, before the first
decision; takes about 50 ms.

A disk is written in synchronous pieces, each twice as large as the one before, so that the last one shows bandwidth
and not the latency of a flush; then dropped from the page cache and read. The file has no name in the folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from feedline.blocks.cache.cache_costs import CacheRates
from feedline.resources.cgroups import available_memory_bytes

_FIRST_BYTES = 256 << 10
_MOST_BYTES = 4 << 20  # of a piece: as much as the entries of a row group often are
_WRITING_S = 0.010  # no further piece after it: the next one would take twice as long as the last
_READING_S = 0.010
_READ_BYTES = 1 << 20
_COPIED_BYTES = 8 << 20  # more than a core's caches hold
_COPIES = 3
_DIRTY_RATIO = 10  # Linux's default of vm.dirty_background_ratio, in percent of the available memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Bytes per second that a folder's disk writes, and reads what is not in the page cache."""

    write_bytes_per_s: float
    read_bytes_per_s: float


@cache
def disk_rates(folder: str) -> DiskRates | None:
    """Measure the disk of a folder once per process; None: nothing can be written there.

    Where a file system does not drop its cached pages (tmpfs), reads are as fast as memory, as later ones will be.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written, write_rate = _write_rate(file.fileno())
            os.posix_fadvise(file.fileno(), 0, written, os.POSIX_FADV_DONTNEED)
            return DiskRates(write_bytes_per_s=write_rate, read_bytes_per_s=_read_rate(file.fileno(), written))
    except OSError:
        return None


@cache
def memory_rate() -> float:
    """Bytes per second of a copy in memory, by one thread: the best of a few."""
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.ones(_COPIED_BYTES, np.uint8)
    best_s = float("inf")
    for _ in range(_COPIES):
        begin = time.perf_counter()
        np.copyto(target, source)
        best_s = min(best_s, time.perf_counter() - begin)
    return _COPIED_BYTES / max(best_s, 1e-9)


def cache_rates(folder: str) -> CacheRates | None:
    """Rates of a cache's folder and of memory; None: nothing can be written there."""
    disk = disk_rates(os.path.realpath(folder))
    if disk is None:
        return None
    available = available_memory_bytes()
    return CacheRates(
        read_bytes_per_s=disk.read_bytes_per_s,
        write_bytes_per_s=disk.write_bytes_per_s,
        memory_bytes_per_s=memory_rate(),
        page_cache_bytes=available,
        write_buffer_bytes=_write_buffer_bytes(available),
    )


def _write_rate(descriptor: int) -> tuple[int, float]:
    """Write pieces until time is up; bytes in sum, and the rate of the last piece."""
    piece = np.random.default_rng(0).integers(0, 256, _MOST_BYTES, np.uint8).data  # no file system compresses it
    size, written, began = _FIRST_BYTES, 0, time.perf_counter()
    while True:
        begin = time.perf_counter()
        count = os.write(descriptor, piece[:size])
        os.fdatasync(descriptor)
        end = time.perf_counter()
        written += count
        if end - began > _WRITING_S or size >= _MOST_BYTES:
            return written, count / max(end - begin, 1e-9)
        size *= 2


def _read_rate(descriptor: int, written: int) -> float:
    buffer = bytearray(_READ_BYTES)
    position, began = 0, time.perf_counter()
    while position < written:
        count = os.preadv(descriptor, [buffer], position)
        position += count
        if not count or time.perf_counter() - began > _READING_S:
            break
    return max(position, 1) / max(time.perf_counter() - began, 1e-9)


def _write_buffer_bytes(available: int) -> int:
    """Bytes of dirty pages below which Linux lets no writer wait: those that it begins to write in the background."""
    folder = Path("/proc/sys/vm")
    try:
        if limit := int((folder / "dirty_background_bytes").read_text()):
            return min(limit, available)
        ratio = int((folder / "dirty_background_ratio").read_text())
    except (OSError, ValueError):
        ratio = _DIRTY_RATIO
    return available * ratio // 100
