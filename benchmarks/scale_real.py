"""Scenarios of `scale.py` on a real cluster, in real time, and the costs that the simulation takes from one."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psutil
from scale_cluster import RankThread, Workers, counted, cpu_s, scheduler_process
from scale_feeder import Workload
from scale_scenario import LOST_SHARE, MEASURED_S, WARM_S, Outcome, Scenario, counts_of, recovery
from scale_simulation import Costs

# A small share of the CPU, so that workers and feeders of one process do not wait for each other.
_BUSY_BLOCK_S, _IDLE_S, _COUNT_S = 1.0, 5.0, 10.0
_WORKERS, _RANKS = 64, 8


@dataclass(frozen=True, slots=True)
class _Running:
    """A cluster with feeders that have started."""

    workers: Workers
    ranks: list[RankThread]
    scheduler: psutil.Process

    def counts(self) -> tuple[int, int]:
        """Blocks finished and steps taken so far."""
        return counts_of([rank.feeder for rank in self.ranks])


@contextlib.contextmanager
def _running(scenario: Scenario, *, counting: bool = False) -> Iterator[tuple[_Running, Any, Callable[[], None]]]:
    """A cluster with its feeders, what is counted on the wire, and a call that starts the feeders."""
    with contextlib.ExitStack() as stack:
        count = stack.enter_context(counted())
        workers = Workers()
        stack.callback(workers.close)
        if counting:
            address, process = workers.start_scheduler(), psutil.Process()
        else:
            address, process = stack.enter_context(scheduler_process())
        count.scheduler = address
        workers.start(address, scenario.workers, scenario.threads)
        schedule = scenario.workload.schedule()
        ranks = [
            RankThread(address, scenario.workload, schedule, lane=lane, step_s=scenario.step_s)
            for lane in range(scenario.ranks)
        ]

        def start() -> None:
            for rank in ranks:
                stack.callback(rank.close)
                rank.start(time.monotonic())

        yield _Running(workers, ranks, process), count, start


def run(scenario: Scenario) -> Outcome:
    """As `scale.simulate`, in real time."""
    with _running(scenario) as (cluster, _, start):
        start()
        time.sleep(WARM_S)
        before, busy_s, began_s = cluster.counts(), cpu_s(cluster.scheduler), time.monotonic()
        time.sleep(MEASURED_S)
        after, passed_s = cluster.counts(), time.monotonic() - began_s
        load = (cpu_s(cluster.scheduler) - busy_s) / passed_s
        in_flight = sum(rank.feeder.window.in_flight for rank in cluster.ranks)
        peers = [rank.connections() for rank in cluster.ranks]
        lost_s = time.monotonic()
        cluster.workers.lose(max(1, round(scenario.workers * LOST_SHARE)))
        time.sleep(MEASURED_S)
        feeders = [rank.feeder for rank in cluster.ranks]
        return Outcome(
            blocks_per_s=(after[0] - before[0]) / passed_s,
            delivered=(after[1] - before[1]) * scenario.step_s / passed_s / scenario.ranks,
            scheduler=load,
            in_flight=in_flight,
            feeder_connections=_middle_and_most([len(connected) for connected in peers]),
            worker_connections=_middle_and_most(list(Counter(itertools.chain(*peers)).values())),
            recovery_s=recovery(feeders, lost_s, time.monotonic()),
        )


def _middle_and_most(counts: list[int]) -> tuple[float, int]:
    return statistics.median(counts), max(counts)


def measure_costs(known: Costs) -> tuple[Costs, str]:
    """The scheduler's CPU time per worker and per task, the messages of a task and their bytes; and a line about them.

    The times at two rates are taken for a line, whose value at no blocks is `awake_s`. known: for what is not measured.
    """
    workload = Workload(files=100_000, lanes=_RANKS, block_s=_BUSY_BLOCK_S)
    busy = Scenario(name="", workers=_WORKERS, threads=1, ranks=_RANKS, step_s=0.001, workload=workload)
    rates, loads = [], []
    for block_s in (_BUSY_BLOCK_S, 3 * _BUSY_BLOCK_S):
        with _running(replace(busy, workload=replace(workload, block_s=block_s))) as (cluster, _, start):
            idle_s = cpu_s(cluster.scheduler)
            time.sleep(_IDLE_S)
            worker_s = (cpu_s(cluster.scheduler) - idle_s) / _IDLE_S / _WORKERS
            start()
            time.sleep(WARM_S / 2)
            before, busy_s, began_s = cluster.counts(), cpu_s(cluster.scheduler), time.monotonic()
            time.sleep(WARM_S / 2)
            blocks = cluster.counts()[0] - before[0]
            passed_s = time.monotonic() - began_s
            rates.append(blocks / passed_s)
            loads.append((cpu_s(cluster.scheduler) - busy_s) / passed_s - worker_s * _WORKERS)
    task_s = (loads[0] - loads[1]) / (rates[0] - rates[1])
    awake_s = max(0.0, loads[0] - task_s * rates[0])
    paced = replace(busy, step_s=_RANKS / workload.steps_per_block / 40, workload=replace(workload, block_s=1.0))
    with _running(paced, counting=True) as (cluster, count, start):
        start()
        time.sleep(_COUNT_S)
        first = (cluster.counts()[0], count.messages, count.nbytes, count.direct_messages, count.direct_bytes)
        time.sleep(_COUNT_S)
        last = (cluster.counts()[0], count.messages, count.nbytes, count.direct_messages, count.direct_bytes)
    finished, messages, nbytes, direct, direct_bytes = (end - begin for begin, end in zip(first, last, strict=True))
    finished = max(1, finished)
    costs = replace(
        known,
        task_s=task_s,
        worker_s=worker_s,
        awake_s=awake_s,
        messages=messages / finished,
        wire_bytes=nbytes / finished,
    )
    line = (
        f"the scheduler's CPU time at {rates[0]:.0f} and {rates[1]:.0f} blocks/s: {1e3 * task_s:.2f} ms per block, "
        f"and {1e3 * awake_s:.0f} ms per second, {1e3 * worker_s:.2f} per worker and second; per block "
        f"{costs.messages:.1f} messages of its connections, "
        f"{costs.wire_bytes:,.0f} bytes, and {direct / finished:.1f} between worker and feeder, "
        f"{direct_bytes / finished:,.0f} bytes for {workload.block_bytes:,} of the block"
    )
    return costs, line
