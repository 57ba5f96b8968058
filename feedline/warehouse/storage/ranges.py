"""Fetch column chunks of a remote file in few requests.

Runs in every process that reads from a store. Neighbouring column chunks are fetched together with the hole between
them, the smallest holes first, as long as a hole costs less than a request and all holes together are a small part of
the requested bytes (`coalesce`; pure). Fetched bytes are kept in an anonymous mapping of the file's size, from which
Arrow decodes once all bytes of a row group have arrived.

**Short answers.** Where a body is complete but shorter than requested, pyarrow returns the memory's old content. So the
last byte of each range is set to a mark first: an answer that leaves it unchanged did not reach the end. One range in
256 ends with that byte by itself; it costs one more request, for the byte alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa

from feedline.warehouse.storage.faults import ShortBodyError

Range = tuple[int, int]  # start, stop

# Transferring a hole of this size takes about as long as the latency of a request (25 ms at 40 MB/s; papers use windows
# of 1 to 1.25 MiB).
HOLE_BYTES = 2**20
# The limit for all holes of a row group together: one window, or this part of the requested bytes.
HOLES_PART = 0.1
# One connection to S3 carries some 80 MB/s: a longer range is cut, so that several carry it.
RANGE_BYTES = 32 * 2**20
# Requests in flight in one process beyond the first of each reading thread.
_THREADS = 16
# Bytes of neighbouring column chunks that are read at once; of larger spans, allocators return the memory.
_SPAN_BYTES = 4 * 2**20
_MAP_NORESERVE = 0x4000  # Linux (a constant of `mmap` from Python 3.13 on): untouched pages need no memory
_MARK, _OTHER_MARK = 0xA7, 0x58

_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="feedline-fetch")


def coalesce(ranges: Sequence[Range]) -> list[Range]:
    """The ranges to request, in order, so that every given one lies in one of them or in several adjacent ones."""
    return [part for span in merge(ranges, HOLE_BYTES) for part in _cut(span)]


def merge(ranges: Sequence[Range], hole_bytes: int) -> list[Range]:
    """The ranges to read at once, in order, so that every given one lies in one of them. hole_bytes: of the largest
    hole between two that is read over."""
    # (0, 10), (10, 20), (50, 60) -> (0, 60): the hole of 30 bytes costs less than a request
    runs: list[Range] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if runs and start <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(stop, runs[-1][1]))
        else:
            runs.append((start, stop))
    allowance = max(hole_bytes, int(HOLES_PART * sum(stop - start for start, stop in runs)))
    holes = sorted((after[0] - before[1], i) for i, (before, after) in enumerate(pairwise(runs)))
    filled_holes = set()
    for size, i in holes:
        if size > min(hole_bytes, allowance):
            break
        allowance -= size
        filled_holes.add(i)
    spans: list[Range] = []
    for i, (start, stop) in enumerate(runs):
        if i - 1 in filled_holes:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


def _cut(span: Range) -> list[Range]:
    start, stop = span
    parts = -(-(stop - start) // RANGE_BYTES)
    borders = [start + (stop - start) * i // parts for i in range(parts + 1)]
    return list(pairwise(borders))


def adjacent(ranges: Sequence[Range]) -> Iterator[tuple[Range, list[Range]]]:
    """Spans without holes, of `_SPAN_BYTES` and one range at most, each with the ranges in it, in order."""
    # (0, 9), (9, 20), (25, 30) -> (0, 20) with the first two, (25, 30)
    start, stop = 0, -1
    inner: list[Range] = []
    for each in sorted(ranges):
        if inner and (each[0] > stop or stop - start >= _SPAN_BYTES):
            yield (start, stop), inner
            inner = []
        start, stop = (start, max(stop, each[1])) if inner else each
        inner.append(each)
    if inner:
        yield (start, stop), inner


class SparseFile:
    """A file's bytes in memory, at their own offsets; all others are zero and take no memory."""

    def __init__(self, file_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._memory = mmap.mmap(-1, max(file_bytes, 1), flags=flags)
        self._missing: list[Range] = []

    def set_ranges(self, ranges: Sequence[Range]) -> None:
        """Set the ranges for `fetch`."""
        self._missing = list(ranges)

    def fetch(self, source: pa.NativeFile) -> None:
        """Fetch the missing ranges concurrently; after an exception the next call requests the rest."""
        if not self._missing:
            return
        first, *others = self._missing
        running = [(each, _pool.submit(self._fetch_range, source, each)) for each in others]
        failures: dict[Range, BaseException] = {}
        try:
            self._fetch_range(source, first)
        except Exception as error:
            failures[first] = error
        for each, future in running:
            failure = future.exception()
            if failure is not None:
                failures[each] = failure
        self._missing = list(failures)
        for failure in failures.values():
            raise failure

    def write(self, start: int, content: memoryview) -> None:
        """Put bytes of the file that came from elsewhere at their offset."""
        self._memory[start : start + len(content)] = content

    def read_range(self, start: int, stop: int) -> pa.Buffer:
        """Bytes that were fetched or written, without a copy."""
        return pa.py_buffer(self._memory).slice(start, stop - start)

    def reader(self) -> pa.BufferReader:
        """The file for Arrow to decode; the memory lives as long as anything refers to it."""
        return pa.BufferReader(pa.py_buffer(self._memory))

    def _fetch_range(self, source: pa.NativeFile, span: Range) -> None:
        start, stop = span
        with memoryview(self._memory) as memory, memory[start:stop] as view:
            _read_into(source, start, view)


def read_range(source: pa.NativeFile, start: int, size: int) -> bytes:
    """Fetch a range of a remote file in one request.

    Raises ShortBodyError where the store sent fewer bytes.
    """
    content = bytearray(size)
    _read_into(source, start, memoryview(content))
    return bytes(content)


def _read_into(source: pa.NativeFile, start: int, view: memoryview) -> None:
    """Fill `view` from the file's offset `start`; safe to call from several threads at once."""
    size = len(view)
    if not size:
        return
    view[-1] = _MARK
    count = source.get_stream(start, size).readinto(view)
    if count == size and view[-1] == _MARK and not _ends_with_mark(source, start + size - 1):
        count = 0
    if count != size:
        raise ShortBodyError(f"answer is too short: got fewer bytes than the {size} requested at {start}")


def _ends_with_mark(source: pa.NativeFile, position: int) -> bool:
    """Whether a byte of the file is the mark by itself, as one in 256 is."""
    byte = bytearray([_OTHER_MARK])
    try:
        source.get_stream(position, 1).readinto(byte)
    except OSError:
        return False  # there may be no such byte any more
    return byte[0] == _MARK
