"""The status of a feeder crosses processes unchanged."""

from __future__ import annotations

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, PlanStatus, RankStatus, ReadPart


def test_a_status_crosses_unchanged():
    plan = PlanStatus(
        plan="p",
        snapshot="s",
        rows=10,
        rows_dropped=2,
        steps=4,
        batch_size=2,
        pruning=(ReadPart(what="partitions", total=7, kept=3, nbytes=100), ReadPart(what="files", total=3, kept=3)),
    )
    stats = FeederStats(batches=3, rows=6, delivery=BlockStats(blocks=2, times=BlockTimes(read_s=0.5)))
    rank = RankStatus(rank=1, state="feeding", stats=stats, stalled_s=0.25, plan=plan, findings=("a: null 12 %",))
    status = FeederStatus(
        job="clicks-1234",
        feeder="host-12",
        name="clicks",
        pipeline="/jobs/clicks.yaml",
        host="host",
        pid=12,
        version="0.1.0",
        started_s=1.0,
        now_s=2.0,
        epochs=3,
        form="threads",
        cores=2.0,
        cpu_s=0.75,
        workers=1,
        threads=2,
        ranks=(rank,),
        decisions=(FeederDecision(at_s=1.5, topic="window", text="4 blocks: the trainer waits"),),
    )
    assert unpack(FeederStatus, pack(status)) == status
