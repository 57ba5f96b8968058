"""Explain a pipeline by a short run: drain its own ring for some seconds, at the pace of a trainer if one is given.

Runs in: the process of `feedline explain`; a thread drains, as in `feedline run --sink null`. The time begins with the
first batch; epochs follow each other until it is over.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from itertools import pairwise

from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.loader.limits.run_facts import RunFacts, capacity_of, with_other_cpu
from feedline.loader.ring.client import FeederClient, Slot
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.wire.facts import FeederStats, Hello, PlanFacts
from feedline.progress import report_progress
from feedline.resources.thread_clocks import process_cpu_s, tree_cpu_s
from feedline.service.drain import DrainProgress, start_draining, stop_draining
from feedline.workbench.explain.explained_costs import Explanation, HeadspaceFacts, Measuring, RankSamples

_LOOK_S = 0.05
_STEP_END_S = 10.0  # that a step under way may take after the run's end
_MOST_EPOCHS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The counts of a drain at a moment. cpu_s: of this process; feeder_cpu_s: of the feeder's, and of those that it
    started (0: unknown)."""

    at_s: float
    cpu_s: float
    feeder_cpu_s: float
    rows: int
    wait_s: float
    stats: FeederStats


def run_shortly(
    access: FeederAccess,
    spec: PipelineSpec,
    measuring: Measuring,
    *,
    step_s: float | None,
    cores: float,
    headspace: bool = False,
) -> Explanation:
    """Drain rank 0 of 1 for some seconds after its first batch. step_s: of a simulated trainer (None: there is none).
    What was measured until it was stopped is explained. Raises what the feeder raised."""
    feed = FeederClient(access)
    ended = threading.Event()

    def train(_facts: PlanFacts, _slot: Slot) -> None:
        if step_s is not None:
            ended.wait(step_s)

    first = 0 if spec.is_followed else None
    epochs = spec.epochs if spec.is_followed else _MOST_EPOCHS
    readings: list[_Reading] = []
    progress: DrainProgress | None = None
    try:
        feed.start()
        hello = Hello(rank=0, world_size=1, epoch=first)
        progress = start_draining(
            feed, hello, rank=0, epochs=epochs, stop=lambda: measuring.stop() or ended.is_set(), train=train
        )
        _sample(progress, readings, measuring, has_workers=spec.cluster.kind in ("pool", "processes"))
        if progress.error is not None:
            raise progress.error
    finally:
        ended.set()
        if progress is not None:
            stop_draining(feed, progress, _STEP_END_S)
        feed.close()
    samples = [_sample_of(old, new, has_trainer=step_s is not None) for old, new in pairwise(readings)]
    if not spec.cluster.is_elsewhere:
        samples = with_other_cpu(samples, [new.feeder_cpu_s - old.feeder_cpu_s for old, new in pairwise(readings)])
    stats = readings[-1].stats if readings else FeederStats()
    capacity = capacity_of(spec, stats, cores=cores, store_bytes_per_s=measuring.store_bytes_per_s)
    if not samples:  # nothing was delivered
        samples = [RunFacts(planning_s=0.0 if progress.feeder is None else progress.feeder.planning_s)]
    measured_s = sum(sample.wall_s for sample in samples)
    gain = None
    if headspace and step_s and readings and progress.batches:
        pace, rows = progress.rows / progress.batches / step_s, sum(sample.rows for sample in samples)
        gain = HeadspaceFacts(rows_per_s=pace, gain=max(1.0, pace * measured_s / max(rows, 1)))
    return Explanation(
        name=spec.name,
        source="short run",
        ranks=(RankSamples(rank=0, samples=tuple(samples), capacity=capacity),),
        seconds=measured_s,
        stopped=measuring.stop(),
        headspace=gain,
    )


def _sample(progress: DrainProgress, readings: list[_Reading], measuring: Measuring, *, has_workers: bool) -> None:
    """Read the counts of each sample, from the first batch on, until the time is over or the drain has ended.
    has_workers: the feeder starts processes."""
    tick = threading.Event()
    opened_s = time.perf_counter()
    while not measuring.stop() and not progress.done and not progress.rows:
        if (planning := progress.planning) is not None:
            report_progress(planning.phase, planning.done, planning.total, planning.unit)
        else:
            report_progress("planning", int(time.perf_counter() - opened_s), None, "s")
        tick.wait(_LOOK_S)
    if not progress.rows:
        return
    first = _read(progress, has_workers)
    readings.append(replace(first, stats=replace(first.stats, planning_s=0.0)))  # that time comes before the samples
    began_s, seconds = first.at_s, measuring.seconds
    while True:
        due_s = min(readings[-1].at_s + measuring.sample_s, began_s + seconds)
        while not (is_over := measuring.stop() or progress.done) and time.perf_counter() < due_s:
            report_progress("running", int(time.perf_counter() - began_s), math.ceil(seconds), "s")
            tick.wait(min(_LOOK_S, max(0.001, due_s - time.perf_counter())))
        readings.append(_read(progress, has_workers))
        if is_over or readings[-1].at_s >= began_s + seconds:
            return


def _read(progress: DrainProgress, has_workers: bool) -> _Reading:
    now_s = time.perf_counter()
    cpu_of = tree_cpu_s if has_workers else process_cpu_s
    return _Reading(
        at_s=now_s,
        cpu_s=time.process_time(),
        feeder_cpu_s=0.0 if progress.answer is None else cpu_of(progress.answer.feeder.feeder),
        rows=progress.rows,
        wait_s=progress.wait_s if progress.feed is None else progress.feed.stats.wait_until(now_s),
        stats=progress.feeder or FeederStats(),
    )


def _sample_of(old: _Reading, new: _Reading, *, has_trainer: bool) -> RunFacts:
    wall_s = new.at_s - old.at_s
    wait_s = min(wall_s, new.wait_s - old.wait_s) if has_trainer else None
    cpu_s = new.cpu_s - old.cpu_s if has_trainer else 0.0
    facts = RunFacts.between(new.stats, old.stats, wall_s=wall_s, trainer_wait_s=wait_s, trainer_cpu_s=cpu_s)
    return replace(facts, rows=new.rows - old.rows)  # the feeder announces ahead
