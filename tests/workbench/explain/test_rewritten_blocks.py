"""Blocks read from rewritten files have the rows that they have now, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from costly_tables import costly_plan

from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.planning.plan import Plan
from feedline.resources.scratch import scratch_folder
from feedline.workbench.explain import data_changes
from feedline.workbench.explain.data_changes import (
    mean_row_group_rows,
    read_columns,
    rewrite_sample,
)
from feedline.workbench.explain.pass_costs import BlockSample, sample_blocks


def images(sample: BlockSample) -> list[bytes]:
    results = [run_block(sample.job, request, "x", packed=True) for request in sample.requests]
    return [result.image.to_pybytes() for result in results if result.image is not None]


@pytest.mark.parametrize(
    ("better", "merge", "where"), combinations([(), ("hist", "price")], [False, True], [None, "item < 30000"])
)
def test_rows_stay_as_they_are(tmp_path: Path, better: tuple[str, ...], merge: bool, where: str | None):
    source: dict[str, Any] = {"table": str(tmp_path / "table")} | ({} if where is None else {"where": where})
    plan = costly_plan(tmp_path, rows=2_048, row_group_rows=256, list_mean=6, source=source)
    sample = sample_blocks(plan.source, 2)
    with scratch_folder() as folder:
        rewritten = rewrite_sample(sample, compile_job(sample.job), folder, better=better, merge=merge)
        assert images(rewritten.sample) == images(sample)
        files = [pq.read_metadata(path) for path in folder.glob("*.parquet")]
        groups = sum(each.num_row_groups for each in files)
        before = {
            (piece.fragment.path, index)
            for request in sample.requests
            for piece in request.pieces
            for index in piece.fragment.row_groups
        }
        assert groups == len(before) if not merge else groups < len(before)
        assert rewritten.row_group_rows == round(sum(each.num_rows for each in files) / groups)
        assert rewritten.nbytes > 0
        assert rewritten.before > 0
    assert not folder.exists()


def test_encodings_are_kept_or_chosen(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=2_048, list_mean=6)
    sample = sample_blocks(plan.source, 1)
    with scratch_folder() as folder:
        rewrite_sample(sample, compile_job(sample.job), folder, better=("item",))
        chunk = pq.read_metadata(next(folder.glob("*.parquet"))).row_group(0)
        columns = {chunk.column(index).path_in_schema: chunk.column(index) for index in range(chunk.num_columns)}
    assert columns["hist.list.element"].compression == "SNAPPY"
    assert "RLE_DICTIONARY" in columns["hist.list.element"].encodings


def test_names_with_dots_and_structs_are_written(tmp_path: Path):
    def records(rng: np.random.Generator, rows: int) -> pa.Array:
        values = pa.array(rng.integers(0, 9, rows))
        return pa.StructArray.from_arrays([values, values], ["a", "b"])

    features = {
        "dense": {"dotted": {"column": "x.y", "ops": [{"fill_null": 0}]}, "part": {"expr": 'record["a"] + 1'}},
        "label": {"clicked": []},
    }
    columns = {"x.y": lambda rng, rows: rng.random(rows).astype(np.float32), "record": records}
    plan = costly_plan(tmp_path, rows=1_024, row_group_rows=256, list_mean=2, features=features, columns=columns)
    sample = sample_blocks(plan.source, 1)
    with scratch_folder() as folder:
        rewritten = rewrite_sample(sample, compile_job(sample.job), folder, better=("x.y",), merge=True)
        assert images(rewritten.sample) == images(sample)


def test_row_groups_are_joined_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = costly_plan(tmp_path, rows=2_048, row_group_rows=256, list_mean=6, files=4)
    sample = sample_blocks(plan.source, 1)
    monkeypatch.setattr(data_changes, "ROW_GROUP_ROWS", 1_024)
    with scratch_folder() as folder:
        rewritten = rewrite_sample(sample, compile_job(sample.job), folder, merge=True)
        assert images(rewritten.sample) == images(sample)


def columns_of(plan: Plan) -> list[str]:
    return read_columns(compile_job(sample_blocks(plan.source, 1).job))


def test_columns_of_the_filter_are_written_too(tmp_path: Path):
    plan = costly_plan(
        tmp_path,
        features={"dense": {"price": [{"fill_null": 0}]}, "label": {"clicked": []}},
        source={"table": str(tmp_path / "table"), "where": "item < 30000"},
    )
    assert columns_of(plan) == ["price", "item", "clicked"]


def test_mean_rows_of_row_groups(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=1_000, row_group_rows=300, files=1)
    assert mean_row_group_rows(sample_blocks(plan.source, 1), plan.source.snapshot.rows_per_row_group) == 250
