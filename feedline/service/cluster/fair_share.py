"""A feeder's fair part of a cluster that several jobs share, as its scheduler answers.

Runs in: the feeder. Pure: clocks' readings are arguments. A scheduler without Feedline's extension gives no answers:
then all of the cluster counts as this feeder's, and blocks are in the order of their deadlines alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.loader.wire.job_reports import JobAnswer

# Workers that a task names at most, of those that may compute it: 400 bytes.
_NAMED = 16


def priority(due_s: float) -> int:
    """Dask's priority (higher first) for a due time: its milliseconds, negated."""
    return -round(due_s * 1000)


class FairShare:
    """The last answer, and what was submitted and computed since.

    The scheduler charges a job for what its feeders have reported; a feeder adds what it has not reported yet and what
    is in flight, so that its blocks start one after the other at the pace of its part, as seen by the scheduler that
    compares them with those of others. `answer`: None before the first, and from a scheduler that gives none. `route`:
    the workers that compute this feeder's blocks; empty: all.
    """

    def __init__(self) -> None:
        self.answer: JobAnswer | None = None
        self.route: frozenset[str] = frozenset()
        self._turn = 0
        self._answered_s = 0.0
        self._offset_s = 0.0
        self._unreported_s = 0.0

    def begin(self, offset_s: float) -> None:
        """Forget the answers of an earlier scheduler. offset_s: by which the clock of the present one is ahead."""
        self.answer, self._offset_s, self.route = None, offset_s, frozenset()

    def update(self, answer: JobAnswer, answered_s: float) -> None:
        """Take the scheduler's next answer. answered_s: when it came, by a clock of this host that is never set."""
        self.answer, self._answered_s, self._unreported_s = answer, answered_s, 0.0
        if answer.route is not None:
            self.route = frozenset(answer.route)

    def computed(self, busy_s: float) -> None:
        self._unreported_s += busy_s

    def take_turn(self, workers: frozenset[str]) -> frozenset[str]:
        """Some of the workers for the next task, all of them in turn: Dask takes the one that is least busy."""
        if len(workers) <= _NAMED:
            return workers
        ordered = sorted(workers)  # of 40: 0 to 15, then 16 to 31, then 32 to 39 and 0 to 7
        first = self._turn % len(ordered)
        self._turn += _NAMED
        return frozenset((ordered + ordered)[first : first + _NAMED])

    def threads(self, all_threads: int) -> int:
        """This feeder's part of the cluster's threads, at least one."""
        if self.answer is None:
            return all_threads
        return max(1, min(all_threads, math.ceil(self.answer.threads - 1e-6)))

    def cores(self, threads: int, all_threads: int) -> float:
        """The cores of the cluster's hosts that so many of all threads can count on; 0: unknown."""
        return 0.0 if self.answer is None else self.answer.cores * min(1.0, threads / all_threads)

    def now_s(self, clock_s: float, host_s: float) -> float:
        """The scheduler's clock. clock_s: that of `update`, host_s: seconds since 1970, by this host."""
        return host_s + self._offset_s if self.answer is None else self.answer.now_s + clock_s - self._answered_s

    def start_s(self, block_s: float, in_flight: int) -> float:
        """The virtual start of the next block, by the scheduler's clock; -inf without an answer. block_s: that one
        takes, as far as is known. in_flight: blocks of this feeder."""
        if self.answer is None:
            return -math.inf
        charged_s = self._unreported_s + in_flight * block_s
        return self.answer.virtual_start_s + charged_s / max(self.answer.threads, 1e-3)
