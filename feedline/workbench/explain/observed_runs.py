"""Explain a run that is running on this host, or the last one, from the status of its feeders.

Runs in: the process of `feedline explain`. Feeders write their status anyway: nothing is added to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from feedline.config import PipelineSpec
from feedline.errors import PlanError
from feedline.loader.limits.run_facts import Capacity, RunFacts, capacity_of, with_other_cpu
from feedline.loader.wire.facts import FeederStats
from feedline.loader.wire.run_status import FILES_PHASE, FeederStatus, RankStatus
from feedline.progress import report_progress
from feedline.workbench.explain.explained_costs import Explanation, Measuring, RankSamples, Source

_LOOK_S = 0.5  # feeders write every two seconds


def watch_feeders(
    spec: PipelineSpec,
    job: str,
    statuses: Callable[[], Sequence[FeederStatus]],
    measuring: Measuring,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> Explanation:
    """Watch the feeders of a job for some seconds. statuses: of all feeders of this host; job: the name that those of
    the pipeline have.

    Raises PlanError if no feeder of it feeds a trainer, or all of its trainers wait for files to land.
    """
    seen: dict[str, list[FeederStatus]] = {}
    waited_s = 0.0
    while True:
        for status in statuses():
            if status.job == job and any(rank.trainer for rank in status.ranks):
                history = seen.setdefault(status.feeder, [])
                if not history or status.now_s > history[-1].now_s:
                    history.append(status)
        if not seen:
            raise _nothing_runs(spec, statuses())
        if measuring.stop() or waited_s >= measuring.seconds:
            break
        report_progress("watching", int(waited_s), math.ceil(measuring.seconds), "s")
        pause(_LOOK_S)
        waited_s += _LOOK_S
    if all(rank.state == FILES_PHASE for history in seen.values() for rank in history[-1].ranks if rank.trainer):
        raise PlanError(
            f"there is nothing to explain: got a run of {spec.name} that waits for files to land, expected one that is "
            "fed. `feedline plan` lists what has landed; attach again when its next epoch has begun, or give --last"
        )
    ranks = [each for history in seen.values() for each in _ranks_of(spec, history, measuring.store_bytes_per_s)]
    return _explanation(spec, "running", ranks, stopped=measuring.stop())


def explain_last(
    spec: PipelineSpec, status: FeederStatus | None, *, store_bytes_per_s: float | None = None
) -> Explanation:
    """Explain the last run from its last status, as one sample: rates have no interval.

    Raises PlanError if there is none, or it delivered nothing.
    """
    if status is None or not any(rank.stats.batches for rank in status.ranks):
        what = "no run of this pipeline" if status is None else "a run that delivered nothing"
        raise PlanError(
            f"there is no last run to explain: got {what} in {spec.work_dir}, expected one. Run it first, or explain a "
            "short run: leave --last out"
        )
    ranks = [
        RankSamples(
            rank=rank.rank,
            samples=(
                _sample(rank, RankStatus(rank=rank.rank, state="feeding", stats=FeederStats()), rank.stats.fed_s),
            ),
            capacity=_capacity(spec, status, rank, store_bytes_per_s),
        )
        for rank in status.ranks
        if rank.stats.batches
    ]
    return _explanation(spec, "last run", ranks, stopped=False)


def _explanation(spec: PipelineSpec, source: Source, ranks: Iterable[RankSamples], *, stopped: bool) -> Explanation:
    ordered = tuple(sorted(ranks, key=lambda each: each.rank))
    seconds = max((sum(sample.wall_s for sample in each.samples) for each in ordered), default=0.0)
    return Explanation(name=spec.name, source=source, ranks=ordered, seconds=seconds, stopped=stopped)


def _ranks_of(
    spec: PipelineSpec, history: Sequence[FeederStatus], store_bytes_per_s: float | None
) -> Iterable[RankSamples]:
    """The samples of each rank of a feeder, between its statuses."""
    last = history[-1]
    for rank in last.ranks:
        if not rank.trainer:
            continue
        samples, cpu_s = list[RunFacts](), list[float]()
        for old, new in pairwise(history):
            before, now = _rank(old, rank.rank), _rank(new, rank.rank)
            if before is not None and now is not None and before.trainer == now.trainer:
                samples.append(_sample(now, before, new.now_s - old.now_s))
                cpu_s.append(_cpu_for(rank.rank, new, old))
        if not spec.cluster.is_elsewhere:
            samples = with_other_cpu(samples, cpu_s)
        yield RankSamples(
            rank=rank.rank,
            samples=tuple(samples) or (RunFacts(),),
            capacity=_capacity(spec, last, rank, store_bytes_per_s),
        )


def _rank(status: FeederStatus, number: int) -> RankStatus | None:
    return next((each for each in status.ranks if each.rank == number), None)


def _cpu_for(rank: int, new: FeederStatus, old: FeederStatus) -> float:
    """The CPU seconds of a feeder between two statuses, without those for other ranks; with those of this rank's blocks
    in worker processes, whose other threads are not known."""
    # the process took 4.5 s, blocks of another rank 2 s in its threads -> 2.5 s
    seconds = new.cpu_s - old.cpu_s
    for each in new.ranks:
        if (before := _rank(old, each.rank)) is None:
            continue
        facts = RunFacts.between(each.stats, before.stats, wall_s=0.0, trainer_wait_s=None)
        if each.rank != rank:
            seconds -= facts.copy_cpu_s + (facts.block_cpu_s if new.form == "threads" else 0.0)
        elif new.form != "threads":
            seconds += facts.block_cpu_s
    return seconds


def _sample(new: RankStatus, old: RankStatus, wall_s: float) -> RunFacts:
    wait_s = min(wall_s, max(0.0, new.stalled_s - old.stalled_s))
    return RunFacts.between(new.stats, old.stats, wall_s=wall_s, trainer_wait_s=wait_s)


def _capacity(spec: PipelineSpec, status: FeederStatus, rank: RankStatus, store_bytes_per_s: float | None) -> Capacity:
    return capacity_of(
        spec, rank.stats, cores=status.cores, workers=status.workers, store_bytes_per_s=store_bytes_per_s
    )


def _nothing_runs(spec: PipelineSpec, others: Sequence[FeederStatus]) -> PlanError:
    running = ", ".join(sorted({f"{each.name} ({each.pipeline})" for each in others}))
    return PlanError(
        f"there is no run of this pipeline to attach to: got {running or 'no feeder'} on this host, expected a feeder "
        f"of {spec.name} with a trainer. Start its training, give the same --set as it has, or leave --attach out"
    )
