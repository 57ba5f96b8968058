"""Iterate the batches of a plan in this process and thread: no ring, no Dask, no feeder.

Runs in: any process. For debugging with pdb, systems other than Linux, and as the oracle of tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from feedline.blocks.compute import run_block
from feedline.blocks.request import BlockResult
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.encoding.slot import draft, write
from feedline.planning.plan import Plan
from feedline.planning.schedule import rank_lanes
from feedline.service.feeder.quality_monitor import QualityMonitor
from feedline.service.feeder.steps import segments_of

if TYPE_CHECKING:
    from feedline.loader.batch import Batch


def iterate_plan(
    plan: Plan, monitor: QualityMonitor, *, epoch: int, rank: int, world_size: int, step: int = 0
) -> Iterator[Batch]:
    """The batches of one rank and epoch from a step on, computed one block at a time."""
    from feedline.loader.batch import Batch  # noqa: PLC0415 -- loads torch, which feeders and the CLI do without

    schedule, layout = plan.schedule(epoch), SlotLayout(plan.layout.schema, bounds=plan.facts().bounds(world_size))
    lanes = rank_lanes(plan.lanes, rank, world_size)
    blocks = {(block.lane, block.index): block for block in schedule.blocks_of(lanes, first_step=step)}
    results: dict[tuple[int, int], BlockResult] = {}
    monitor.begin(epoch)

    def get(lane: int, index: int) -> tuple[Rows, ...]:
        key = lane, index
        if key not in results:
            block = blocks[key]
            results[key] = run_block(plan.job_of(block), plan.request(block, epoch), f"block-{lane}-{index}", False)
        parts = results[key].parts
        assert parts is not None
        return parts

    for current in range(max(step, schedule.first_step), schedule.steps):
        segments = segments_of(schedule, lanes, current, get)
        assert segments is not None
        batch = draft(plan.layout, segments, epoch=epoch, step=current)
        buffer = np.empty(batch.placement.nbytes, dtype=np.uint8)
        write(plan.layout, batch, buffer)
        past = [(blocks[key], results.pop(key)) for key in list(results) if blocks[key].last_step <= current]
        monitor.add(current, [(block, result.quality) for block, result in past if schedule.has_rows(block.lane)])
        yield Batch.over(layout, buffer)
    for complaint in monitor.end():
        warnings.warn(complaint, UserWarning, stacklevel=2)
