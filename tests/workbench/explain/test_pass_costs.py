"""Features go through passes one by one, and steps that they share are paid in equal parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costly_tables import costly_plan

from feedline.blocks import block_encoder
from feedline.blocks.block_encoder import StageClock
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.errors import PlanError
from feedline.loader.encoding.block_times import BlockTimes
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.compile.step_passes import StepPass
from feedline.workbench.explain import pass_costs
from feedline.workbench.explain.cpu_time import CpuBudget
from feedline.workbench.explain.pass_costs import (
    REPEATS,
    StepCost,
    _fair_share,
    bare_job,
    decode_block,
    encode_block,
    measure_passes,
    run_sample,
    sample_blocks,
    stage_seconds,
)

SHARED = {
    "dense": {
        "one": {"column": "text", "ops": [{"hash_bucket": 1000}, {"cast": "float32"}]},
        "other": {"column": "text", "ops": [{"hash_bucket": 1000}, {"cast": "float32"}, "log1p"]},
    },
    "sparse": {"hist": [{"hash_bucket": 1000}]},
    "label": {"clicked": []},
}


def test_heavy_features_cost_most_and_sums_agree(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=16_384, row_group_rows=8_192, list_mean=60)
    sample = sample_blocks(plan.source, 1)
    costs = measure_passes(sample, compile_job(sample.job), CpuBudget(), rounds=3)
    by_name = {cost.name: cost.ops_s.cpu_s + cost.encode_s.cpu_s for cost in costs.features}
    assert list(by_name) == [feature.name for feature in plan.source.job.features]
    assert max(by_name, key=by_name.__getitem__) == "hist"
    assert by_name["hist"] > 0.5 * sum(by_name.values())
    assert sum(by_name.values()) + costs.shared.cpu_s == pytest.approx(costs.whole.cpu_s, rel=0.5)
    assert 0.5 * by_name["hist"] < costs.ops_s < costs.whole.cpu_s
    [hist] = [cost for cost in costs.features if cost.name == "hist"]
    assert [step.op for step in hist.steps] == ["hash_bucket"]
    assert sum(step.cpu_s for step in hist.steps) == pytest.approx(hist.ops_s.cpu_s)
    [both] = [cost for cost in costs.features if cost.name == "both"]
    assert [step.op for step in both.steps] == ["expr"]


def test_features_beyond_the_budget_are_measured_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = costly_plan(tmp_path)
    sample = sample_blocks(plan.source, 1)
    monkeypatch.setattr(pass_costs, "_MOST_FEATURES", 3)
    costs = measure_passes(sample, compile_job(sample.job), CpuBudget(), rounds=1)
    *_, one, other = costs.features
    assert (one.ops_s, one.encode_s) == (other.ops_s, other.encode_s)


@pytest.mark.parametrize(
    ("steps", "share", "costs"),
    [
        ([], 1.0, []),
        ([(3.0, 1), (1.0, 1)], 1.0, [6.0, 2.0]),
        ([(3.0, 3), (1.0, 1)], 0.5, [6.0, 2.0]),
        ([(4.0, 4)], 0.25, [8.0]),
        ([(0.0, 2)], 1.0, []),
    ],
)
def test_steps_are_paid_by_all_that_share_them(steps: list[tuple[float, int]], share: float, costs: list[float]):
    fair, scaled = _fair_share([StepCost(op="x", cpu_s=cpu_s, sharers=sharers) for cpu_s, sharers in steps], 8.0)
    assert fair == share
    assert [step.cpu_s for step in scaled] == costs


def test_deduplicated_features_are_measured_with_the_runs_of_their_group(tmp_path: Path):
    plan = costly_plan(tmp_path, dedup={"users": {"columns": ["item", "hist"]}}, shuffle={"seed": 1, "rows": False})
    sample = sample_blocks(plan.source, 1)
    assert any(feature.dedup for feature in sample.job.features)
    costs = measure_passes(sample, compile_job(sample.job), CpuBudget(), rounds=1)
    assert {cost.name for cost in costs.features} == {each.name for each in plan.source.job.features}


class _RowClock:
    """A clock of what is computed: a second per row in which a repeat is looked for, or that an op computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(pass_costs.time, "process_time", lambda: self.now_s)
        self._count(monkeypatch, block_encoder, "first_coded_rows", lambda coded, *_: coded.frame.height)
        self._count(monkeypatch, StepPass, "run", lambda _, frame: frame.height)
        self._count(
            monkeypatch,
            CompiledFeatures,
            "apply_counting",
            lambda own, frame, *_: frame.height * sum(len(feature.ops) for feature in own.features),
        )

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, rows: Callable[..., int]) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.now_s += rows(*arguments)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)


def test_ops_of_a_group_cost_what_they_take_on_its_unique_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = costly_plan(
        tmp_path,
        rows=4_000,
        row_group_rows=4_000,
        columns={"user": lambda _, rows: np.arange(rows) // 5 * 2.5},
        features={
            "dense": {"own": {"column": "user", "ops": [{"clip": {"max": 1e9}}]}, "price": []},
            "label": {"clicked": []},
        },
        dedup={"users": {"columns": ["user"]}},
        shuffle={"seed": 1, "rows": False},
    )
    sample = sample_blocks(plan.source, 1)
    compiled = compile_job(sample.job)
    clock = _RowClock(monkeypatch)
    costs = measure_passes(sample, compiled, CpuBudget(clock=lambda: clock.now_s), rounds=1)
    [own] = [cost for cost in costs.features if cost.name == "own"]
    repeats, op = own.steps
    assert (repeats.op, op.op) == (REPEATS, "clip")
    assert op.cpu_s == pytest.approx(repeats.cpu_s / 5)
    assert repeats.cpu_s + op.cpu_s == pytest.approx(own.ops_s.cpu_s)
    assert all(REPEATS not in {step.op for step in cost.steps} for cost in costs.features if cost.name != "own")


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
