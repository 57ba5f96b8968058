"""Statuses of feeders for tests of what shows them."""

from __future__ import annotations

from dataclasses import replace

from feeder_statuses import STATUS

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederStatus, PlanStatus, RankStatus

PLAN = PlanStatus(plan="p", snapshot="s", rows=1000, rows_dropped=8, steps=31, batch_size=32)
CACHED = CacheCounts(found=30, computed=10, skipped=2, nbytes_read=300, nbytes_written=100, damaged=1, waited_s=0.5)


def rank_of(rank: int, *, cached: bool = True) -> RankStatus:
    """A rank in the middle of its epoch, whose numbers are not those of another."""
    delivery = BlockStats(
        blocks=10 + rank,
        nbytes_read=1000,
        nbytes_encoded=2000,
        times=BlockTimes(
            read_s=4.0,
            transform_s=2.0,
            encode_s=1.0,
            read_cpu_s=3.0,
            transform_cpu_s=1.5,
            encode_cpu_s=0.75,
            fetch_s=0.5,
        ),
        resubmitted=1,
        cached=CACHED if cached else None,
    )
    stats = FeederStats(
        batches=20 + rank,
        rows=640,
        nbytes=64_000,
        wait_blocks_s=1.25,
        wait_slots_s=7.5,
        epoch=0,
        step=20,
        steps=31,
        ring_slots=8,
        ring_free=5,
        blocks_in_flight=6,
        window=12,
        copy_s=0.25,
        delivery=delivery,
    )
    return RankStatus(
        rank=rank,
        state="feeding",
        stats=stats,
        stalled_s=1.5,
        step_s=0.02,
        starved=rank == 0,
        ready=3,
        held_bytes=4096,
        trainer=100 + rank,
        trainers=1,
        plan=PLAN,
        problems={"null": 5, "nonfinite": 0, "unknown": 7, "expectation": 1},
    )


def watched_status(ranks: int = 2, *, cached: bool = True) -> FeederStatus:
    """A feeder of so many ranks."""
    return replace(
        STATUS,
        job="clicks-1234abcd",
        feeder="host-7-a",
        pipeline="s3://bucket/pipeline.yaml",
        host="host",
        kernels=("ring", "rows"),
        started_s=1.75e9,
        now_s=1.75e9 + 60,
        epochs=2,
        cores=4.0,
        cpu_s=12.5,
        threads=4,
        restarts=1,
        lost=2,
        regained=1,
        ranks=tuple(rank_of(rank, cached=cached) for rank in range(ranks)),
    )
