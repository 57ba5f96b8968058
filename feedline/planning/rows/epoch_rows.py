"""Find the rows of the tables that each step of an epoch holds.

Runs in: the CLI (`plan --step`). A lane's rows of a step are those of the first source,
then those of the next, each from its own pass (`StepRows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PlanError
from feedline.planning.plan import Plan
from feedline.planning.rows.step_rows import StepRows
from feedline.planning.schedule import rank_lanes

Int64s = NDArray[np.int64]

_KEPT_PASSES = 2  # of each source


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRows:
    """Rows of a step, in the order of a batch. int64 [rows] each: lane; source, its index; group, the row group (its
    index in the source's snapshot); kept, the row's index among those of the row group that filter and sample keep.
    valid: bool [rows], False for padding."""

    lane: Int64s
    source: Int64s
    group: Int64s
    kept: Int64s
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kept)


class EpochRows:
    """The rows of an epoch's steps."""

    def __init__(self, plan: Plan, epoch: int) -> None:
        self.plan = plan
        self.schedule = plan.schedule(epoch)
        self._passes = plan.passes(epoch)
        self._rows = lru_cache(_KEPT_PASSES * len(plan.sources))(lambda source, number: self._of_pass(source, number))

    def of_rank(self, step: int, rank: int, world_size: int) -> LocatedRows:
        """The rows of a rank's batch. Raises PlanError for an unknown step or rank."""
        return self.of_lanes(step, rank_lanes(self.plan.lanes, rank, world_size))

    def of_lanes(self, step: int, lanes: Sequence[int]) -> LocatedRows:
        """The rows of some lanes, lane after lane."""
        first, steps = self.schedule.first_step, self.schedule.steps
        if not first <= step < steps:
            raise PlanError(f"step is out of range: got {step}, expected {first} to {steps - 1}")
        parts = [
            _locate(self._rows(source, passes.number_of(index)), source, own, [lane])
            for lane in lanes
            for source, passes in enumerate(self._passes)
            for index, own in [passes.at(step)]
        ]
        return LocatedRows(
            lane=np.concatenate([part.lane for part in parts]),
            source=np.concatenate([part.source for part in parts]),
            group=np.concatenate([part.group for part in parts]),
            kept=np.concatenate([part.kept for part in parts]),
            valid=np.concatenate([part.valid for part in parts]),
        )

    def _of_pass(self, source: int, number: int) -> StepRows:
        return StepRows(self.plan.sources[source], number)


def _locate(rows: StepRows, source: int, step: int, lanes: Sequence[int]) -> LocatedRows:
    part = rows.of_lanes(step, lanes)
    group, kept = rows.locate(part.split, part.row)
    return LocatedRows(lane=part.lane, source=np.full(len(part), source), group=group, kept=kept, valid=part.valid)
