"""What an epoch takes that computes some features and reads others from a cache: values and formulas.

Runs in: the feeder. Pure: measurements come in, seconds go out; `cache_policy` compares them.

An epoch takes as long as its slowest resource (the asymptotic bounds of a closed queueing network, which for one thread
are exact):

    epoch      = max(thread seconds / threads, store's bytes / rate, disk's bytes / rate)
    thread     = CPU + requests * latency / parallel + store's bytes / rate of a stream + hits + writes
    hit        = files * entry_s + features * feature_s + bytes * (h / memory + (1 - h) / disk) + decoding
    h          = m + (1 - m) * ln(1 - m), m = page cache / bytes kept: hits of an LRU if each epoch is permuted anew
    decoding   = what a hit in memory was measured to take beyond a copy: checksums, widening, laying out
    write      = bytes within the kernel's buffer / its rate + the others / disk, and what is written is laid out

No disk is faster than a copy in memory, so a hit costs at least that and a fixed part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from feedline.dataclass import dataclass

# Per file of a row group that is read (open, stat, header, read) and per feature of it (views, checksum, slicing).
ENTRY_S = 60e-6
FEATURE_S = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureCost:
    """What one feature costs per row of an epoch. cpu_s: of a row that is computed. store_bytes, store_requests: its
    part of what is read of the store.

    bytes: of the finished feature. hit_cpu_s: of reading it from memory. warm: the share of its entries that are there
    already.
    """

    name: str
    cpu_s: float = 0.0
    store_bytes: float = 0.0
    store_requests: float = 0.0
    bytes: float = 0.0
    hit_cpu_s: float = 0.0
    warm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRates:
    """Measured rates of the table's store. bytes_per_s: of all threads together; stream_bytes_per_s: of one (default:
    the same). parallel: requests in flight per thread. remote: whether a copy of its bytes on local disk may pay."""

    latency_s: float = 0.0
    bytes_per_s: float
    stream_bytes_per_s: float | None = None
    parallel: float = 1.0
    remote: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRates:
    """Measured rates of the cache's folder. memory_bytes_per_s: of a copy in memory, also of what the page cache holds.

    page_cache_bytes: memory for what was read or written. write_buffer_bytes: what the kernel writes later, and takes
    at buffer_bytes_per_s (default: as memory). entry_s, feature_s: the fixed parts of a hit.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    memory_bytes_per_s: float
    page_cache_bytes: float = 0.0
    write_buffer_bytes: float = 0.0
    buffer_bytes_per_s: float | None = None
    entry_s: float = ENTRY_S
    feature_s: float = FEATURE_S

    def read_s(self, kept_bytes: float) -> tuple[float, float]:
        """Seconds to read all that is kept: of a thread, and of the disk beneath the page cache."""
        in_memory = hit_share(self.page_cache_bytes, kept_bytes)
        from_disk = (1 - in_memory) * kept_bytes / min(self.read_bytes_per_s, self.memory_bytes_per_s)
        return in_memory * kept_bytes / self.memory_bytes_per_s + from_disk, from_disk

    def write_s(self, written_bytes: float) -> tuple[float, float]:
        """Seconds to write: of a thread, and of the disk beyond what the kernel writes later."""
        buffer_rate = min(self.buffer_bytes_per_s or self.memory_bytes_per_s, self.memory_bytes_per_s)
        later = min(written_bytes, self.write_buffer_bytes)
        to_disk = (written_bytes - later) / min(self.write_bytes_per_s, buffer_rate)
        return later / buffer_rate + to_disk, to_disk


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """All that is measured of a pipeline. shared: what any computed row costs, whichever features are (filter, footer).

    threads: of all workers. rows, row_groups: of an epoch. epochs_left: this one with them. further_readings: epochs of
    other jobs that are expected to read the same entries. source_warm: the share of column chunks that are there.
    """

    features: tuple[FeatureCost, ...]
    shared: FeatureCost
    store: StoreRates
    cache: CacheRates
    threads: float
    rows: float
    row_groups: float
    epochs_left: int
    further_readings: float = 0.0
    capacity_bytes: float
    source_warm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLoad:
    """Seconds of an epoch's work: of threads in sum, of the store's bandwidth, of the disk."""

    thread_s: float = 0.0
    store_s: float = 0.0
    disk_s: float = 0.0

    def plus(self, other: EpochLoad, times: float = 1.0) -> EpochLoad:
        """Add another load; differences of sums that should be zero are."""
        return EpochLoad(
            thread_s=max(0.0, self.thread_s + times * other.thread_s),
            store_s=max(0.0, self.store_s + times * other.store_s),
            disk_s=max(0.0, self.disk_s + times * other.disk_s),
        )


def hit_share(memory_bytes: float, kept_bytes: float) -> float:
    """Share of readings that an LRU of some memory answers, if each epoch reads all once in a new random order.

    Between two readings of an entry, at x and y of their epochs, 1 - x * (1 - y) of all entries are read. If memory
    holds half of what is kept, 0.15 of the readings are hits; if it holds nine tenths, 0.67.
    """
    if kept_bytes <= memory_bytes:
        return 1.0
    outside = 1 - memory_bytes / kept_bytes
    return min(1.0, max(0.0, 1 - outside + outside * math.log(outside))) if outside else 1.0


def epoch_seconds(inputs: PolicyInputs, load: EpochLoad) -> float:
    """How long an epoch takes: as its slowest resource."""
    return max(load.thread_s / inputs.threads, load.store_s, load.disk_s)


def fetching(inputs: PolicyInputs, costs: Sequence[FeatureCost]) -> EpochLoad:
    """The load of reading some features' columns from the store, without decoding."""
    store = inputs.store
    fetched_bytes = inputs.rows * sum(each.store_bytes for each in costs)
    latency_s = inputs.rows * sum(each.store_requests for each in costs) * store.latency_s / store.parallel
    transfer_s = fetched_bytes / (store.stream_bytes_per_s or store.bytes_per_s)
    return EpochLoad(thread_s=latency_s + transfer_s, store_s=fetched_bytes / store.bytes_per_s)


def computing(inputs: PolicyInputs, costs: Sequence[FeatureCost]) -> EpochLoad:
    """The load of reading and computing some features."""
    cpu = EpochLoad(thread_s=inputs.rows * sum(each.cpu_s for each in costs))
    return fetching(inputs, costs).plus(cpu)


def hitting(inputs: PolicyInputs, read_bytes: float, features: float, hit_cpu_s: float = 0.0) -> EpochLoad:
    """The load of reading what is kept: files of row groups, with a number of features in each. hit_cpu_s: of them."""
    if not read_bytes and not features:
        return EpochLoad()
    thread_s, disk_s = inputs.cache.read_s(read_bytes)
    fixed_s = inputs.row_groups * (inputs.cache.entry_s + features * inputs.cache.feature_s)
    return EpochLoad(thread_s=thread_s + fixed_s + decoding_s(inputs, read_bytes, hit_cpu_s), disk_s=disk_s)


def decoding_s(inputs: PolicyInputs, read_bytes: float, hit_cpu_s: float) -> float:
    """What hits take beyond a copy in memory."""
    return max(0.0, hit_cpu_s - read_bytes / inputs.cache.memory_bytes_per_s)


def writing(inputs: PolicyInputs, written_bytes: float, laid_s: float = 0.0) -> EpochLoad:
    """The load of writing what is missing, once. laid_s: of what goes the way of a hit, after it was written."""
    if not written_bytes:
        return EpochLoad()
    thread_s, disk_s = inputs.cache.write_s(written_bytes)
    return EpochLoad(thread_s=thread_s + laid_s + inputs.row_groups * inputs.cache.entry_s, disk_s=disk_s)
