"""Measure how evenly a plan's steps are filled, with `batch.balance` and `batch.buckets` and without, for `feedline
plan`.

Runs in: the process of the command. It reads the lengths of one list column of the blocks that a few steps in the
middle of an epoch draw from. Imbalance: of the elements of each lane's rows in a step, the most by the mean. Padding:
the share of places that hold none, with all rows of a lane padded to the longest, or to the bound of their bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.markup import escape

from feedline.blocks.request import RowOrder
from feedline.config.sections import BatchSpec
from feedline.dataclass import dataclass
from feedline.loader.wire.codec import to_values
from feedline.planning.bucket_schedule import BucketSchedule
from feedline.planning.plan import bucket_facts
from feedline.planning.schedule import Piece
from feedline.planning.source_plan import SourcePlan
from feedline.planning.step_rows import StepRows
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.row_measures import list_lengths

Int64s = NDArray[np.int64]

_MOST_ROWS = 4_000_000  # of the blocks whose lengths are read: seconds
_STEPS = 16
_MOST_LANES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How evenly some steps are filled: the mean and the greatest imbalance, and the share of padding."""

    imbalance: float
    worst_imbalance: float
    padding: float


def describe_lengths(plan: SourcePlan) -> dict[str, Any] | None:
    """What lengths decide, measured; None where they decide nothing."""
    batch, column = plan.spec.batch, plan.spec.batch.lengths
    if column is None:
        return None
    schedule = plan.schedule(0)
    lengths = lru_cache(None)(lambda group: _group_lengths(plan, column, group))
    lanes = _measured_lanes(plan)
    before, after = (_measure(each, lanes, lengths) for each in (_without_lengths(plan), plan))
    buckets = [to_values(bucket) for bucket in bucket_facts(plan)]
    facts: dict[str, Any] = {
        "column": column,
        "max": None if batch.balance is None else batch.balance.most,
        "balanced": batch.balance is not None,
        "buckets": buckets,
        "batch": _sizes_text(batch, plan.lanes) if buckets else "",
        "measured": {"lanes": lanes, "steps": min(_STEPS, schedule.steps)},
        "before": _as_values(before),
        "after": _as_values(after),
    }
    if isinstance(schedule, BucketSchedule) and plan.lengths is not None:
        places = int((plan.lengths.rows.sum(axis=0) * np.array(batch.buckets)).sum())
        facts["epoch_padding"] = 1 - int(plan.lengths.elements.sum()) / max(places, 1)
    return facts


def length_rows(facts: dict[str, Any], batch: str) -> Iterator[tuple[str, str]]:
    """The facts as rows of a table. batch: without buckets."""
    yield "batch", facts["batch"] or batch
    yield "lengths", "\n".join(map(escape, _lines(facts)))


def _lines(facts: dict[str, Any]) -> list[str]:
    before, after, measured = facts["before"], facts["after"], facts["measured"]
    what = "rows in buckets" if facts["buckets"] else "lanes balanced"
    what += " and lanes balanced" if facts["buckets"] and facts["balanced"] else ""
    cap = "" if facts["max"] is None else f", each counted up to {facts['max']:,}"
    worst = f" (worst step {before['worst_imbalance']:.3f} -> {after['worst_imbalance']:.3f})"
    lines = [
        f"{what} by {facts['column']}{cap}; measured in {measured['steps']} steps of {measured['lanes']} lanes:",
        f"imbalance {before['imbalance']:.3f} -> {after['imbalance']:.3f}{worst}",
        f"padding {before['padding']:.1%} -> {after['padding']:.1%}",
    ]
    if "epoch_padding" in facts:
        lines[-1] += f" ({facts['epoch_padding']:.1%} of the epoch)"
        idle = [f"{bucket['bound']:,}" for bucket in facts["buckets"] if not bucket["steps"]]
        if idle:
            lines.append(f"no step has rows of the buckets up to {', '.join(idle)}: they are too few, and are dropped")
    return lines


def _sizes_text(batch: BatchSpec, lanes: int) -> str:
    sizes = zip(batch.bucket_rows, batch.buckets or (), strict=True)
    return f"{lanes} lanes x " + " or ".join(f"{rows:,} rows of up to {bound:,}" for rows, bound in sizes)


def _as_values(fill: Fill) -> dict[str, float]:
    return {"imbalance": fill.imbalance, "worst_imbalance": fill.worst_imbalance, "padding": fill.padding}


def _without_lengths(plan: SourcePlan) -> SourcePlan:
    """The plan without balance and buckets, in about as many steps."""
    schedule = plan.schedule(0)
    size = plan.spec.batch.size
    if isinstance(schedule, BucketSchedule):
        size = max(1, (schedule.rows - schedule.rows_dropped) // (schedule.steps * schedule.lanes))
    spec = plan.spec.model_copy(update={"batch": BatchSpec(size=size)})
    return replace(plan, spec=spec, lengths=None, job=replace(plan.job, order=None))


def _measured_lanes(plan: SourcePlan) -> int:
    """The lanes whose blocks, together, have at most `_MOST_ROWS` rows."""
    lane = plan.schedule(0).lane(0)
    rows = len(lane.strands) * int(np.diff(lane.borders).max())
    return int(np.clip(_MOST_ROWS // max(rows, 1), 1, min(plan.lanes, _MOST_LANES)))


def _measure(plan: SourcePlan, lanes: int, lengths: Callable[[int], Int64s]) -> Fill:
    steps = _StepLengths(plan, lengths)
    count = steps.schedule.steps
    first = max(0, count // 2 - _STEPS // 2)
    imbalance, elements, places = [], 0, 0
    for step in range(first, min(first + _STEPS, count)):
        found = [steps.lengths_of(step, lane) for lane in range(lanes)]
        sums = np.array([each.sum() for each in found])
        imbalance.append(float(sums.max() / max(sums.mean(), 1e-9)))
        elements += int(sums.sum())
        places += sum(len(each) * steps.padded_to(step, each) for each in found)
    return Fill(
        imbalance=float(np.mean(imbalance)),
        worst_imbalance=max(imbalance),
        padding=1 - elements / max(places, 1),
    )


def _group_lengths(plan: SourcePlan, column: str, group: int) -> Int64s:
    """The lengths of a row group's kept rows."""
    snapshot = plan.snapshot
    fragment = plan.selection.fragment(snapshot, np.array([group]))
    chunks = read_fragment(fragment, ReadRequest([column], snapshot.schema, plan.where, sample=plan.sample))
    return np.concatenate([list_lengths(chunk.frame.get_column(column)) for chunk in chunks])


class _StepLengths(StepRows):
    """The lengths of the rows of steps. Lists count up to `max`, and in buckets up to the last bound."""

    def __init__(self, plan: SourcePlan, lengths: Callable[[int], Int64s]) -> None:
        super().__init__(plan, 0)
        self._lengths = lengths
        batch = plan.spec.batch
        self._bounds = batch.buckets or ()
        self._most = self._bounds[-1] if self._bounds else (None if batch.balance is None else batch.balance.most)

    def lengths_of(self, step: int, lane: int) -> Int64s:
        """int64 [rows]: the lengths of a lane's rows."""
        rows = self.of_lane(step, lane)
        found = self._at(rows.split, rows.row)
        return found if self._most is None else np.minimum(found, self._most)

    def padded_to(self, step: int, lengths: Int64s) -> int:
        """The length to which the rows of a lane are padded."""
        if isinstance(self.schedule, BucketSchedule):
            return int(self._bounds[int(self.schedule.step_buckets[step])])
        return int(lengths.max(initial=0))

    def _order_values(self, piece: Piece, order: RowOrder | None) -> pl.Series:
        row = np.arange(piece.start, piece.stop)
        return pl.Series(self._at(np.full(len(row), piece.split), row))

    def _at(self, split: Int64s, row: Int64s) -> Int64s:
        groups, kept = self.locate(split, row)
        found = np.empty(len(groups), np.int64)
        for group in np.unique(groups).tolist():
            here = groups == group
            found[here] = self._lengths(group)[kept[here]]
        return found
