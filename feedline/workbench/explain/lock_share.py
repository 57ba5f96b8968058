"""Measure the share of a block thread's CPU time for which it holds the interpreter's lock, on sampled blocks.

Runs in: the process that explains, with nothing else running in it. Threads of one process compute the same blocks. Of
two, each needs the lock for a share h of its time, and finds it held for a share h of that: it waits h * h seconds per
CPU second. Where threads mostly wait for a store, so many run that one other computes on average.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np

from feedline.blocks.request import BlockResult
from feedline.loader.limits.run_facts import RunFacts, sum_samples
from feedline.workbench.explain.cpu_time import CpuBudget

_ROUNDS = 3
_ROUND_S = 0.1  # of each thread: its start is a small part of that
_MOST_THREADS = 16  # each holds a block
_TIMES = tuple({each.name for each in fields(RunFacts)} & {each.name for each in fields(BlockResult)} - {"rows"})


def measure_lock_share(run: Callable[[], Sequence[BlockResult]], budget: CpuBudget) -> float:
    """The share, from 0 to 1. run: computes some blocks; called by several threads at once. One round is measured at
    least, whatever is left of the budget."""
    shares = list[float]()
    while not shares or (len(shares) < _ROUNDS and budget.left_s > budget.used_s / len(shares)):
        alone = _computed(run, 1)
        busy = alone.block_busy_s
        threads = min(_MOST_THREADS, 1 + round(busy / max(busy - alone.fetch_s, busy / _MOST_THREADS)) if busy else 2)
        shares.append(lock_share(alone, _computed(run, threads), threads))
    return float(np.median(shares))


def lock_share(alone: RunFacts, together: RunFacts, threads: int) -> float:
    """The share by what one thread waits, and so many together."""
    if not (alone.block_cpu_s > 0 and together.block_cpu_s > 0 and together.block_busy_s > 0):
        return 0.0
    others = (threads - 1) * max(0.0, 1 - together.fetch_s / together.block_busy_s)
    waits = together.lock_wait_s / together.block_cpu_s - alone.lock_wait_s / alone.block_cpu_s
    return min(1.0, (max(0.0, waits) / others) ** 0.5) if others > 0 else 0.0


def _computed(run: Callable[[], Sequence[BlockResult]], threads: int) -> RunFacts:
    """Sums over the blocks that so many threads compute at the same time."""
    begins = threading.Barrier(threads)

    def compute() -> RunFacts:
        found: list[RunFacts] = []
        begins.wait()
        ends_s = time.perf_counter() + _ROUND_S
        while not found or time.perf_counter() < ends_s:
            results = run()
            found.append(RunFacts(**{name: sum(getattr(each, name) for each in results) for name in _TIMES}))
        return sum_samples(found)

    with ThreadPoolExecutor(threads, "feedline-lock-share") as pool:
        return sum_samples(list(pool.map(lambda _: compute(), range(threads))))
