"""Read steps through the rings of feeders, as the trainers of all ranks do, and compare them with the plan.

Runs in: the process of `feedline verify`. The feeders are started as for a training, all on this host; each delivers
to its own rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from feedline.loader.encoding.encoded_rows import expand
from feedline.loader.encoding.row_digests import row_digests
from feedline.loader.encoding.slot import SlotArrays, encoded_rows, read_header
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.wire.facts import Hello
from feedline.planning.plan import Plan
from feedline.planning.rows.delivered_rows import find_delivered_rows
from feedline.service.verify.expected import ExpectedRows
from feedline.service.verify.findings import BatchDifference, BatchPosition, SeenRows, VerifyFindings


def verify_rings(
    plan: Plan,
    accesses: Sequence[FeederAccess],
    *,
    epoch: int,
    steps: range,
    progress: Callable[[int], None] = lambda step: None,
) -> VerifyFindings:
    """Start the feeders of all ranks and compare the steps of their batches with the plan.

    Raises the errors of feeders, and of reading the table.
    """
    world_size = len(accesses)
    expected = ExpectedRows(plan, epoch)
    schedule = expected.steps.schedule
    seen = SeenRows(schedule.split_rows, find_delivered_rows(schedule, steps.start, expected.steps.order))
    findings = VerifyFindings()
    feeds = [FeederClient(access) for access in accesses]
    try:
        for feed in feeds:
            feed.start()
        for rank, feed in enumerate(feeds):
            answer = feed.open(_hello(plan, rank, world_size))
            feed.begin(answer, epoch, steps.start, last=True)
        for step in steps:
            for rank, feed in enumerate(feeds):
                at = BatchPosition(epoch=epoch, step=step, rank=rank, world_size=world_size)
                findings.repeated += seen.add(expected.steps.of_rank(step, rank, world_size))
                _compare(findings, expected, feed, at)
            progress(step)
    finally:
        for feed in feeds:
            feed.close()
    return findings


def _compare(findings: VerifyFindings, expected: ExpectedRows, feed: FeederClient, at: BatchPosition) -> None:
    """Compare the feeder's next batch with the plan; nothing refers to its slot afterwards."""
    item = feed.next()
    if item is None:
        findings.add(BatchDifference(at=at, problem="the epoch has ended, expected a batch"))
        return
    epoch, step, _, _, root = item
    layout = expected.plan.layout
    if (epoch, step) != (at.epoch, at.step):
        findings.add(BatchDifference(at=at, problem=f"the batch is that of epoch {epoch}, step {step:,}"))
        return
    digests = row_digests(expand(encoded_rows(layout, pa.py_buffer(root)), layout.schema))
    valid = SlotArrays(layout, read_header(layout, root), root).valid.astype(np.bool_)
    of_rank = expected.of_rank(at.step, at.rank, at.world_size)
    findings.compare(of_rank, digests, valid, at=at, place=expected.place, find=expected.groups.find)


def _hello(plan: Plan, rank: int, world_size: int) -> Hello:
    """A hello that names the plan, so that all feeders work on it."""
    return Hello(
        rank=rank,
        world_size=world_size,
        snapshot=plan.snapshot_name,
        lanes=plan.lanes,
        plan=plan.fingerprint,
        features=plan.features_fingerprint,
        seed=plan.seed,
        batch_size=plan.spec.batch.size,
    )
