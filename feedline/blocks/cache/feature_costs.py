"""Measure what each feature costs to compute, to write and to read again, in the first segments of a process.

Runs in: every process that computes blocks with a cache that decides for itself; any thread may take a measurement.

Features are computed together, so those with the same ops on a column of the same type are a *class*, and are taken to
cost the same. In the first segment that is computed, what was written is read back, class by class; in the second,
classes are computed one after the other; in three more all features together, as always. Then

    alone(class) = shared + class        together = shared + sum of classes

where what is `shared` (the filter, the footer, a call) is paid once by each pass.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from feedline.blocks.cache.cache_costs import FeatureCost
from feedline.blocks.cache.cached_features import CachedFeatures
from feedline.dataclass import dataclass
from feedline.transforms.compile.compiled import CompiledFeatures

_MOST_CLASSES = 6  # each is compiled, and one segment computed, alone; the smallest ones are one class
_LEAST_SHARE = 0.1  # of what a class takes alone that is its own: noise makes no class free
_REPEATED = 3  # readings, and segments computed together: the least is what no other program has disturbed
_SMALL = 1e-12

Clock = Callable[[], tuple[float, float]]  # seconds, of the thread's CPU and of waiting and computing
A = TypeVar("A")
R = TypeVar("R")
Compute = Callable[[Collection[str]], CachedFeatures]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds per row. wait_s: what is not CPU."""

    cpu_s: float
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFeatures:
    """What a segment's features cost per row, and what they share. write_bytes_per_s: of a file, into the kernel.

    found_s: of finding a feature in memory, which is a part of its `hit_cpu_s`. wait_s: for the store, of all features;
    0 for a local table, whose waiting counts as computing.
    """

    features: tuple[FeatureCost, ...]
    shared: FeatureCost
    write_bytes_per_s: float
    found_s: Mapping[str, float]
    wait_s: float


def feature_classes(features: CompiledFeatures, names: Collection[str]) -> list[frozenset[str]]:
    """Some features by their ops, groups and the type of their column; the smallest classes together."""
    classes: dict[tuple[object, ...], set[str]] = {}
    types = {field.name: str(field.type) for field in features.schema}
    for feature in features.features:
        if feature.name in names:
            ops = tuple(call.op for call in feature.ops)
            source = types.get(feature.column or "", feature.op.op if feature.op is not None else "expression")
            classes.setdefault((feature.group, feature.dedup, source, ops), set()).add(feature.name)
    ordered = sorted(map(frozenset, classes.values()), key=lambda each: (-len(each), min(each)))
    first, rest = ordered[: _MOST_CLASSES - 1], ordered[_MOST_CLASSES - 1 :]
    return [*first, *([frozenset().union(*rest)] if rest else [])]


def thread_clock() -> tuple[float, float]:
    """Seconds of this thread's CPU, and of all but waiting for a CPU, which other programs had."""
    delayed_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):  # no Linux, or one without these counts
        delayed_ns = int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    return time.thread_time(), time.perf_counter() - delayed_ns / 1e9


class FeatureMeasurements:
    """What was measured so far of some features. rows: of the segment."""

    def __init__(self, classes: Sequence[frozenset[str]], clock: Clock = thread_clock) -> None:
        self._classes, self._clock = classes, clock
        self._lock = threading.Lock()
        self._names = frozenset[str]().union(*classes)
        self._hits: dict[frozenset[str], tuple[float, float]] = {}  # found, laid out
        self._alone: dict[frozenset[str], Took] = {}
        self._together: list[Took] = []
        self._bytes: dict[str, float] = {}
        self._write_bytes_per_s = 0.0

    def compute(
        self, names: Collection[str], rows: int, compute: Compute, prepare: Callable[[Collection[str]], object]
    ) -> CachedFeatures:
        """These features of a segment. compute: some of them. prepare: compiles what computes them."""
        if frozenset(names) != self._names or not self._hits or len(self._together) == _REPEATED:
            return compute(names)
        prepare(names)
        if self._alone:
            features, took = self._took(rows, compute, names)
            with self._lock:
                self._together = [*self._together, took][:_REPEATED]
            return features
        features = CachedFeatures({}, {})
        alone: dict[frozenset[str], Took] = {}
        for each in self._classes:
            prepare(each)
            some, alone[each] = self._took(rows, compute, each)
            features = features.merge(some)
        with self._lock:
            self._alone = alone
            self._bytes = {name: features.columns[name].nbytes / rows for name in names}
        return features

    def needs_hits(self, names: Collection[str]) -> bool:
        """Whether what was just written of a segment is to be read back."""
        return not self._hits and frozenset(names) == self._names

    def read_back(
        self,
        rows: int,
        nbytes: int,
        written_s: float,
        find: Compute,
        lay: Callable[[CachedFeatures], object],
    ) -> None:
        """Read what was written. find: some features, in the folder. lay: puts them side by side."""
        hits = {}
        for each in self._classes:
            found_s, laid_s = list[float](), list[float]()
            for _ in range(_REPEATED):
                features, found = self._took(rows, find, each)
                if len(features.columns) < len(each):  # evicted, or damaged
                    return
                _, laid = self._took(rows, lay, features)
                found_s.append(found.cpu_s + found.wait_s)
                laid_s.append(laid.cpu_s + laid.wait_s)
            hits[each] = min(found_s), min(laid_s)
        with self._lock:
            self._hits = hits
            self._write_bytes_per_s = nbytes / max(written_s, _SMALL)

    def costs(self, store_bytes: float = 0.0) -> MeasuredFeatures | None:
        """What features cost; None until all is measured. store_bytes: per row, of a remote table; else 0."""
        with self._lock:
            if len(self._together) < _REPEATED:
                return None
            together = min(self._together, key=lambda took: took.cpu_s + took.wait_s)
            alone = [self._alone[each] for each in self._classes]
            own_cpu_s = _own_parts([each.cpu_s for each in alone], together.cpu_s)
            own_wait_s = _own_parts([each.wait_s for each in alone], together.wait_s)
            share = store_bytes / max(together.wait_s, _SMALL)  # bytes of a second of waiting

            def cost(name: str, cpu_s: float, wait_s: float, hit_s: float = 0.0) -> FeatureCost:
                size = self._bytes.get(name, 0.0)
                waits = {"cpu_s": cpu_s, "store_bytes": wait_s * share} if store_bytes else {"cpu_s": cpu_s + wait_s}
                return FeatureCost(name=name, bytes=size, hit_cpu_s=hit_s, **waits)

            features, found_s = list[FeatureCost](), dict[str, float]()
            for each, cpu_s, wait_s in zip(self._classes, own_cpu_s, own_wait_s, strict=True):
                count, hits = len(each), self._hits[each]
                found_s |= dict.fromkeys(each, hits[0] / count)
                features += [cost(name, cpu_s / count, wait_s / count, sum(hits) / count) for name in sorted(each)]
            shared = cost("", max(0.0, together.cpu_s - sum(own_cpu_s)), max(0.0, together.wait_s - sum(own_wait_s)))
            return MeasuredFeatures(
                features=tuple(features),
                shared=shared,
                write_bytes_per_s=self._write_bytes_per_s,
                found_s=found_s,
                wait_s=together.wait_s if store_bytes else 0.0,
            )

    def _took(self, rows: int, work: Callable[[A], R], argument: A) -> tuple[R, Took]:
        before_cpu_s, before_s = self._clock()
        result = work(argument)
        after_cpu_s, after_s = self._clock()
        cpu_s, whole_s = after_cpu_s - before_cpu_s, after_s - before_s
        return result, Took(cpu_s / rows, max(0.0, whole_s - cpu_s) / rows)


def _own_parts(alone: Sequence[float], together: float) -> list[float]:
    """What each pass takes besides the part that all have in common, scaled so that the sum is at most `together`."""
    # 5 and 7 s alone, 10 s together: 2 s are common to both -> 3 and 5 s
    if not alone:
        return []
    shared = max(0.0, sum(alone) - together) / max(1, len(alone) - 1) if len(alone) > 1 else 0.0
    own = [max(_LEAST_SHARE * each, each - shared) for each in alone]
    total = sum(own)
    return [each * min(1.0, together / total) if total else 0.0 for each in own]
