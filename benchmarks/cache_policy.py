"""Is the mode that the cache policy chooses the fastest one? A grid of injected costs, each mode really executed.

    python benchmarks/cache_policy.py [--rounds 3] [--sweep] [--json]

A stand-in for blocks: threads fetch row groups from a store (a sleep per request, then a queue for its bandwidth),
compute (a loop of CPU time) and keep files in a folder whose reads and writes queue for a bandwidth, too. Each point of
the grid runs all epochs in each mode, interleaved, and the policy decides from what a first epoch without a cache has
measured. A choice is right if it takes at most a tenth more than the fastest mode, or no more than the spread of both.
Exit status 1: less than nine tenths of the points are right.

`--sweep` is Cachew's cross-over in small: an op that sleeps longer and longer, many threads, a result 2.5 times as
large as its source.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from store_rates import FetchSample, store_rates

from feedline.blocks.cache.auto_choice import memory_rate
from feedline.blocks.cache.cache_costs import CacheRates, FeatureCost, PolicyInputs
from feedline.blocks.cache.cache_policy import CacheDecision, CacheMode, choose_mode

MODES: tuple[CacheMode, ...] = ("off", "source", "features")
SOURCE_BYTES = 256 << 10  # of a row group, on average
STORE_RATE = 25e6
EPOCHS = 3
ROW_GROUPS = 12
THREADS = 2
NEAR, SHARE = 1.1, 0.9
BURNT = bytes(256 << 10)  # by one call without the interpreter's lock: threads seldom wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Injected costs: seconds per request and of the op per row group, result / source bytes, the disk's bytes/s."""

    latency_s: float
    op_s: float
    inflation: float
    disk_rate: float
    store_rate: float = STORE_RATE
    sleeping_op: bool = False
    threads: int = THREADS
    row_groups: int = ROW_GROUPS
    epochs: int = EPOCHS


@dataclass(slots=True)
class Bandwidth:
    """A queue: who takes bytes waits for those of all that came before."""

    rate: float
    free_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> None:
        with self.lock:
            self.free_s = max(self.free_s, time.perf_counter()) + count / self.rate
            until_s = self.free_s
        time.sleep(max(0.0, until_s - time.perf_counter()))


class StandIn:
    """A table of some row groups, its store and a cache folder; `run` executes all epochs in one mode."""

    def __init__(self, point: Point, folder: Path) -> None:
        self.point, self.folder = point, folder
        self.store, self.disk = Bandwidth(point.store_rate), Bandwidth(point.disk_rate)
        self.sizes = [SOURCE_BYTES * (50 + 25 * (place % 5)) // 100 for place in range(point.row_groups)]
        self.flights = [threading.Lock() for _ in self.sizes]
        self.fetches: list[FetchSample] = []
        self.op_s: list[float] = []

    def run(self, mode: CacheMode, epochs: int) -> float:
        """Seconds of some epochs, the first with an empty folder; no thread waits for the end of an epoch."""
        for file in self.folder.iterdir():
            file.unlink()
        with ThreadPoolExecutor(self.point.threads) as pool:
            begin = time.perf_counter()
            list(pool.map(lambda place: self.locked_block(mode, place), list(range(len(self.sizes))) * epochs))
            return time.perf_counter() - begin

    def locked_block(self, mode: CacheMode, row_group: int) -> None:
        with self.flights[row_group]:
            self.block(mode, row_group)

    def block(self, mode: CacheMode, row_group: int) -> None:
        entry = self.folder / f"{mode}-{row_group}"
        result_bytes = int(self.sizes[row_group] * self.point.inflation)
        if mode == "features":
            if not self.read(entry):
                self.fetch(row_group)
                self.compute()
                self.write(entry, result_bytes)
        else:
            if mode == "off" or not self.read(entry):
                self.fetch(row_group)
                if mode == "source":
                    self.write(entry, self.sizes[row_group])
            self.compute()

    def fetch(self, row_group: int) -> None:
        begin = time.perf_counter()
        time.sleep(self.point.latency_s)
        self.store.take(self.sizes[row_group])
        end = time.perf_counter()
        self.fetches.append(FetchSample(requests=1, bytes=self.sizes[row_group], begin_s=begin, end_s=end))

    def compute(self) -> None:
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        if self.point.sleeping_op:
            time.sleep(self.point.op_s)
            self.op_s.append(time.perf_counter() - begin)
            return
        while time.thread_time() - begin_cpu < self.point.op_s:
            zlib.crc32(BURNT)
        self.op_s.append(time.thread_time() - begin_cpu)

    def read(self, entry: Path) -> bool:
        if not entry.exists():
            return False
        self.disk.take(len(entry.read_bytes()))
        return True

    def write(self, entry: Path, count: int) -> None:
        entry.write_bytes(bytes(count))
        self.disk.take(count)

    def inputs(self) -> PolicyInputs:
        """What a policy would know: a first epoch without a cache, and a file that is written and read thrice."""
        self.run("off", 1)
        store = store_rates(self.fetches)
        assert store is not None
        probe, count = self.folder / "probe", 2 * SOURCE_BYTES
        write_s, read_s = [], []
        for _ in range(3):
            begin = time.perf_counter()
            self.write(probe, count)
            written = time.perf_counter()
            self.read(probe)
            write_s.append(written - begin)
            read_s.append(time.perf_counter() - written)
        source_bytes = statistics.fmean(self.sizes)
        return PolicyInputs(
            features=(
                FeatureCost(
                    name="feature",
                    cpu_s=statistics.fmean(self.op_s),
                    store_bytes=source_bytes,
                    store_requests=1,
                    bytes=source_bytes * self.point.inflation,
                ),
            ),
            shared=FeatureCost(name="shared"),
            store=store,
            cache=CacheRates(
                read_bytes_per_s=count / statistics.median(read_s),
                write_bytes_per_s=count / statistics.median(write_s),
                memory_bytes_per_s=memory_rate(),
            ),
            threads=self.point.threads,
            rows=len(self.sizes),
            row_groups=len(self.sizes),
            epochs_left=self.point.epochs,
            capacity_bytes=1e12,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A point's decision, and the seconds of each round in each mode."""

    point: Point
    decision: CacheDecision
    rounds: dict[CacheMode, list[float]]

    @property
    def medians(self) -> dict[CacheMode, float]:
        return {mode: statistics.median(seconds) for mode, seconds in self.rounds.items()}

    @property
    def best(self) -> CacheMode:
        return min(MODES, key=lambda mode: self.medians[mode])

    @property
    def right(self) -> bool:
        """Whether the chosen mode takes at most a tenth more than the fastest, or no more than the spread of both."""
        chosen, best = self.decision.mode, self.best
        spread = sum(max(self.rounds[mode]) - min(self.rounds[mode]) for mode in (chosen, best)) / 2
        excess = self.medians[chosen] - self.medians[best]
        return excess <= max((NEAR - 1) * self.medians[best], spread)

    def line(self) -> str:
        point, medians = self.point, self.medians
        costs = (
            f"{point.latency_s * 1e3:5.0f} {point.op_s * 1e3:5.0f} {point.inflation:5.1f} {point.disk_rate / 1e6:5.0f}"
        )
        times = " ".join(f"{medians[mode]:6.2f} ({self.decision.cost_s(mode) or 0.0:5.2f})" for mode in MODES)
        return f"{costs}  {times}  {self.decision.mode:8} {self.best:8} {'right' if self.right else 'WRONG'}"


def measure_point(point: Point, rounds: int) -> Outcome:
    """Let the policy decide, then run every mode."""
    with tempfile.TemporaryDirectory() as folder:
        stand_in = StandIn(point, Path(folder))
        decision = choose_mode(stand_in.inputs())
        seconds: dict[CacheMode, list[float]] = {mode: [] for mode in MODES}
        for number in range(rounds):
            for mode in MODES[number % 3 :] + MODES[: number % 3]:
                seconds[mode].append(stand_in.run(mode, point.epochs))
    return Outcome(point=point, decision=decision, rounds=seconds)


def grid() -> list[Point]:
    """All combinations of short and long requests and ops, small and large results, slow and fast disks."""
    axes = itertools.product((0.002, 0.02), (0.001, 0.008, 0.03), (0.5, 2.5), (20e6, 200e6))
    return [
        Point(latency_s=latency, op_s=op, inflation=inflation, disk_rate=disk) for latency, op, inflation, disk in axes
    ]


def sweep() -> list[Point]:
    """Cachew's sweep: with 48 threads the store is as slow as an op of 88 ms, the cache of features as one of 125.

    Cachew's own borders (350 and 400 ms) are closer together than a stand-in of a few seconds can tell apart.
    """
    threads = 48
    store_rate, disk_rate = threads * SOURCE_BYTES / 0.0875, threads * 2.5 * SOURCE_BYTES / 0.125
    return [
        Point(
            latency_s=0.002,
            op_s=op_ms / 1000,
            inflation=2.5,
            disk_rate=disk_rate,
            store_rate=store_rate,
            sleeping_op=True,
            threads=threads,
            row_groups=96,
            epochs=6,
        )
        for op_ms in (0, 30, 60, 120, 160, 200)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the grid, print a line per point and the share of right choices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", action="store_true", help="Cachew's cross-over instead of the grid")
    parser.add_argument("--tiny", action="store_true", help="two points, one round: does it run?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    points = sweep() if options.sweep else grid()
    rounds = 1 if options.tiny else options.rounds
    outcomes = []
    if not options.json:
        print(f"{'latency, op (ms), inflation, disk (MB/s)':24}  seconds measured (predicted): {', '.join(MODES)}")
    for point in points[:: len(points) - 1] if options.tiny else points:
        outcomes.append(measure_point(point, rounds))
        if not options.json:
            print(outcomes[-1].line(), flush=True)
    share = sum(each.right for each in outcomes) / len(outcomes)
    if options.json:
        lines = [{"chosen": each.decision.mode, "best": each.best, "right": each.right} for each in outcomes]
        print(json.dumps({"points": lines, "share": share}))
    else:
        print(f"right: {share:.2f} of {len(outcomes)} points, at least {SHARE}")
    return int(share < SHARE and not options.tiny)


if __name__ == "__main__":
    sys.exit(main())
