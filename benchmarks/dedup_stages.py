"""CPU of the stages of deduplication in one process: decoding, blocks, cutting of batches; and bytes of batches.

Used by `dedup.py`. Everything that is compared alternates, round by round, and medians are returned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from slot_writing import batches_of
from slot_writing import measure as measure_cutting

from feedline import Batch, Pipeline, Table
from feedline.blocks.compute import run_block
from feedline.planning.plan import Plan
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median CPU-seconds of each side, in turn, after a round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        names = list(sides)
        for name in names if number % 2 else reversed(names):
            began = time.process_time()
            sides[name]()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(several[1:]) for name, several in seconds.items()}


def decode_seconds(tables: Mapping[str, Path], columns: Sequence[str], key: str, rounds: int) -> dict[str, float]:
    """CPU-seconds of decoding the columns of each table, into unique rows where they are stored once per run.

    key: a column of every row, which both sides decode, too.
    """

    def reader(table: Path) -> Callable[[], object]:
        snapshot = Table(table).snapshot()
        fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 65_536)

        def read() -> int:
            return sum(
                chunk.frame.height
                for fragment in fragments
                for chunk in read_fragment(
                    fragment, ReadRequest([key, *columns], snapshot.schema, compact=frozenset(columns))
                )
            )

        if read() != snapshot.rows:
            raise AssertionError(f"a reader lost rows of {table}: expected {snapshot.rows}")
        return read

    return alternate({name: reader(table) for name, table in tables.items()}, rounds)


def block_seconds(plans: Mapping[str, Plan], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of all blocks by plan and stage: read, transform, encode, and CPU-seconds in all."""
    found: dict[str, dict[str, list[float]]] = {
        name: {stage: [] for stage in ("read", "transform", "encode", "cpu")} for name in plans
    }
    for number in range(rounds + 1):
        names = list(plans)
        for name in names if number % 2 else reversed(names):
            for stage, seconds in _blocks(plans[name]).items():
                found[name][stage].append(seconds)
    return {
        name: {stage: statistics.median(several[1:]) for stage, several in stages.items()}
        for name, stages in found.items()
    }


def _blocks(plan: Plan) -> dict[str, float]:
    total = dict.fromkeys(("read", "transform", "encode"), 0.0)
    began = time.process_time()
    for number, block in enumerate(plan.source.schedule(0).blocks_of([0], first_step=0)):
        result = run_block(plan.source.job, plan.request(block, 0), f"block-{number}", packed=False)
        for stage, seconds in result.times.stages.items():
            total[stage] += seconds
    return {**total, "cpu": time.process_time() - began}


def cut_rates(plans: Mapping[str, Plan], batch_rows: int, rounds: int, passes: int) -> dict[str, float]:
    """Rows per second of cutting batches out of finished blocks into slots, on one thread."""
    batches = {name: batches_of(plan, batch_rows) for name, plan in plans.items()}
    rates: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rounds):
        names = list(plans)
        for name in names if number % 2 else reversed(names):
            rates[name].append(measure_cutting(plans[name].layout, batches[name], 1, passes))
    return {name: statistics.median(several) for name, several in rates.items()}


def ring_bytes(pipeline: Pipeline, group: str, count: int) -> dict[str, float]:
    """Bytes of a group in the slots of the first batches, inverse included, and of the same features expanded."""
    found = {"rows": 0.0, "unique_rows": 0.0, "group": 0.0, "expanded_group": 0.0, "batch": 0.0, "expanded_batch": 0.0}
    for batch in islice(pipeline.batches(), count):
        plain = batch.expanded()
        of_group = group_bytes(batch, group)
        found["rows"] += batch.rows
        found["unique_rows"] += batch.groups[group].unique_rows
        found["group"] += of_group
        found["expanded_group"] += expanded_group_bytes(batch, plain, group)
        found["batch"] += batch.nbytes
        found["expanded_batch"] += plain.nbytes
    return found


def group_bytes(batch: Batch, group: str) -> int:
    """Bytes of a group's tensors: matrices, inverse, values, lengths and offsets."""
    part = batch.groups[group]
    lists = [tensor for one in part.sparse.values() for tensor in (one.values, one.lengths, one.offsets)]
    return sum(tensor.nbytes for tensor in (part.inverse, part.dense, part.categorical, *lists))


def expanded_group_bytes(batch: Batch, plain: Batch, group: str) -> int:
    """Bytes that the group's features take in the batch of all rows."""
    part = batch.groups[group]
    lists = [tensor for name in part.sparse for one in (plain.sparse[name],) for tensor in (one.values, one.lengths)]
    offsets = sum(plain.sparse[name].offsets.nbytes for name in part.sparse)
    dense, ids = part.dense, part.categorical
    per_row = dense.shape[1] * dense.itemsize + ids.shape[1] * ids.itemsize
    return sum(tensor.nbytes for tensor in lists) + offsets + batch.rows * per_row
