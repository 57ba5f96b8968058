"""A block that a feeder has received, and its result."""

from __future__ import annotations

import pyarrow as pa

from feedline.blocks.request import BlockResult
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Observer
from feedline.planning.schedule import Block
from feedline.service.monitoring.finished_block import FinishedBlock

BLOCK_RESULT = BlockResult(
    key="k",
    rows=10,
    parts=None,
    image=pa.py_buffer(b"12345"),
    times=BlockTimes(read_s=1.5, transform_s=0.5, encode_s=0.25, read_cpu_s=1.0),
    nbytes_read=100,
    quality=Observer(BatchSchema(()), ()).quality(),
    cached=CacheCounts(found=3, computed=4),
)
FINISHED_BLOCK = FinishedBlock(
    name="r0-l1-b7",
    block=Block(lane=1, index=7, start=0, rows=10, pieces=(), first_step=70, last_step=80),
    result=BLOCK_RESULT,
    submitted_s=1000.0,
    arrived_s=1002.5,
    attempts=2,
)
