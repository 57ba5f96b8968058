"""Measure what a store delivers: read the column chunks of a plan's blocks with ever more concurrent readers.

Runs in: the process of `feedline explain`, after its short run. Only bytes are read, past all caches of Feedline: what
a run reads of row groups of blocks that are spread over an epoch. Pages of local files are dropped from the kernel's
memory before each read. A measurement ends when twice the readers gain less than a tenth.
"""

from __future__ import annotations

import itertools
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass

from feedline.blocks.jobs import CompiledJob, compile_job
from feedline.errors import FeedlineError, PlanError
from feedline.explain.costs.plan_costs import ChosenSource
from feedline.explain.costs.sampled_blocks import BlockSample, sample_blocks
from feedline.explain.explanation import Explanation
from feedline.explain.reader_levels import (
    MOST_READERS,
    ReaderLevel,
    StoreRate,
    TimedRead,
    explained_with_store,
    reader_level,
)
from feedline.planning.plan import Plan
from feedline.planning.resolve import current_snapshots, lanes_for, preview_plan
from feedline.progress import report_progress
from feedline.spec import PipelineSpec
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.row_filter import RowFilter
from feedline.warehouse.reading.stored_ranges import stored_ranges
from feedline.warehouse.storage.locations import join, locate
from feedline.warehouse.storage.parallel import Pool, interruptible, stop_event
from feedline.warehouse.storage.retry import is_local

LEVEL_S = 1.0  # that a number of readers is measured for
_LEVEL_BYTES = 500_000_000  # and the bytes after which it ends earlier: six levels read 3 GB at most
_MOST_S = 20.0  # after which no level begins, and what is not measured is given up
_READ_BYTES = 4 * 2**20  # of one request: 50 ms of a connection to S3, so that a level has many
_BLOCKS, _MOST_ROW_GROUPS = 32, 64  # that are read, again from the first one when all were
_LOOK_S = 0.05
_BLOCK_BYTES = 512  # of the kernel's count of what it read from disks
_FROM_DISK = 0.5  # the share of the bytes that must come from there


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of an open file. descriptor: of a local one, else None."""

    file: OpenFile
    descriptor: int | None
    start: int
    stop: int

    def read(self, clock: Callable[[], float]) -> TimedRead:
        """Read them, from the disk where they are local."""
        size = self.stop - self.start
        if self.descriptor is not None:
            os.posix_fadvise(self.descriptor, self.start, size, os.POSIX_FADV_DONTNEED)
        began_s = clock()
        self.file.read_at(size, self.start)
        return TimedRead(began_s=began_s, ended_s=clock(), nbytes=size)


def explained_with_probe(
    explanation: Explanation, spec: PipelineSpec, source: str | None, stop: Callable[[], bool]
) -> Explanation:
    """The explanation of a short run with what the store of its table delivers, or with why that was not measured.
    source: of several (None: the one that has most rows of a step). stop: ends it."""
    if stop():
        return explained_with_store(explanation, None, "not measured")
    try:
        plan = preview_plan(spec, current_snapshots(spec), lanes=lanes_for(spec.lanes, 1))
        return explained_with_store(explanation, probe_store(ChosenSource.of(plan, source).plan, stop))
    except FeedlineError as error:
        return explained_with_store(explanation, None, str(error))


def probe_store(plan: Plan, stop: Callable[[], bool], level_s: float = LEVEL_S) -> StoreRate:
    """Measure the store of a plan's table, each number of readers for `level_s` seconds. stop: ends it.

    Raises PlanError if it was not measured to the end, or a local table's bytes came from memory; StoreError if the
    store keeps failing.
    """
    sample, watch = sample_blocks(plan, _BLOCKS), _Watch(stop)
    with ExitStack() as files, interruptible(MOST_READERS, "feedline-probe") as pool:
        parts = _open_parts(pool, files, sample, watch)
        disk_before, queue = _disk_bytes(), _Queue(parts)
        rate = StoreRate(levels=(_measure_level(pool, queue, 1, level_s, watch),), nbytes=queue.nbytes)
        while (readers := rate.next_readers) is not None and not watch.is_over:
            level = _measure_level(pool, queue, readers, level_s, watch)
            rate = StoreRate(levels=(*rate.levels, level), nbytes=queue.nbytes)
        from_disk = _disk_bytes() - disk_before
    if parts[0].descriptor is not None and from_disk < _FROM_DISK * rate.nbytes:
        raise PlanError(
            f"the disk was not measured, as bytes came from memory: got {from_disk / 1e6:,.0f} MB from a disk, "
            f"expected {rate.nbytes / 1e6:,.0f}. The table lies in memory, or a mount keeps it: give --store-mb-s"
        )
    return rate


def _disk_bytes() -> int:
    """Bytes that the kernel has read from disks for this process."""
    return _BLOCK_BYTES * resource.getrusage(resource.RUSAGE_SELF).ru_inblock


class _Watch:
    """Whether the measurement shall end. stop: asked for by its caller."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began_s > _MOST_S

    def check(self) -> None:
        """Raise PlanError if it shall end."""
        if self._stop():
            raise PlanError("its bandwidth was not measured to the end: stopped")
        if time.monotonic() - self._began_s > 2 * _MOST_S:
            raise PlanError(
                f"its bandwidth was not measured: it did not answer in {2 * _MOST_S:.0f} s. Try again later"
            )


class _Queue:
    """The parts to read, again and again. nbytes: of those that were taken."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = itertools.cycle(parts)
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self) -> _Part:
        with self._lock:
            part = next(self._parts)
            self.nbytes += part.stop - part.start
            return part


def _measure_level(pool: Pool, queue: _Queue, readers: int, seconds: float, watch: _Watch) -> ReaderLevel:
    """Read with so many readers for some seconds, or until `_LEVEL_BYTES` were read."""
    most, began_s = queue.nbytes + _LEVEL_BYTES, time.perf_counter()

    def read() -> list[TimedRead]:
        reads = [queue.take().read(time.perf_counter)]
        while not stop_event().is_set() and time.perf_counter() < began_s + seconds and queue.nbytes < most:
            reads.append(queue.take().read(time.perf_counter))
        return reads

    running = {pool.submit(read) for _ in range(readers)}
    left = running
    while left:
        watch.check()
        report_progress("measuring the store", queue.nbytes, None, "bytes")
        left = wait(left, timeout=_LOOK_S).not_done
    found = [future.result() for future in running]
    # Until then, all of them read.
    ended_s = max(began_s + 1e-6, min(reads[-1].ended_s for reads in found))
    return reader_level(readers, [read for reads in found for read in reads], began_s, ended_s)


def _open_parts(pool: Pool, files: ExitStack, sample: BlockSample, watch: _Watch) -> list[_Part]:
    """The parts of row groups of the sample, evenly spread; `files` closes theirs. Raises PlanError if there are none,
    as of a plan that reads partition keys alone."""
    compiled = compile_job(sample.job)
    groups: dict[tuple[str, int], Fragment] = {}
    for request in sample.requests:
        for piece in request.pieces:
            for position, row_group in enumerate(piece.fragment.row_groups):
                groups.setdefault((piece.fragment.path, row_group), piece.fragment.alone(position))
    step = max(1, -(-len(groups) // _MOST_ROW_GROUPS))
    opening = [pool.submit(_open_part, files, compiled, each) for each in list(groups.values())[::step]]
    left = set(opening)
    while left:
        watch.check()
        report_progress("measuring the store", 0, None, "bytes")
        left = wait(left, timeout=_LOOK_S).not_done
    parts = [part for future in opening for part in future.result()]
    if not parts:
        raise PlanError("the plan reads no bytes of the store: expected at least one column of a file")
    return parts


def _open_part(files: ExitStack, compiled: CompiledJob, fragment: Fragment) -> list[_Part]:
    """The parts of one row group, at most `_READ_BYTES` each."""
    file, location, descriptor = files.enter_context(fragment.open()), locate(fragment.table), None
    if is_local(location.filesystem):
        descriptor = os.open(join(location.path, fragment.path), os.O_RDONLY)
        files.callback(os.close, descriptor)
    marks = (part for mark in compiled.marks for part in sorted(mark.parts))
    columns = list(dict.fromkeys([*compiled.columns, *marks]))
    row_filter = RowFilter(where=compiled.where, sample=compiled.sample)
    found = []
    for start, stop in stored_ranges(file, fragment, columns, row_filter, compiled.schema):
        cuts = [*range(start, stop, _READ_BYTES), stop]
        found += [_Part(file, descriptor, *each) for each in itertools.pairwise(cuts)]
    return found
