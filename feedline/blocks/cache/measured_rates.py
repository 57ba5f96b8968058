"""Measure what the cache policy needs of a machine: rates of a folder's disk, of memory, and of the table's store.

Runs in: the feeder, once per process and folder, before the first decision; takes about 50 ms. The rates of a store
come from the requests of the first blocks, without I/O of its own.

A disk is written in synchronous pieces, each twice as large as the one before, so that the last one shows bandwidth
and not the latency of a flush; then dropped from the page cache and read. The file has no name in the folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from feedline.blocks.cache.cache_costs import CacheRates, StoreRates
from feedline.resources.cgroups import available_memory_bytes

_FIRST_BYTES = 256 << 10
_MOST_BYTES = 4 << 20  # of a piece: as much as the entries of a row group often are
_WRITING_S = 0.010  # no further piece after it: the next one would take twice as long as the last
_READING_S = 0.010
_READ_BYTES = 1 << 20
_COPIED_BYTES = 8 << 20  # more than a core's caches hold
_COPIES = 3
_UNKNOWN_BYTES_PER_S = 1e12  # of a store whose requests took no time beyond their latency
_ALIKE = 100.0  # condition number of samples that cannot tell latency from bandwidth
_SMALL_BYTES = 256 << 10  # of a request: below it a store's answer is mostly latency
_DIRTY_RATIO = 10  # Linux's default of vm.dirty_background_ratio, in percent of the available memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Bytes per second that a folder's disk writes, and reads what is not in the page cache."""

    write_bytes_per_s: float
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSample:
    """What one thread fetched of the store for a block: requests one after another, and when, on a monotonic clock."""

    requests: int
    bytes: int
    begin_s: float
    end_s: float


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


def store_rates(samples: Sequence[FetchSample], *, parallel: float = 1.0, remote: bool = True) -> StoreRates | None:
    """Fit seconds = requests * latency + bytes / rate to the first blocks' fetches; None without any.

    Least squares, neither part negative. Where samples cannot tell the parts apart, small requests are taken for
    latency and large ones for bandwidth. The store's bandwidth is at least what all threads received in the time in
    which any of them waited.
    """
    used = [each for each in samples if each.requests > 0 and each.end_s > each.begin_s]
    if not used:
        return None
    latency_s, byte_s = _fit(used)
    stream = 1 / byte_s if byte_s > 1 / _UNKNOWN_BYTES_PER_S else _UNKNOWN_BYTES_PER_S
    together = sum(each.bytes for each in used) / _busy_s(used)
    return StoreRates(
        latency_s=latency_s * parallel,
        bytes_per_s=max(stream, together, 1.0),
        stream_bytes_per_s=max(stream, 1.0),
        parallel=parallel,
        remote=remote,
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


def _fit(samples: Sequence[FetchSample]) -> tuple[float, float]:
    """Seconds per request and per byte."""
    requests = np.array([each.requests for each in samples], np.float64)
    amounts = np.array([each.bytes for each in samples], np.float64)
    seconds = np.array([each.end_s - each.begin_s for each in samples])
    alone = (float(requests @ seconds / (requests @ requests)), 0.0)
    if not amounts.any():
        return alone
    by_bytes = (0.0, float(amounts @ seconds / (amounts @ amounts)))
    scales = np.array([np.linalg.norm(requests), np.linalg.norm(amounts)])
    matrix = np.stack([requests, amounts], axis=1) / scales
    if np.linalg.cond(matrix) > _ALIKE:
        return alone if amounts.sum() < _SMALL_BYTES * requests.sum() else by_bytes
    latency_s, byte_s = np.linalg.lstsq(matrix, seconds, rcond=None)[0] / scales
    if latency_s < 0:
        return by_bytes
    return (float(latency_s), float(byte_s)) if byte_s >= 0 else alone


def _busy_s(samples: Sequence[FetchSample]) -> float:
    """Seconds in which at least one fetch was under way."""
    busy_s, until = 0.0, float("-inf")
    for each in sorted(samples, key=lambda sample: sample.begin_s):
        busy_s += max(0.0, each.end_s - max(each.begin_s, until))
        until = max(until, each.end_s)
    return busy_s
