"""Choose the workers that compute a feeder's blocks, so that it connects to a few of a large cluster.

Runs in: the scheduler. Pure: needs and workers are arguments.

A worker's coverage is the sum over its routes of the part of it that each needs. A route takes the workers with the
least coverage, in the order of a hash of feeder and worker (rendezvous hashing), so that routes overlap in all ways.
See docs/decisions/0028-routes.md.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import field

from feedline.dataclass import dataclass

# Workers of a route: at least, and of those that the feeder needs. Clusters of no more have no routes.
LEAST_WORKERS, HEADROOM = 16, 1.5
# The largest share of all workers for which a route begins, and up to which it stays: a larger one saves little, and
# only unrestricted tasks wait in the scheduler's queue, which knows the first free thread of all workers.
_BEGINS, _STAYS = 0.5, 0.75
# A route is kept while it has up to this multiple of the workers that it should have.
_EXCESS = 2
# The share of a route that is exchanged with one report.
_EXCHANGED = 0.25
# Coverage is counted in sixteenths of a worker. A feeder that needs little counts as one that needs four.
_UNIT, _LEAST_NEED = 16, 4.0


def route_size(need_workers: float, workers: int, current: int) -> int:
    """The workers of a route; 0 without one. need_workers: that are busy for the feeder. current: of its route now."""
    if workers <= LEAST_WORKERS:
        return 0
    # Of 200 workers: a need of 20 -> 30, but a route of 60 stays, one of 61 shrinks to 30. A need of 70 -> 105, more
    # than half: no route begins, but one of 105 stays.
    size = max(LEAST_WORKERS, math.ceil(HEADROOM * need_workers - 1e-6))
    if size > workers * (_STAYS if current else _BEGINS):
        return 0
    return min(current, workers) if size <= current <= _EXCESS * size else size


def route_digest(workers: Iterable[str]) -> str:
    """Names a route in reports and answers; "" without one."""
    text = " ".join(sorted(workers))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    workers: frozenset[str]
    weight: int  # of each worker, in units


@dataclass(slots=True)
class Routes:
    _routes: dict[str, _Route] = field(default_factory=dict)  # by feeder
    _coverage: dict[str, int] = field(default_factory=dict)  # by worker, in units

    def __len__(self) -> int:
        return len(self._routes)

    def update(self, feeder: str, need_workers: float, workers: AbstractSet[str]) -> frozenset[str]:
        """The feeder's route among these workers, from now on; empty: it may use all."""
        route = self._routes.get(feeder)
        kept = {worker for worker in route.workers if worker in workers} if route is not None else set()
        self._drop(feeder)
        size = route_size(need_workers, len(workers), len(kept))
        if not size:
            return frozenset()
        weight = round(_UNIT * min(1.0, max(need_workers, _LEAST_NEED) / size))
        if len(kept) > size:
            kept = set(heapq.nsmallest(size, kept, key=lambda worker: self._rank(feeder, worker)))
        elif len(kept) < size:
            others = (worker for worker in workers if worker not in kept)
            kept |= set(heapq.nsmallest(size - len(kept), others, key=lambda worker: self._rank(feeder, worker)))
        else:
            self._exchange(feeder, kept, weight, workers)
        self._routes[feeder] = route = _Route(workers=frozenset(kept), weight=weight)
        self._count(route, 1)
        return route.workers

    def size(self, feeder: str) -> int:
        route = self._routes.get(feeder)
        return 0 if route is None else len(route.workers)

    def coverage(self, worker: str) -> float:
        return self._coverage.get(worker, 0) / _UNIT

    def forget(self, others: Collection[str]) -> None:
        for feeder in [each for each in self._routes if each not in others]:
            self._drop(feeder)

    def _exchange(self, feeder: str, kept: set[str], weight: int, workers: AbstractSet[str]) -> None:
        """Give up the workers with most coverage for those with least, where that evens them out.

        The feeder's own weight is not in the coverage: with it, the first must be ahead by more than twice of that.
        """
        # Most reports end here: the least coverage of all workers bounds that of the others, at the speed of a dict.
        bound = min(self._coverage.values(), default=0) if len(self._coverage) >= len(workers) else 0
        if max(self._coverage.get(each, 0) for each in kept) - bound <= weight:
            return
        for _ in range(max(1, int(len(kept) * _EXCHANGED))):
            least = min((self._coverage.get(each, 0) for each in workers if each not in kept), default=None)
            most = max(self._coverage.get(each, 0) for each in kept)
            if least is None or most - least <= weight:
                return
            kept.remove(max((each for each in kept if self._coverage.get(each, 0) == most), key=_draw(feeder)))
            open_ones = (each for each in workers if each not in kept and self._coverage.get(each, 0) == least)
            kept.add(min(open_ones, key=_draw(feeder)))

    def _rank(self, feeder: str, worker: str) -> tuple[int, bytes]:
        return self._coverage.get(worker, 0), _draw(feeder)(worker)

    def _drop(self, feeder: str) -> None:
        route = self._routes.pop(feeder, None)
        if route is not None:
            self._count(route, -1)

    def _count(self, route: _Route, sign: int) -> None:
        for worker in route.workers:
            units = self._coverage.get(worker, 0) + sign * route.weight
            if units:
                self._coverage[worker] = units
            else:
                self._coverage.pop(worker, None)


def _draw(feeder: str) -> Callable[[str], bytes]:
    """The places of workers in a feeder's own order: a hash of both."""
    return lambda worker: hashlib.blake2b(f"{feeder} {worker}".encode(), digest_size=8).digest()
