"""The blocks of an epoch as tasks compute them, compared byte by byte, and what they found in a cache."""

from __future__ import annotations

from feedline.blocks.compute import pack_block, run_block
from feedline.blocks.request import BlockResult
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.planning.plan import Plan


def blocks_of(plan: Plan, epoch: int = 0) -> list[BlockResult]:
    schedule = plan.source.schedule(epoch)
    return [
        run_block(plan.source.job, plan.request(block, epoch), f"b{lane}", False)
        for lane in range(plan.lanes)
        for block in schedule.blocks(lane, everything=True)
    ]


def assert_same(plan: Plan, ours: list[BlockResult], theirs: list[BlockResult]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert pack_block(plan.layout, one.parts or ()) == pack_block(plan.layout, other.parts or ())
        assert one.quality.to_bytes() == other.quality.to_bytes()


def counts_of(results: list[BlockResult]) -> CacheCounts:
    return sum((result.cached for result in results if result.cached is not None), CacheCounts())
