"""What a job keeps of its features: decided from the first segments that a process computes (`mode: auto`).

Runs in: every process that computes blocks. Each decides for itself, after five segments and again when an epoch
begins: `feature_costs` measures what each feature costs where that happens, `measured_rates` the folder's disk, and the
choice itself what the last epoch found and how long that took; `cache_policy` decides.

- What pays within the readings that are left, one more at least, is written as it is computed.
- What would pay if it were read more often is written within a budget of time, for whoever reads it later.
- Column chunks of a remote table are kept where features do not pay.
- What is in the folder is read, until reading it was measured to take longer than computing it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path

import numpy as np

from feedline.blocks.cache.cache_costs import CacheRates, FeatureCost, PolicyInputs, StoreRates
from feedline.blocks.cache.cache_policy import CacheDecision, choose_mode
from feedline.blocks.cache.feature_costs import FeatureMeasurements, MeasuredFeatures
from feedline.blocks.request import ReadEpochs
from feedline.dataclass import dataclass
from feedline.resources.cgroups import available_cores, available_memory_bytes
from feedline.warehouse.cache.cache_folder import CacheFolder, WriteBudget

# --------------------------------------------------------------------------------------------------------------------
# Measure what the cache policy needs of a machine: rates of a folder's disk, and of memory. A disk is written in
# synchronous pieces, each twice as large as the one before, so that the last one shows bandwidth and not the latency
# of a flush; then dropped from the page cache and read. The file has no name in the folder.

_FIRST_BYTES = 256 << 10
_MOST_BYTES = 4 << 20  # of a piece: as much as the entries of a row group often are
_WRITING_S = 0.010  # no further piece after it: the next one would take twice as long as the last
_READING_S = 0.010
_READ_BYTES = 1 << 20
_COPIED_BYTES = 8 << 20  # more than a core's caches hold
_COPIES = 3
_DIRTY_RATIO = 10  # Linux's default of vm.dirty_background_ratio, in percent of the available memory


@cache
def disk_rates(folder: str) -> tuple[float, float] | None:
    """Bytes per second that a folder's disk reads, of what is not in the page cache, and writes: measured once per
    process; None: nothing can be written there.

    Where a file system does not drop its cached pages (tmpfs), reads are as fast as memory, as later ones will be.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            written, write_rate = _write_rate(file.fileno())
            os.posix_fadvise(file.fileno(), 0, written, os.POSIX_FADV_DONTNEED)
            return _read_rate(file.fileno(), written), write_rate
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
        read_bytes_per_s=disk[0],
        write_bytes_per_s=disk[1],
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


# --------------------------------------------------------------------------------------------------------------------

logger = logging.getLogger("feedline.cache")

BUDGET = 0.06  # of the time of computing; laying out what is written takes about another 2 %
FREE_S = 0.05  # of writing, before the budget holds
PATIENCE = 4  # further readings that an entry is written for within the budget
_MOST_READINGS = 10.0  # that the folder's record promises
_NO_STORE = StoreRates(bytes_per_s=1e15, remote=False)  # waiting for it is part of what computing takes
_ALL_MEMORY = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoFilling:
    """What a process keeps: names of features, None for all. reads: whether it looks for any. source: it keeps column
    chunks. budget: of writing."""

    names: frozenset[str] | None
    reads: bool
    source: bool
    budget: WriteBudget
    reason: str = ""


@dataclass(slots=True)
class _EpochCounts:
    """What an epoch found: in how many segments it looked, in how many each feature was found, or written; seconds that
    finding took, and would have in memory."""

    segments: int = 0
    there: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    expected_s: float = 0.0

    def shares(self) -> dict[str, float]:
        """Of which share of the row groups each feature is there."""
        return {name: min(1.0, count / self.segments) for name, count in self.there.items()}


class AutoChoice:
    """The choice of one process for a job, or that all is kept; any thread may use it."""

    def __init__(self, epochs: ReadEpochs | None, folder: CacheFolder, classes: Sequence[frozenset[str]]) -> None:
        """epochs: None for a job that keeps all. classes: of features alike."""
        self._epochs, self._folder = epochs, folder
        self.measurements = FeatureMeasurements([] if epochs is None else classes)
        self._lock = threading.Lock()
        self._epoch = 0
        self._costs: MeasuredFeatures | None = None
        self._rates: CacheRates | None = None
        self._counts = _EpochCounts()
        self._slower: float | None = None  # what finding took in an epoch, to what it takes in memory
        self._warm: dict[str, float] = {}  # the share of each feature that is there
        self._store_bytes = 0.0 if epochs is None else epochs.store_bytes / max(1, epochs.rows)
        limit = folder.ref.write_budget
        self._own_budget = folder.budget if limit is not None and limit <= BUDGET else WriteBudget(BUDGET, FREE_S)
        once = epochs is not None and epochs.epochs == 1
        budget = self._own_budget if once else folder.budget
        self._undecided = AutoFilling(names=None, reads=True, source=False, budget=budget)
        self.filling = self._undecided

    @property
    def is_undecided(self) -> bool:
        """Whether segments are measured."""
        return self.filling is self._undecided and self._epochs is not None

    def begin(self, epoch: int) -> None:
        """Decide again if a new epoch begins; blocks of two may be computed at the same time."""
        if epoch <= self._epoch or self._epochs is None:
            return
        with self._lock:
            if epoch <= self._epoch:
                return
            counts, self._counts, self._epoch = self._counts, _EpochCounts(), epoch
            if self._costs is None:
                self.filling = self._undecided
                return
            if counts.expected_s:
                self._slower = counts.seconds / counts.expected_s
            if counts.segments:
                self._warm = counts.shares()
            self.filling = self._decide(self._costs)

    def measured(self) -> None:
        """Decide if enough was measured."""
        with self._lock:
            if self._costs is not None:
                return
            self._costs = self.measurements.costs(self._store_bytes)
            if self._costs is not None:
                self._rates = cache_rates(self._folder.ref.folder)
                self.filling = self._decide(self._costs)

    def refuse(self) -> None:
        """Keep nothing until the next epoch: the folder takes nothing."""
        with self._lock:
            if self._costs is None and self._epochs is not None:
                self.filling = self._nothing("off: nothing can be written there")

    def count(self, found: Collection[str], written: Collection[str], rows: int, seconds: float) -> None:
        """Count a segment: the features that were found, which took some seconds, and those that were written."""
        with self._lock:
            counts = self._counts
            counts.segments += 1
            counts.there.update(found)
            counts.there.update(written)
            if self._costs is not None and found:
                counts.seconds += seconds
                counts.expected_s += rows * sum(self._costs.found_s.get(name, 0.0) for name in found)

    def _decide(self, costs: MeasuredFeatures) -> AutoFilling:
        if self._rates is None:
            return self._nothing("off: nothing can be written there")
        inputs = self._inputs(costs, self._rates)
        decision = choose_mode(inputs)
        if decision.mode == "off" or not decision.writes:
            later = choose_mode(replace(inputs, further_readings=inputs.further_readings + PATIENCE))
            if later.mode == "features" and later.writes:
                return self._budgeted(later)
        return self._say(
            AutoFilling(
                names=frozenset(decision.kept if decision.writes else ()),
                reads=decision.mode != "off" or self._slower is None,
                source=decision.mode == "source",
                budget=self._folder.budget,
                reason=decision.reason,
            )
        )

    def _budgeted(self, decision: CacheDecision) -> AutoFilling:
        return self._say(
            AutoFilling(
                names=frozenset(decision.kept),
                reads=True,
                source=False,
                budget=self._own_budget,
                reason=f"{decision.reason}; written in {self._own_budget.share:.0%} of the time, for later readings",
            )
        )

    def _nothing(self, reason: str) -> AutoFilling:
        return self._say(replace(self._undecided, names=frozenset(), reason=reason))

    def _say(self, filling: AutoFilling) -> AutoFilling:
        logger.info("cache %s: epoch %d: %s", self._folder.ref.folder, self._epoch, filling.reason)
        return filling

    def _inputs(self, costs: MeasuredFeatures, rates: CacheRates) -> PolicyInputs:
        """What is known now. What finding took in the last epoch counts instead of the disk's rate."""
        epochs, features = self._epochs, costs.features
        assert epochs is not None
        rates = replace(rates, buffer_bytes_per_s=max(costs.write_bytes_per_s, 1.0))
        if self._slower is not None:
            features = tuple(_found_slower(each, costs.found_s[each.name], self._slower) for each in features)
            rates = replace(rates, page_cache_bytes=_ALL_MEMORY)
        left = epochs.epochs - self._epoch if self._epoch < epochs.epochs else self._epoch + 1  # as many again
        threads = max(1.0, float(available_cores()))
        readings = min(_MOST_READINGS, self._folder.space.mean_uses)
        store = _NO_STORE
        if costs.wait_s:
            stream = max(self._store_bytes / costs.wait_s, 1.0)
            store = StoreRates(bytes_per_s=stream * threads, stream_bytes_per_s=stream)
        return PolicyInputs(
            features=tuple(replace(each, warm=self._warm.get(each.name, 0.0)) for each in features),
            shared=costs.shared,
            store=store,
            cache=rates,
            threads=threads,
            rows=float(epochs.rows),
            row_groups=float(epochs.row_groups),
            epochs_left=left,
            further_readings=max(readings, 1.0) if left == 1 else readings,
            capacity_bytes=float(self._folder.space.bound),
            source_warm=1.0 if self.filling.source else 0.0,
        )


def _found_slower(feature: FeatureCost, found_s: float, slower: float) -> FeatureCost:
    return replace(feature, hit_cpu_s=max(0.0, feature.hit_cpu_s + (slower - 1) * found_s))
