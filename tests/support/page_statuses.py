"""Statuses of feeders for tests: of a job of so many ranks, some seconds after its start."""

from __future__ import annotations

from dataclasses import replace

from feeder_statuses import STATUS

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, PlanStatus, RankStatus, ReadPart

START_S = 1_790_000_000.0


def rank_at(rank: int, seconds: float, *, wait: float = 0.4, rows_per_s: float = 10_000) -> RankStatus:
    """A rank that is fed since second 0. wait: the share of time that its trainer waits."""
    rows = int(rows_per_s * seconds)
    delivery = BlockStats(
        blocks=rows // 8192,
        nbytes_read=rows * 120,
        nbytes_encoded=rows * 80,
        rows=rows,
        times=BlockTimes(
            read_s=seconds * 1.1,
            read_cpu_s=seconds * 0.9,
            fetch_s=seconds * 0.1,
            transform_s=seconds * 0.3,
            transform_cpu_s=seconds * 0.3,
            encode_s=seconds * 0.2,
            encode_cpu_s=seconds * 0.2,
        ),
        cached=CacheCounts(found=int(seconds) * 30, computed=int(seconds) * 10, nbytes_read=rows * 40),
    )
    stats = FeederStats(
        batches=rows // 1000,
        rows=rows,
        nbytes=rows * 80,
        wait_blocks_s=seconds * wait,
        wait_slots_s=seconds * (1 - wait) / 2,
        step=rows // 1000 % 4000,
        steps=4000,
        ring_slots=8,
        ring_free=5,
        blocks_in_flight=3,
        window=4,
        window_reason="hides the slowest block",
        threads=2,
        delivery=delivery,
    )
    plan = PlanStatus(
        plan="3f" * 16,
        snapshot="a9" * 16,
        rows=4_000_000,
        rows_dropped=123,
        steps=4000,
        batch_size=1000,
        pruning=(
            ReadPart(what="files", total=240, kept=31, nbytes=812_000_000),
            ReadPart(what="row groups by partitions", total=2400, kept=310, nbytes=812_000_000),
            ReadPart(what="row groups by statistics", total=310, kept=288, nbytes=None),
        ),
    )
    return RankStatus(
        rank=rank,
        state="feeding",
        stats=stats,
        stalled_s=seconds * wait,
        step_s=0.06,
        ready=2,
        held_bytes=34_000_000,
        trainer=4000 + rank,
        trainers=1,
        plan=plan,
    )


def status_at(seconds: float, *, job: str = "job-a", ranks: int = 2, **rank: float) -> FeederStatus:
    """The status of a feeder of all ranks of a job, on one host."""
    return replace(
        STATUS,
        job=job,
        feeder=f"{job}-feeder",
        name=f"{job} ranking",
        pipeline="/data/jobs/pipeline.yaml",
        host="node-1",
        pid=321,
        started_s=START_S,
        now_s=START_S + seconds,
        epochs=3,
        cores=8,
        cpu_s=seconds * 1.7,
        threads=8,
        ranks=tuple(rank_at(each, seconds, **rank) for each in range(ranks)),
    )


def troubled(status: FeederStatus) -> FeederStatus:
    """The same with decisions, a lost connection, warnings, an error, and a last rank that is starved."""
    *others, last = status.ranks
    findings = ("price: 3 % of values are null, expected at most 1 %", "hist_0: 12 % of lists are empty")
    others = [replace(others[0], findings=findings), *others[1:]] if others else []
    worse = replace(
        last, starved=True, stalled_s=last.stalled_s * 1.8, error="FeederError: the block could not be read"
    )
    return replace(
        status,
        lost=2,
        regained=2,
        ranks=(*others, worse),
        decisions=(
            FeederDecision(at_s=START_S + 2, topic="window", text="4 blocks: the slowest of late took 1.2 s"),
            FeederDecision(at_s=START_S + 9, topic="workers", text="6 workers: trainers wait 41 % of the time"),
        ),
    )
