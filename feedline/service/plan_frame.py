"""A plan's blocks as a Dask DataFrame: one partition per block, one Arrow-typed column per feature.

Runs in: the process that builds the graph; `BlockReader` in Dask workers. For inspecting what a trainer gets (groupby,
describe, to_parquet): blocks are computed by the same function as for trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import arrow_table, expand, take
from feedline.loader.encoding.shuffled_rows import ShuffledRows
from feedline.planning.source_plan import SourcePlan


class BlockReader:
    """Computes a block as a pandas frame of Arrow columns. Pickled into the graph."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, request: BlockRequest, columns: Sequence[str] | None = None) -> pd.DataFrame:
        result = run_block(self._job, request, "feedline-frame", False)
        assert result.parts is not None
        parts = [rows.rows_at(0, rows.rows) if isinstance(rows, ShuffledRows) else rows for rows in result.parts]
        schema = compile_job(self._job).layout.schema
        rows = take(parts, np.arange(sum(part.rows for part in parts)))
        table = arrow_table(expand(rows, schema), schema.expanded)
        if columns is not None:
            table = table.select(list(columns))
        frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def __dask_tokenize__(self) -> Any:
        return ("feedline-blocks", repr(self._job))


def plan_to_dask(plan: SourcePlan, epoch: int) -> Any:
    """An epoch's blocks, lane after lane, as a Dask DataFrame with unknown divisions."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(
            BlockReader(plan.job),
            _all_blocks(plan, epoch),
            meta=_empty(plan.job).to_pandas(types_mapper=pd.ArrowDtype),
            label="feedline-blocks",
            enforce_metadata=False,
        )


def _all_blocks(plan: SourcePlan, epoch: int) -> list[BlockRequest]:
    """The epoch's blocks, lane after lane, including rows that `batch.tail: drop` drops."""
    schedule = plan.schedule(epoch)
    return [
        plan.request(block, epoch)
        for lane in range(plan.lanes)
        for block in schedule.blocks(lane, everything=True)
        if schedule.has_rows(lane)
    ]


def _empty(job: Job) -> pa.Table:
    compiled = compile_job(job)
    frame = pl.from_arrow(compiled.read.schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    marks = [pl.Series(name, [], pl.Boolean()) for name in compiled.features.marks]
    rows = frame.select(compiled.features.columns).with_columns(marks)
    schema = compiled.layout.schema.expanded
    return arrow_table(encode(compiled.features.apply(rows), schema), schema)
