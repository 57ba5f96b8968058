"""Metrics of a worker: the counts of its process."""

from __future__ import annotations

from finished_blocks import BLOCK_RESULT

from feedline.service.monitoring.block_counts import BlockCounts
from feedline.service.worker.worker_metrics import WORKER_METRICS, WorkerState


def test_counts_are_samples():
    counts = BlockCounts()
    counts.begin()
    counts.begin()
    counts.end(BLOCK_RESULT)
    counts.fail("data")
    state = WorkerState(threads=4, is_serving=True, blocks=counts.read())
    samples = {metric.name: dict(metric.samples(state)) for metric in WORKER_METRICS}
    assert samples["feedline_worker_rows_total"] == {(): 10}
    assert samples["feedline_worker_blocks_running"] == {(): 0}
    assert samples["feedline_worker_stage_seconds_total"] == {
        ("read",): 1.5,
        ("transform",): 0.5,
        ("encode",): 0.25,
    }
    assert samples["feedline_worker_failed_blocks_total"] == {("data",): 1}
    assert samples["feedline_worker_serving"] == {(): 1.0}
