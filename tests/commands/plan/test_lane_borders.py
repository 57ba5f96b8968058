"""Row groups that lanes share are those that blocks of several lanes read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place

from feedline import Pipeline
from feedline.commands.plan.report import row_groups_read_twice


@pytest.mark.parametrize(
    "batch",
    [{"size": 64}, {"size": None, "max_tokens": 400, "buckets": [2, 6, 40], "length": "hist_0"}],
)
def test_row_groups_are_read_as_often_as_blocks_name_them(tmp_path: Path, clicks: Path, batch: dict[str, Any]):
    plan = Pipeline.from_yaml(Place(tmp_path, clicks).write(lanes=4, batch=batch)).plan()
    schedule = plan.source.schedule(0)
    readers: Counter[tuple[str, int]] = Counter()
    for lane in range(4):
        own = set()
        for block in schedule.blocks(lane, everything=True):
            pieces = [piece.fragment for piece in plan.request(block, 0).pieces]
            own |= {(fragment.path, group) for fragment in pieces for group in fragment.row_groups}
        readers.update(own)
    twice = list(row_groups_read_twice(plan.source, schedule))
    assert twice
    assert len(twice) == sum(readers.values()) - len(readers)
