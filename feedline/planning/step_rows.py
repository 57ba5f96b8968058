"""Find the rows of the table that each step of an epoch holds, from the plan alone.

Runs in: the CLI (`plan --step`). A lane's share of a step is cut from blocks; a block's rows are the rows of
its pieces, laid end to end and put into their order. Only an order that a column decides reads the table: that column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.permutation import permutation
from feedline.blocks.request import RowOrder
from feedline.blocks.row_order import group_draws, order_values, ordered_rows
from feedline.dataclass import dataclass
from feedline.errors import PlanError
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block, Piece, rank_lanes
from feedline.planning.source_plan import SourcePlan, left_out

Int64s = NDArray[np.int64]

_KEPT_SPLITS = 64  # whose rows have been located: 16 bytes per row


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlice:
    """A lane's rows of a step, in the order of a batch. int64 [rows] each: split; row, its index among those of its
    split that the epoch delivers. valid: bool [rows], False for padding."""

    split: Int64s
    row: Int64s
    valid: NDArray[np.bool_]


class StepRows:
    """The rows of an epoch's steps. It holds the blocks that the last step of each lane was cut from."""

    def __init__(self, plan: SourcePlan, epoch: int) -> None:
        self.plan = plan
        self.epoch = epoch
        self.schedule = plan.schedule(epoch)
        self._remaining = plan.remaining_rows(epoch)
        self._rest = plan.rest(epoch)
        self._blocks: dict[int, dict[int, tuple[Int64s, Int64s]]] = {}
        self._split_rows = lru_cache(_KEPT_SPLITS)(self._rows_of_split)

    def of_lane(self, step: int, lane: int) -> StepSlice:
        """The rows of a lane's part of a step. Raises PlanError for an unknown step."""
        cuts = self.schedule.cuts(lane, step)
        blocks = self._blocks.setdefault(lane, {})
        for index in blocks.keys() - {cut.block for cut in cuts}:
            del blocks[index]
        splits, rows, valid = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
        for cut in cuts:
            if cut.block not in blocks:
                blocks[cut.block] = self._block_rows(lane, cut.block)
            places = np.full(cut.padding, cut.start) if cut.padding else np.arange(cut.start, cut.stop)
            splits.append(blocks[cut.block][0][places])
            rows.append(blocks[cut.block][1][places])
            valid.append(np.full(len(places), not cut.padding))
        return StepSlice(split=np.concatenate(splits), row=np.concatenate(rows), valid=np.concatenate(valid))

    def order(self, block: Block) -> Int64s | None:
        """The order of a block's rows; None in plan order."""
        order = self.plan.job.order
        request = self.plan.request(block, self.epoch)
        if request.draws is not None and request.permutation is not None:
            return permutation(request.rows, *request.permutation)  # of the draws, which `locate` finds
        return ordered_rows(order, request, lambda index: self._order_values(block.pieces[index], order))

    def locate(self, split: Int64s, row: Int64s) -> tuple[Int64s, Int64s]:
        """Row group (its index in the snapshot) and kept index of rows of splits. The kept index counts the selected
        rows of the row group."""
        groups, kept = np.empty_like(split), np.empty_like(row)
        for each in np.unique(split).tolist():
            here = split == each
            groups[here], kept[here] = (rows[row[here]] for rows in self._split_rows(each))
        return groups, kept

    def _block_rows(self, lane: int, index: int) -> tuple[Int64s, Int64s]:
        """Split and row of each row of a block, in the block's order."""
        block = self.schedule.block(lane, index)
        split = np.repeat([piece.split for piece in block.pieces], [each.stop - each.start for each in block.pieces])
        row = np.concatenate([np.arange(piece.start, piece.stop) for piece in block.pieces])
        order = self.order(block)
        return (split, row) if order is None else (split[order], row[order])

    def _rows_of_split(self, split: int) -> tuple[Int64s, Int64s]:
        """Row group and kept index of each row of a split that the epoch delivers."""
        splits = self.plan.splits
        groups = np.arange(int(splits.first_row_group[split]), int(splits.stop_row_group[split]))
        kept = np.concatenate([self._kept_rows(group) for group in groups.tolist()])
        return np.repeat(groups, self._remaining[groups]), kept

    def _kept_rows(self, group: int) -> Int64s:
        """The kept indices of the rows of a row group that the epoch delivers: all, unless it is a rebased one, or they
        are drawn."""
        kept = int(self.plan.selection.rows[group])
        if self.plan.weights is not None:
            return self._drawn(group, int(self._remaining[group]))
        if self._rest is None:
            return np.arange(kept)
        selected = ~self.plan.selection.excluded_mask(group)
        return np.flatnonzero(~left_out(self.plan, group, self.epoch)[selected])

    def _drawn(self, group: int, draws: int) -> Int64s:
        plan, order = self.plan, self.plan.job.order
        if not draws or order is None:
            return np.zeros(0, np.int64)
        column = read_kept_rows(plan, group, [order.column]).frame.get_column(order.column)
        fragment = plan.selection.fragment(plan.snapshot, np.array([group]))
        return group_draws(column, draws, (plan.seed, self.epoch, *plan.salt), fragment, 0)

    def _order_values(self, piece: Piece, order: RowOrder | None) -> pl.Series:
        assert order is not None
        row = np.arange(piece.start, piece.stop)
        groups, kept = self.locate(np.full(len(row), piece.split), row)
        parts = []
        for group in dict.fromkeys(groups.tolist()):
            column = read_kept_rows(self.plan, group, [order.column]).frame.get_column(order.column)
            parts.append(order_values(order, column).gather(kept[groups == group]))
        return pl.concat(parts)


# --------------------------------------------------------------------------------------------------------------------
# Find the rows of the tables that each step of an epoch holds. A lane's rows of a step are those of the first source,
# then those of the next, each from its own pass (`StepRows`).

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
        self._rows = lru_cache(_KEPT_PASSES * len(plan.sources))(self._of_pass)

    def of_rank(self, step: int, rank: int, world_size: int) -> LocatedRows:
        """The rows of a rank's batch. Raises PlanError for an unknown step or rank."""
        return self.of_lanes(step, rank_lanes(self.plan.lanes, rank, world_size))

    def of_lanes(self, step: int, lanes: Sequence[int]) -> LocatedRows:
        """The rows of some lanes, lane after lane."""
        first, steps = self.schedule.first_step, self.schedule.steps
        if not first <= step < steps:
            raise PlanError(f"step is out of range: got {step}, expected {first} to {steps - 1}")
        parts = [
            self._located(lane, source, passes.number_of(index), own)
            for lane in lanes
            for source, passes in enumerate(self._passes)
            for index, own in [passes.at(step)]
        ]
        names = [each.name for each in fields(LocatedRows)]
        return LocatedRows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    def _located(self, lane: int, source: int, number: int, step: int) -> LocatedRows:
        rows = self._rows(source, number)
        part = rows.of_lane(step, lane)
        group, kept = rows.locate(part.split, part.row)
        lanes, sources = np.full(len(kept), lane), np.full(len(kept), source)
        return LocatedRows(lane=lanes, source=sources, group=group, kept=kept, valid=part.valid)

    def _of_pass(self, source: int, number: int) -> StepRows:
        return StepRows(self.plan.sources[source], number)
