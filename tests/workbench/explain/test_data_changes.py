"""Staged tables: the change that would help is found.

Gains are CPU seconds of this process, of blocks with generous sizes. `benchmarks/explain.py` makes the changes,
and holds predictions to 25 %.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from costly_tables import costly_pipeline, lists

from feedline import Pipeline
from feedline.blocks.jobs import compile_job
from feedline.planning.plan import Plan
from feedline.workbench.explain import data_changes
from feedline.workbench.explain.cost_account import CostAccount, measure_costs
from feedline.workbench.explain.cpu_time import CpuBudget
from feedline.workbench.explain.data_changes import (
    _deduplicated,
    _measure,
    _parts_of,
    _truncated,
    find_changes_of_data,
)
from feedline.workbench.explain.measured_costs import ChangeKind, DataChange
from feedline.workbench.explain.pass_costs import BlockSample, sample_blocks

LISTS: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"]},
    "sparse": {"hist": [{"hash_bucket": 1000}], "tags": [{"modulo": 100}]},
    "label": {"clicked": []},
}
OPS: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"]},
    "sparse": {"hist": [], "tags": [{"sigrid_hash": {"salt": 1, "max_value": 1000}}]},
    "label": {"clicked": []},
}


def tags(rng: np.random.Generator, rows: int) -> Any:
    return lists(rng, rows, 4, values=100)


def few_values(rng: np.random.Generator, rows: int) -> Any:
    return lists(rng, rows, 30, values=10**6)


def measured(
    plan: Plan, only: Collection[ChangeKind], rounds: int = 2
) -> tuple[BlockSample, CostAccount, list[DataChange]]:
    sample = sample_blocks(plan.source)
    account = measure_costs(plan.source, sample=sample, rounds=rounds)
    return sample, account, find_changes_of_data(plan.source, sample, account, only=only, rounds=rounds)


def test_heavy_lists_are_named(tmp_path: Path):
    path = costly_pipeline(
        tmp_path, rows=16_384, row_group_rows=16_384, list_mean=60, files=2, features=LISTS, columns={"tags": tags}
    )
    _, account, changes = measured(Pipeline.from_yaml(path).plan(), ["drop"])
    assert changes[0].kind == "drop"
    assert changes[0].subject == "hist"
    assert changes[0].share > 0.5
    assert changes[0].gain_s.low > 0
    assert sum(changes[0].stages.values()) == pytest.approx(changes[0].gain_s.cpu_s)
    assert max(account.decoding.columns, key=lambda column: column.cpu_s.cpu_s).name == "hist"


def test_tiny_row_groups_are_named(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=8_192, row_group_rows=128, list_mean=3, files=2)
    _, _, changes = measured(Pipeline.from_yaml(path).plan(), ["row_groups"])
    [change] = changes
    assert change.subject == "row groups of 128 rows"
    assert change.share > 0.4
    assert "--row-group-rows" in change.how


def test_heavy_ops_are_named(tmp_path: Path):
    path = costly_pipeline(
        tmp_path, rows=16_384, row_group_rows=16_384, list_mean=2, features=OPS, columns={"tags": few_values}
    )
    _, _, changes = measured(Pipeline.from_yaml(path).plan(), ["op"])
    assert changes[0].subject == "sigrid_hash of tags"
    assert not changes[0].is_measured
    assert changes[0].share > 0.1


def test_an_op_gains_its_part_of_what_ops_of_whole_blocks_take(tmp_path: Path):
    path = costly_pipeline(
        tmp_path, rows=16_384, row_group_rows=16_384, list_mean=2, features=OPS, columns={"tags": few_values}
    )
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    slower = replace(account, stages={**account.stages, "ops": 2 * account.stages["ops"]})
    once, twice = (
        find_changes_of_data(plan.source, sample, each, only=["op"], rounds=1)[0] for each in (account, slower)
    )
    assert twice.gain_s.cpu_s == pytest.approx(2 * once.gain_s.cpu_s)
    assert once.before == account.stages


def test_large_row_groups_without_costly_lists_need_nothing(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=40_000, row_group_rows=40_000, list_mean=1, files=1)
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    assert find_changes_of_data(plan.source, sample, account, only=["row_groups", "truncate"], rounds=1) == []


def test_long_tails_are_cut_at_a_percentile(tmp_path: Path):
    def tailed(rng: np.random.Generator, rows: int) -> Any:
        return lists(rng, rows, 5).__class__.from_arrays(
            np.concatenate([[0], np.cumsum(np.where(np.arange(rows) % 25 == 0, 400, 4))]).astype(np.int32),
            np.arange(int(np.where(np.arange(rows) % 25 == 0, 400, 4).sum())),
        )

    features = {"sparse": {"long": [{"modulo": 10}], "bounded": {"column": "long", "ops": [{"first_x": 3}]}}}
    path = costly_pipeline(
        tmp_path,
        rows=8_192,
        row_group_rows=8_192,
        list_mean=2,
        files=1,
        features={**features, "label": {"clicked": []}},
        columns={"long": tailed},
    )
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    [trial] = _truncated(sample, compile_job(sample.job), account)
    assert trial.change.subject == "long"
    assert trial.change.how.startswith("long: [{first_x: 4}")
    assert trial.change.loses.startswith("80% of its elements are lost")
    [shorter] = [feature for feature in trial.sample.job.features if feature.name == "long"]
    assert [call.op for call in shorter.ops] == ["first_x", "modulo"]


def test_caches_need_the_disk_that_they_fill(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=8_192, row_group_rows=8_192, list_mean=60, files=1)
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    [change] = find_changes_of_data(plan.source, sample, account, only=["cache"], rounds=1)
    assert change.from_epoch == 1
    assert change.disk_bytes > 8_192 * 60 * 2  # ids below 1,000, two bytes each
    assert change.share > 0.4


def test_repeated_lists_may_be_groups(tmp_path: Path):
    def repeated(rng: np.random.Generator, rows: int) -> Any:
        return lists(rng, rows // 32, 60).take(pa.array(np.repeat(np.arange(rows // 32), 32)))

    features = {"sparse": {"user": [{"hash_bucket": 1000}]}, "label": {"clicked": []}}
    path = costly_pipeline(
        tmp_path,
        rows=8_192,
        row_group_rows=8_192,
        list_mean=2,
        files=1,
        features=features,
        columns={"user": repeated},
        shuffle={"rows": False},
    )
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    [trial] = _deduplicated(plan.source, sample)
    assert trial.change.how == "dedup:\n  user: {columns: [user]}"
    assert {feature.name: feature.dedup for feature in trial.sample.job.features} == {"user": "user", "clicked": None}
    [change] = _measure(sample, [trial], CpuBudget(), 1)
    assert change.before_s > 0


def test_changes_that_cannot_be_made_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    path = costly_pipeline(tmp_path, rows=2_048, row_group_rows=128, list_mean=20, files=1)
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    monkeypatch.setattr(data_changes, "rewrite_sample", full)
    found = find_changes_of_data(plan.source, sample, account, only=["drop", "row_groups", "optimize"], rounds=1)
    assert {change.kind for change in found} <= {"drop"}


def test_little_budget_tries_less(tmp_path: Path):
    path = costly_pipeline(tmp_path, rows=4_096, row_group_rows=512, list_mean=20, files=1)
    plan = Pipeline.from_yaml(path).plan()
    sample = sample_blocks(plan.source, 1)
    account = measure_costs(plan.source, sample=sample, rounds=1)
    assert find_changes_of_data(plan.source, sample, account, budget_s=0.0, only=["drop", "optimize", "cache"]) == []


def test_gains_are_divided_among_the_stages_that_gain():
    assert _parts_of(6.0, np.array([2.0, 1.0, -1.0])) == {"decoding": 4.0, "ops": 2.0, "encoding": 0.0}
    assert _parts_of(6.0, np.array([-2.0, 0.0, -1.0])) == {"decoding": 2.0, "ops": 2.0, "encoding": 2.0}
