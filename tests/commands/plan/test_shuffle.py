"""`feedline plan --shuffle` measures the rows that a plan delivers: against a count by hand, and in its output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pipelines import Place
from processes import ended_here

from feedline import Pipeline
from feedline.commands.plan.shuffle import alternatives, heat_strip, measure_shuffle
from feedline.planning.rows.step_rows import StepRows


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Place:
    return Place(tmp_path, clicks)


def test_pairs_of_one_row_group_are_those_of_the_rows_delivered(place: Place):
    plan = Pipeline.from_yaml(place.write(lanes=2, batch={"size": 64})).plan()
    found = measure_shuffle("now", plan, world_size=1)
    rows = StepRows(plan, 0)
    shares = []
    full = plan.schedule(0).rows // 2 // 64
    for step in np.unique(np.linspace(0, full - 2, 96).astype(int)).tolist():
        for lane in range(2):
            part = rows.of_lanes(step, [lane])
            groups, _ = rows.locate(part.split, part.row)
            same = sum(int((groups == group).sum()) - 1 for group in groups)
            shares.append(same / (64 * 63))
    assert len(plan.schedule(0).lane(0).strands) > 1
    assert found.same_row_group == pytest.approx(np.mean(shares), abs=0.03)
    assert found.same_row_group_true < found.same_row_group_step < found.same_row_group < 1


def test_decoded_rows_are_counted_piece_by_piece(place: Place):
    plan = Pipeline.from_yaml(place.write(lanes=5, batch={"size": 64})).plan()
    schedule = plan.schedule(0)
    requests = [plan.request(block, 0) for lane in range(5) for block in schedule.blocks(lane, everything=True)]
    decoded = sum(sum(piece.fragment.expected) for request in requests for piece in request.pieces)
    assert measure_shuffle("now", plan, world_size=1).decoded == pytest.approx(decoded / schedule.rows)


def test_settings_beside_the_present_one(place: Place):
    names = [name for name, _ in alternatives(Pipeline.from_yaml(place.write()).plan())]
    assert names == ["window_rows: 2,048", "window_rows: 1,024", "window_rows: 4,096"]
    off = alternatives(Pipeline.from_yaml(place.write(shuffle="off")).plan())
    assert [name for name, _ in off] == ["shuffle: off", "window_rows: 524,288", "window_rows: 1,048,576"]
    now, default, _ = (measure_shuffle(name, plan, world_size=1) for name, plan in off)
    assert now.displacement < 0.1 < default.displacement
    assert now.same_row_group > default.same_row_group


def test_the_command(place: Place):
    path = place.write(batch={"size": 64})
    facts = json.loads(ended_here("plan", path, "--shuffle", "--json").stdout)
    assert [len(setting["regions"][0]) for setting in facts["settings"]] == [60] * 3
    assert all(sum(row) == pytest.approx(1) for setting in facts["settings"] for row in setting["regions"])
    text = ended_here("plan", path, "--shuffle").stdout
    assert "pairs of one row group" in text
    assert f"|{'▒' * 60}|" in text
    assert heat_strip((1 / 60,) * 60) == "▒" * 60
