"""Sampled blocks are blocks of the plan, and their passes give what tasks compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costly_tables import costly_plan

from feedline.blocks.block_encoder import StageClock
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.errors import PlanError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.workbench.explain import pass_costs
from feedline.workbench.explain.pass_costs import (
    bare_job,
    decode_block,
    encode_block,
    run_sample,
    sample_blocks,
    stage_seconds,
)


def test_samples_are_blocks_of_the_epoch(tmp_path: Path):
    plan = costly_plan(tmp_path, files=3, shuffle={"seed": 1, "window_rows": 8_192})
    sample = sample_blocks(plan.source, 2)
    schedule = plan.source.schedule(0)
    requests = [plan.request(block, 0) for block in schedule.blocks(0)]
    assert len(requests) > 2
    assert set(sample.requests) < set(requests)
    assert len(set(sample.requests)) == 2
    assert sample.rows == sum(request.rows for request in sample.requests)
    assert sample.epoch_rows == schedule.rows
    assert sample.row_groups.tolist() == list(range(6))


def test_more_blocks_than_there_are(tmp_path: Path):
    plan = costly_plan(tmp_path, files=1, row_group_rows=8_192)
    assert len(sample_blocks(plan.source, 5).requests) == 1


def test_large_blocks_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = costly_plan(
        tmp_path, files=1, row_group_rows=1_024, shuffle="off", source={"table": str(tmp_path / "table")}
    )
    monkeypatch.setattr(pass_costs, "_MOST_ROWS", 1_500)
    sample = sample_blocks(plan.source, 1)
    [request] = sample.requests
    assert request.rows == sum(piece.rows for piece in request.pieces) <= 1_500
    result = run_block(sample.job, request, "x", packed=False)
    assert result.rows == request.rows


@pytest.mark.parametrize("shuffle", [{"seed": 1}, "off"])
def test_passes_give_what_tasks_compute(tmp_path: Path, shuffle: dict[str, int] | str):
    plan = costly_plan(tmp_path, shuffle=shuffle)
    sample = sample_blocks(plan.source, 1)
    [request] = sample.requests
    compiled = compile_job(sample.job)
    decoded = decode_block(sample.job, compiled, request)
    clock = StageClock()
    encode_block(sample.job, compiled, decoded, clock)
    assert clock.seconds["encode"] > 0
    rows = sum(chunk.frame.height for piece in decoded.pieces for chunk in piece)
    assert rows == request.rows
    if shuffle != "off":
        assert decoded.index is not None
        assert sorted(decoded.index.tolist()) == list(range(rows))
    else:
        assert decoded.index is None


def test_stages_are_those_of_all_blocks(tmp_path: Path):
    sample = sample_blocks(costly_plan(tmp_path, files=3, shuffle={"seed": 1, "window_rows": 8_192}).source, 2)
    results = run_sample(sample, packed=False)
    assert len(results) == 2
    taken = stage_seconds(results).tolist()
    times = BlockTimes.total(each.times for each in results)
    assert taken == pytest.approx([times.read_cpu_s, times.transform_cpu_s, times.encode_cpu_s])
    assert taken[0] > 0


def test_bare_jobs_have_no_cache(tmp_path: Path):
    plan = costly_plan(tmp_path, cache={"dir": str(tmp_path / "cache"), "mode": "features"})
    assert plan.source.job.cache is not None
    assert bare_job(plan.source.job).cache is None
    assert bare_job(plan.source.job, plan.source.job.features[:1]).features == plan.source.job.features[:1]


def test_plans_without_rows_are_refused(tmp_path: Path):
    plan = costly_plan(tmp_path).source
    nothing = replace(plan, selection=replace(plan.selection, rows=np.zeros_like(plan.selection.rows)))
    with pytest.raises(PlanError):
        sample_blocks(nothing)
