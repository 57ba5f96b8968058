"""Problems that a monitor has counted: sums over features, epochs and broken expectations."""

from __future__ import annotations

import numpy as np

from feedline.config import parse_spec
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import COUNTS, Quality
from feedline.planning.schedule import Block
from feedline.service.feeder.quality_monitor import QualityMonitor

TEXT = """
version: 1
name: a
source: {table: t}
features: {dense: {x: {column: x, expect: {null_rate: <= 0.1}}, y: []}}
batch: {size: 1}
"""
SCHEMA = BatchSchema(
    tuple(SlotColumn(name=name, group="dense", dtype="float32", arrow="float", offset=0) for name in "xy")
)


def counted(nulls: list[int], nonfinite: list[int]) -> Quality:
    counts = np.zeros((len(COUNTS), 2), np.int64)
    counts[COUNTS.index("nulls")], counts[COUNTS.index("nonfinite")] = nulls, nonfinite
    return Quality(
        rows=10,
        counts=counts,
        integers=np.zeros((2, 2), np.int64),
        floats=np.zeros((2, 2)),
        histogram=np.empty(0, np.int64),
        widths=np.empty(0, np.int64),
        lookups=np.array([[5, 5], [1, 2]], np.int64),
    )


def block(index: int) -> Block:
    return Block(lane=0, index=index, start=0, pieces=(), rows=10, first_step=index, last_step=index)


def test_problems_are_sums_over_epochs():
    monitor = QualityMonitor(SCHEMA, parse_spec(TEXT).features, "warn")
    assert monitor.problems() == {"null": 0, "nonfinite": 0, "unknown": 0, "expectation": 0}
    for epoch in range(2):
        monitor.begin(epoch)
        for index in range(2):
            monitor.add(index, [(block(index), counted([4, 1], [0, 2]))])
        assert len(monitor.end()) == 1, "of x, which is null in 8 of 20 rows"
    assert monitor.problems() == {"null": 20, "nonfinite": 8, "unknown": 12, "expectation": 2}
