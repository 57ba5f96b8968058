"""Compare batches with the plan, and collect the differences. Pure.

Runs in: the process of `feedline verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.hashing import Words
from feedline.planning.rows.delivered_rows import DeliveredRows
from feedline.planning.rows.step_rows import StepSlice
from feedline.service.verify.expected import ExpectedStep

_KEPT_DIFFERENCES = 1000  # that are described; all are counted

Place = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPosition:
    """A batch of a run."""

    epoch: int
    step: int
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDifference:
    """A difference between a batch and the plan: of one row, or of the whole batch (`lane` and `row` are None).

    `row`: its index in the rank's batch. `expected`: file, row group and row by the plan. `received`: those of the row
    that came in its place, None if it is none of the rows at hand.
    """

    at: BatchPosition
    problem: str
    lane: int | None = None
    row: int | None = None
    expected: Place | None = None
    received: Place | None = None

    def text(self) -> str:
        """The difference as one line."""
        where = f"epoch {self.at.epoch}, step {self.at.step:,}, rank {self.at.rank} of {self.at.world_size}"
        if self.row is None:
            return f"{where}: {self.problem}"
        where += f", lane {self.lane}, row {self.row:,} of the batch: {self.problem}"
        if self.expected is None:
            return where
        other = "a row that is not of the row groups at hand" if self.received is None else _place_text(self.received)
        return f"{where}: got {other}, expected {_place_text(self.expected)}"


def _place_text(place: Place) -> str:
    return f"row {place['row']:,} of row group {place['row_group']} of {place['file']}"


@dataclass(slots=True)
class VerifyFindings:
    """What a comparison found. rows: compared, without padding. repeated: rows that the plan delivers more than once.
    differences: the first of `count`."""

    batches: int = 0
    rows: int = 0
    padding: int = 0
    repeated: int = 0
    count: int = 0
    differences: list[BatchDifference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not self.count and not self.repeated

    def add(self, difference: BatchDifference) -> None:
        """Count a difference, and keep it if there are few."""
        self.count += 1
        if len(self.differences) < _KEPT_DIFFERENCES:
            self.differences.append(difference)

    def compare(
        self,
        expected: ExpectedStep,
        digests: Words,
        valid: NDArray[np.bool_],
        *,
        at: BatchPosition,
        place: Callable[[int, int], Place],
        find: Callable[[int], Place | None],
    ) -> None:
        """Compare a batch with the plan, row by row."""
        rows = expected.rows
        self.batches += 1
        self.rows += int(np.count_nonzero(rows.valid))
        self.padding += int(np.count_nonzero(~rows.valid))
        if len(digests) != len(rows):
            self.add(BatchDifference(at=at, problem=f"the batch has {len(digests):,} rows, expected {len(rows):,}"))
            return
        for row in np.flatnonzero(valid != rows.valid).tolist():
            problem = "padding that is marked as a row" if valid[row] else "a row that is marked as padding"
            self.add(BatchDifference(at=at, problem=problem, lane=int(rows.lane[row]), row=row))
        for row in np.flatnonzero(digests != expected.digests).tolist():
            described = len(self.differences) < _KEPT_DIFFERENCES
            self.add(
                BatchDifference(
                    at=at,
                    problem="another row, or another value",
                    lane=int(rows.lane[row]),
                    row=row,
                    expected=place(int(rows.split[row]), int(rows.row[row])) if described else None,
                    received=find(int(digests[row])) if described else None,
                )
            )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


class SeenRows:
    """Which rows of an epoch came so far, to count those that come again."""

    def __init__(self, split_rows: NDArray[np.int64], before: DeliveredRows) -> None:
        """before: the rows of earlier steps."""
        self._split_rows = split_rows
        self._splits = dict(before.splits)

    def add(self, rows: StepSlice) -> int:
        """Add the rows of a step, without padding; returns how many of them came before, or come twice."""
        again = 0
        for split in np.unique(rows.split[rows.valid]).tolist():
            here = rows.row[rows.valid & (rows.split == split)]
            seen = self._splits.setdefault(split, np.zeros(int(self._split_rows[split]), np.bool_))
            again += len(here) - int(np.count_nonzero(~seen[np.unique(here)]))
            seen[here] = True
        return again
