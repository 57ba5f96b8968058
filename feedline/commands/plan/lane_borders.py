"""Find the row groups that borders between lanes cut, which are decoded for more than one lane.

Runs in: the process of the command. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.planning.lengths.bucket_schedule import BucketSchedule
from feedline.planning.schedule import Schedule
from feedline.planning.source_plan import SourcePlan


def row_groups_read_twice(plan: SourcePlan, schedule: Schedule) -> Iterator[int]:
    """The row groups cut by a border between lanes, which both neighbours decode, one per border; with buckets all
    that have a border of some bucket."""
    if isinstance(schedule, BucketSchedule):
        yield from np.repeat(np.arange(len(plan.selection.rows)), np.maximum(schedule.readers() - 1, 0)).tolist()
        return
    rows = plan.remaining_rows(0)
    ends = np.cumsum(rows, dtype=np.int64)  # of row groups, in the table's order
    split_starts = (ends - rows)[plan.splits.first_row_group]
    for lane in range(1, schedule.lanes):
        border = schedule.lane_bounds(lane)[0]
        if border in (0, schedule.rows):
            continue
        index = int(np.searchsorted(schedule.starts, border, side="right")) - 1
        row = int(split_starts[schedule.order[index]]) + border - int(schedule.starts[index])
        group = int(np.searchsorted(ends, row, side="right"))
        if row != (int(ends[group - 1]) if group else 0):
            yield group
