"""Compare receipts, a trainer's record of the batches that it received, with the plan.

Runs in: the process of `feedline verify`. A receipt is what `FeedlineDataset.receipt(batch)` returns: the state before
the batch, who received it, and a digest of its rows. Receipts of several starts of a run belong together: those of a
resumed run begin where its state did, so some steps may come twice.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from feedline.errors import StateError
from feedline.loader.encoding.row_digests import batch_digest
from feedline.loader.state import checked_state
from feedline.planning.column_groups import plan_column_group
from feedline.planning.plan import group_name
from feedline.planning.schedule import rank_lanes
from feedline.planning.sources.mixed_plan import RunPlan
from feedline.progress import report_progress
from feedline.service.verify.expected import ExpectedRows, RowGroupDigests
from feedline.spec.chosen_features import column_group_name

_PHASE = "verifying"
_KEPT_DIFFERENCES = 1000  # that are described; all are counted
_NUMBERS = ("rank", "world_size", "trainer", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One batch of a trainer. state: before the batch. trainer: the trainer's global rank. column_group: the features
    that the digest covers; empty for all."""

    state: Mapping[str, Any]
    rank: int
    world_size: int
    trainer: int
    rows: int
    digest: str
    column_group: tuple[str, ...] = ()

    @property
    def epoch(self) -> int:
        return int(self.state["epoch"])

    @property
    def step(self) -> int:
        return int(self.state["step"])

    @classmethod
    def from_json(cls, message: object) -> Receipt:
        """Raises StateError for anything but a receipt."""
        if not isinstance(message, Mapping):
            raise StateError(f"a receipt must be a mapping: got {message!r:.80}")
        state = checked_state(message)
        wrong = [name for name in _NUMBERS if type(message.get(name)) is not int]
        if wrong or not isinstance(message.get("digest"), str):
            raise StateError(f"a receipt lacks {', '.join(wrong) or 'digest'}: got {message!r:.200}")
        group = message.get("column_group", [])
        if not isinstance(group, list) or not all(isinstance(name, str) for name in group):
            raise StateError(f"a receipt's column_group must be a list of features: got {group!r:.80}")
        numbers = {name: message[name] for name in _NUMBERS}
        return cls(state=state, digest=message["digest"], column_group=tuple(group), **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """Consecutive steps of an epoch, first to last, in these lanes, of this column group (empty: of all features)."""

    epoch: int
    first: int
    last: int
    lanes: tuple[int, ...]
    column_group: str = ""

    def text(self) -> str:
        steps = f"step {self.first:,}" if self.first == self.last else f"steps {self.first:,} to {self.last:,}"
        return f"epoch {self.epoch}, {steps}, lanes {', '.join(map(str, self.lanes))}{_of_group(self.column_group)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPosition:
    """A batch of a run. column_group: the name of the one that was read; empty for all features."""

    epoch: int
    step: int
    rank: int
    world_size: int
    column_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDifference:
    """A batch that is not the plan's."""

    at: BatchPosition
    problem: str

    def text(self) -> str:
        """The difference as one line."""
        at = self.at
        rank = f"rank {at.rank} of {at.world_size}{_of_group(at.column_group)}"
        return f"epoch {at.epoch}, step {at.step:,}, {rank}: {self.problem}"


def _of_group(name: str) -> str:
    return f", column group {name}" if name else ""


@dataclass(slots=True)
class ReceiptFindings:
    """What receipts say of a run. rows: compared, without padding. differences: the first of `count`.

    received: first and last steps. again: steps that came more than once. missing: steps of which no rank has a
    receipt, between others of their lanes. unreadable: lines that are no receipts.
    """

    batches: int = 0
    rows: int = 0
    padding: int = 0
    count: int = 0
    differences: list[BatchDifference] = field(default_factory=list)
    received: list[StepRun] = field(default_factory=list)
    again: list[StepRun] = field(default_factory=list)
    missing: list[StepRun] = field(default_factory=list)
    unreadable: int = 0

    @property
    def equal(self) -> bool:
        """Whether every batch between the first and the last was received as planned."""
        return not self.count and not self.missing

    def add(self, difference: BatchDifference) -> None:
        """Count a difference, and keep it if there are few."""
        self.count += 1
        if len(self.differences) < _KEPT_DIFFERENCES:
            self.differences.append(difference)

    def to_json(self) -> dict[str, Any]:
        """The findings as plain values."""
        return {**asdict(self), "equal": self.equal}


def read_receipts(paths: Iterable[Path]) -> tuple[list[Receipt], int]:
    """The receipts in files of JSON lines, and how many lines are cut off: a trainer may die while it writes.

    Raises StateError, with file and line, for JSON that is not a receipt.
    """
    receipts, unreadable = [], 0
    for path in paths:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                message = json.loads(line)
            except ValueError:
                unreadable += bool(line.strip())
                continue
            try:
                receipts.append(Receipt.from_json(message))
            except StateError as error:
                raise StateError(f"{path}, line {number}: {error}. Write json.dumps(dataset.receipt(batch))") from None
    return receipts, unreadable


def verify_receipts(receipts: Sequence[Receipt], resolve: Callable[[Mapping[str, Any]], RunPlan]) -> ReceiptFindings:
    """Compare the digest of every receipt with the plan's, and find steps that are missing or came more than once.

    resolve: the plan of a state. Raises the errors of planning and of reading the table.
    """
    findings = ReceiptFindings()
    plans: dict[tuple[str, str, str], list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        plans[receipt.state["snapshot"], receipt.state["plan"], receipt.state["features"]].append(receipt)
    for of_plan in plans.values():
        plan = resolve(of_plan[0].state)
        report_progress(_PHASE, findings.batches, len(receipts), "batches")
        for group, of_group in _by_column_group(of_plan).items():
            _compare_group(findings, plan_column_group(plan, group), of_group, len(receipts))
    for group, of_group in _by_column_group(receipts).items():
        _find_gaps(findings, column_group_name(group), of_group)
    return findings


def _by_column_group(receipts: Iterable[Receipt]) -> dict[tuple[str, ...], list[Receipt]]:
    groups: dict[tuple[str, ...], list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        groups[receipt.column_group].append(receipt)
    return groups


def _compare_group(findings: ReceiptFindings, plan: RunPlan, receipts: Sequence[Receipt], total: int) -> None:
    """Compare the receipts of one plan and column group, epoch by epoch. total: of all receipts."""
    epochs: dict[int, list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        epochs[receipt.epoch].append(receipt)
    groups = [RowGroupDigests(each) for each in plan.sources]
    for epoch in sorted(epochs):
        _compare_epoch(findings, ExpectedRows(plan, epoch, groups), epochs[epoch], total)


def _compare_epoch(findings: ReceiptFindings, expected: ExpectedRows, receipts: list[Receipt], total: int) -> None:
    """Compare the receipts of one epoch, step by step, so that each row group is read once."""
    batches: dict[tuple[int, int, int], list[Receipt]] = defaultdict(list)
    group = group_name(expected.plan.sources[0])
    for receipt in receipts:
        batches[receipt.step, receipt.rank, receipt.world_size].append(receipt)
    for (step, rank, world_size), same in sorted(batches.items()):
        step_rows = expected.of_rank(step, rank, world_size)
        digest = batch_digest(step_rows.digests, step_rows.rows.valid)
        findings.batches += len(same)
        findings.rows += len(same) * int(step_rows.rows.valid.sum())
        findings.padding += len(same) * int((~step_rows.rows.valid).sum())
        for receipt in same:
            if receipt.digest != digest:
                problem = f"trainer {receipt.trainer} received other rows: got digest {receipt.digest}, expected "
                at = BatchPosition(epoch=receipt.epoch, step=step, rank=rank, world_size=world_size, column_group=group)
                findings.add(BatchDifference(at=at, problem=problem + digest))
        report_progress(_PHASE, findings.batches, total, "batches")


def _find_gaps(findings: ReceiptFindings, group: str, receipts: Sequence[Receipt]) -> None:
    """Find the steps of each epoch that a lane never received, and those that it received more than once. receipts: of
    a column group of this name."""
    counts: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for (epoch, step, rank, world_size, lanes), times in _times_received(receipts).items():
        for lane in rank_lanes(lanes, rank, world_size):
            counts[epoch][lane][step] += times
    for epoch, lanes_of_epoch in sorted(counts.items()):
        received, again, missing = (defaultdict[int, list[int]](list) for _ in range(3))
        for lane, steps in sorted(lanes_of_epoch.items()):
            for step in range(min(steps), max(steps) + 1):
                (received if steps[step] else missing)[step].append(lane)
                if steps[step] > 1:
                    again[step].append(lane)
        findings.received += _runs(group, epoch, received)
        findings.again += _runs(group, epoch, again)
        findings.missing += _runs(group, epoch, missing)


def _times_received(receipts: Sequence[Receipt]) -> dict[tuple[int, int, int, int, int], int]:
    """How often a rank's batch was received; trainers of the same rank receive it once together."""
    of_trainer = Counter(
        (receipt.epoch, receipt.step, receipt.rank, receipt.world_size, receipt.state["lanes"], receipt.trainer)
        for receipt in receipts
    )
    times: dict[tuple[int, int, int, int, int], int] = defaultdict(int)
    for (epoch, step, rank, world_size, lanes, _), count in of_trainer.items():
        batch = epoch, step, rank, world_size, lanes
        times[batch] = max(times[batch], count)
    return times


def _runs(group: str, epoch: int, lanes_of_steps: Mapping[int, list[int]]) -> list[StepRun]:
    """Consecutive steps of the same lanes, together."""
    runs: list[StepRun] = []
    for step, lanes in sorted(lanes_of_steps.items()):
        if runs and (runs[-1].last, runs[-1].lanes) == (step - 1, tuple(lanes)):
            runs[-1] = replace(runs[-1], last=step)
        else:
            runs.append(StepRun(epoch=epoch, first=step, last=step, lanes=tuple(lanes), column_group=group))
    return runs
