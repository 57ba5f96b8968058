"""Audit what trainers received: receipts of batches, compared with the plan's rows.

A receipt is the state before a batch, who received it, and a digest of its rows. The expected digests come apart from
blocks, Dask and rings: a row group's kept rows are read whole, transformed and encoded once. Receipts of several starts
of a run belong together: those of a resumed run begin where its state did, so some steps may come twice.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from row_digests import batch_digest, digest_of, row_digests

from feedline import FeedlineDataset, Pipeline
from feedline.blocks.jobs import compile_job
from feedline.hashing import Words
from feedline.loader.batch import Batch
from feedline.loader.encoding.encode import encode
from feedline.loader.rank_agreement import hello_of
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan
from feedline.planning.resolve import plan_column_group
from feedline.planning.schedule import rank_lanes
from feedline.planning.source_plan import SourcePlan
from feedline.planning.step_rows import EpochRows, LocatedRows


def receipt_of(dataset: FeedlineDataset, batch: Batch) -> dict[str, Any]:
    """The receipt of a batch of this dataset, for JSON."""
    state = dataset._epochs.state(dataset._open(), batch.epoch, batch.step)
    hello = hello_of(dataset._ranks, dataset._group)
    return receipt(batch, state, hello.rank, hello.world_size, trainer=hello.global_rank, features=dataset._group)


def receipt(
    batch: Batch,
    state: Mapping[str, Any],
    rank: int = 0,
    world_size: int = 1,
    *,
    trainer: int = 0,
    features: Sequence[str] = (),
) -> dict[str, Any]:
    """The receipt of a batch. state: before it. features: of a column group; none for all."""
    who = {"rank": rank, "world_size": world_size, "trainer": trainer}
    return {"state": dict(state), **who, "features": list(features), "digest": digest_of(batch)}


def read_receipts(*files: Path) -> list[dict[str, Any]]:
    """The receipts in files of JSON lines; a trainer may have died while it wrote the last one."""
    lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line) for line in lines]


# -- what the plan says ------------------------------------------------------------------------------------------------


class ExpectedRows:
    """The digests of the rows of a plan's steps."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._jobs = [compile_job(source.job) for source in plan.sources]
        self._row_groups: dict[tuple[int, int], Words] = {}
        self._epochs: dict[int, EpochRows] = {}

    def of_rank(self, epoch: int, step: int, rank: int, world_size: int) -> tuple[LocatedRows, Words]:
        """The rows of a rank's batch by their places in the plan, and uint64 [rows], their digests."""
        if epoch not in self._epochs:
            self._epochs[epoch] = EpochRows(self.plan, epoch)
        rows = self._epochs[epoch].of_rank(step, rank, world_size)
        digests = np.empty(len(rows), np.uint64)
        for source, group in {*zip(rows.source.tolist(), rows.group.tolist(), strict=True)}:
            here = (rows.source == source) & (rows.group == group)
            digests[here] = self._of_row_group(source, group)[rows.kept[here]]
        return rows, digests

    def _of_row_group(self, source: int, group: int) -> Words:
        if (source, group) not in self._row_groups:
            plan: SourcePlan = self.plan.sources[source]
            job = self._jobs[source]
            frame = read_kept_rows(plan, group, job.read.columns, job.read.marks).frame
            features, _ = job.features.apply_counting(frame)
            encoded = encode(features, job.layout.schema.expanded, None, job.filters)
            self._row_groups[source, group] = row_digests(encoded)
        return self._row_groups[source, group]


# -- the audit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps of an epoch, first to last, in these lanes, of some features (none: of all)."""

    epoch: int
    first: int
    last: int
    lanes: tuple[int, ...]
    features: tuple[str, ...] = ()


@dataclass(slots=True)
class Audit:
    """What receipts say of a run. rows: compared, without padding. differences: batches that are not the plan's.
    received: first and last steps. again: steps that came more than once. missing: steps of which no rank has a
    receipt, between others of their lanes."""

    batches: int = 0
    rows: int = 0
    differences: list[str] = field(default_factory=list)
    received: list[Steps] = field(default_factory=list)
    again: list[Steps] = field(default_factory=list)
    missing: list[Steps] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every batch between the first and the last was received as planned."""
        return not self.differences and not self.missing


def audit_receipts(pipeline: Pipeline, receipts: Iterable[Mapping[str, Any]]) -> Audit:
    """Compare the digest of every receipt with the plan's, and find steps that are missing or came more than once."""
    audit = Audit()
    by_plan: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    by_features: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for receipt in receipts:
        state, features = receipt["state"], tuple(receipt["features"])
        by_plan[state["snapshot"], state["plan"], state["features"], features].append(receipt)
        by_features[features].append(receipt)
    for (*_, features), of_plan in by_plan.items():
        plan = pipeline.plan_for(of_plan[0]["state"])
        _compare(audit, ExpectedRows(plan_column_group(plan, features)), of_plan)
    for features, of_features in by_features.items():
        _count_steps(audit, features, of_features)
    return audit


def _compare(audit: Audit, expected: ExpectedRows, receipts: Iterable[Mapping[str, Any]]) -> None:
    for receipt in receipts:
        batch = receipt["state"]["epoch"], receipt["state"]["step"], receipt["rank"], receipt["world_size"]
        rows, digests = expected.of_rank(*batch)
        digest = batch_digest(digests, rows.valid)
        audit.batches += 1
        audit.rows += int(rows.valid.sum())
        if receipt["digest"] != digest:
            epoch, step, rank, world_size = batch
            audit.differences.append(
                f"epoch {epoch}, step {step}, rank {rank} of {world_size}: trainer {receipt['trainer']} received other "
                f"rows: got digest {receipt['digest']}, expected {digest}"
            )


def _count_steps(audit: Audit, features: tuple[str, ...], receipts: Iterable[Mapping[str, Any]]) -> None:
    """Find the steps of each epoch that a lane never received, and those that it received more than once."""
    of_trainers: Counter[tuple[int, int, int, int, int]] = Counter()
    for receipt in receipts:
        state, world_size = receipt["state"], receipt["world_size"]
        for lane in rank_lanes(state["lanes"], receipt["rank"], world_size):
            of_trainers[state["epoch"], lane, state["step"], world_size, receipt["trainer"]] += 1
    # Trainers of the same rank receive its batch once together; other world sizes are other starts of the run.
    of_starts: Counter[tuple[int, int, int, int]] = Counter()
    for (*place, _), count in of_trainers.items():
        of_starts[*place] = max(of_starts[*place], count)
    times: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))  # [epoch][lane][step]
    for (epoch, lane, step, _), count in of_starts.items():
        times[epoch][lane][step] += count
    for epoch, of_lanes in sorted(times.items()):
        received, again, missing = (defaultdict[int, list[int]](list) for _ in range(3))
        for lane, of_steps in sorted(of_lanes.items()):
            for step in range(min(of_steps), max(of_steps) + 1):
                (received if of_steps[step] else missing)[step].append(lane)
                if of_steps[step] > 1:
                    again[step].append(lane)
        audit.received += _runs(epoch, features, received)
        audit.again += _runs(epoch, features, again)
        audit.missing += _runs(epoch, features, missing)


def _runs(epoch: int, features: tuple[str, ...], lanes_of_steps: Mapping[int, list[int]]) -> list[Steps]:
    """Consecutive steps of the same lanes, together."""
    runs: list[Steps] = []
    for step, lanes in sorted(lanes_of_steps.items()):
        if runs and (runs[-1].last, runs[-1].lanes) == (step - 1, tuple(lanes)):
            runs[-1] = replace(runs[-1], last=step)
        else:
            runs.append(Steps(epoch, step, step, tuple(lanes), features))
    return runs
