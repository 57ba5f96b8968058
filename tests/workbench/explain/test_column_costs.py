"""Columns are decoded one by one, and all of them have their costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from costly_tables import costly_plan

from feedline.blocks.jobs import compile_job
from feedline.workbench.explain import cost_account
from feedline.workbench.explain.cost_account import _call_seconds, measure_decoding, stored_as
from feedline.workbench.explain.cpu_time import CpuBudget
from feedline.workbench.explain.pass_costs import sample_blocks


def test_lists_cost_most_and_sums_agree(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=32_768, row_group_rows=16_384, list_mean=60)
    sample = sample_blocks(plan.source, 1)
    costs = measure_decoding(sample, compile_job(sample.job), plan.source.snapshot, CpuBudget(), rounds=3)
    by_name = {column.name: column for column in costs.columns}
    assert by_name.keys() == {"price", "item", "hist", "clicked"}
    total = sum(column.cpu_s.cpu_s for column in costs.columns)
    assert by_name["hist"].cpu_s.cpu_s > 0.6 * total
    assert abs(costs.difference_s) < 0.4 * costs.whole.cpu_s
    assert all(column.is_measured for column in costs.columns)
    footers = [pq.read_metadata(path) for path in (tmp_path / "table").glob("*.parquet")]
    stored = sum(
        footer.row_group(group).column(2).total_compressed_size
        for footer in footers
        for group in range(footer.num_row_groups)
    )
    assert by_name["hist"].nbytes == pytest.approx(stored / 65_536 * 1e6, rel=1e-6)


def test_columns_beyond_the_budget_share_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = costly_plan(tmp_path)
    sample = sample_blocks(plan.source, 1)
    monkeypatch.setattr(cost_account, "_MOST_COLUMNS", 1)
    costs = measure_decoding(sample, compile_job(sample.job), plan.source.snapshot, CpuBudget(), rounds=1)
    assert {column.name for column in costs.columns if column.is_measured} == {"hist"}
    rest = [column for column in costs.columns if not column.is_measured]
    assert len(rest) == 3
    per_byte = [column.cpu_s.cpu_s / column.nbytes for column in rest]
    assert per_byte == pytest.approx([per_byte[0]] * 3)


def test_partition_columns_cost_no_bytes(tmp_path: Path):
    plan = costly_plan(tmp_path)
    sample = sample_blocks(plan.source, 1)
    compiled = compile_job(sample.job)
    with_key = replace(compiled, columns=(*compiled.columns, "day"))
    assert stored_as(sample.requests[0].pieces[0].fragment, with_key.columns[:4], compiled.schema).keys() == {
        "price",
        "item",
        "hist",
        "clicked",
    }


def test_encodings_and_decoders_are_those_of_the_file(tmp_path: Path):
    plan = costly_plan(tmp_path)
    fragment = sample_blocks(plan.source, 1).requests[0].pieces[0].fragment
    found = stored_as(fragment, ["price", "hist"], plan.source.snapshot.schema)
    assert found["price"].codecs == ("snappy",)
    assert found["price"].encodings == ("DICTIONARY",)
    arrow = stored_as(replace(fragment, decoder="arrow"), ["price"], plan.source.snapshot.schema)
    assert arrow["price"].decoder == "pyarrow: decoder: arrow"


def test_calls_are_told_from_columns_by_columns_alone_and_together():
    own, call_s = np.array([0.2, 0.3, 0.5]), 0.1
    alone = np.tile(own + call_s, (2, 1))
    assert _call_seconds(alone, np.full(2, own.sum() + call_s)) == pytest.approx(call_s)
    assert _call_seconds(alone, np.full(2, 5.0)) == 0.0
    assert _call_seconds(alone, np.full(2, 0.0)) == pytest.approx(0.3)  # no column costs less than nothing
    assert _call_seconds(alone[:, :1], np.full(2, 0.3)) == 0.0
