"""What do a plan's blocks look like as a Dask DataFrame? One partition per block, columns as features, Arrow-typed.

Runs in: the process that builds the graph; `BlockReader` in Dask workers. For looking at what a trainer would get
(groupby, describe, to_parquet), with the very task that feeds trainers.
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

from feedline.loader.encode import EncodedRows, encode, join
from feedline.loader.layout import BatchSchema
from feedline.service.tasks import BlockRequest, Job, compile_job, run_block


class BlockReader:
    """Computes a block as a pandas frame of Arrow columns. Picklable and small: Dask runs a copy."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, request: BlockRequest, columns: Sequence[str] | None = None) -> pd.DataFrame:
        result = run_block(self._job, request, "feedline-frame", False)
        assert result.parts is not None
        table = arrow_table(join(result.parts), compile_job(self._job).layout.schema)
        if columns is not None:
            table = table.select(list(columns))
        frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
        return frame

    def __dask_tokenize__(self) -> Any:
        return ("feedline-blocks", repr(self._job))


def blocks_to_dask(job: Job, requests: Sequence[BlockRequest]) -> Any:
    """The blocks as a Dask DataFrame with unknown divisions."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(
            BlockReader(job),
            list(requests),
            meta=_empty(job).to_pandas(types_mapper=pd.ArrowDtype),
            label="feedline-blocks",
            enforce_metadata=False,
        )


def arrow_table(rows: EncodedRows, schema: BatchSchema) -> pa.Table:
    """Encoded rows as an Arrow table with one column per feature, in the order of pipeline.yaml."""
    sparse = {column.name: place for place, column in enumerate(schema.sparse)}
    columns: dict[str, pa.Array] = {}
    for column in schema:
        if column.group in ("dense", "label"):
            matrix = rows.dense if column.group == "dense" else rows.labels
            block = matrix[:, column.offset : column.offset + column.width]
            columns[column.name] = (
                pa.array(block[:, 0])
                if column.width == 1
                else pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).ravel()), column.width)
            )
        elif column.group == "categorical":
            columns[column.name] = pa.array(rows.categorical[column.offset])
        elif column.group == "sparse":
            place = sparse[column.name]
            offsets, values = pa.array(rows.offsets[place]), pa.array(rows.values[place])
            if column.weighted:
                values = pa.StructArray.from_arrays([values, pa.array(rows.weights[place])], ["id", "weight"])
            columns[column.name] = pa.LargeListArray.from_arrays(offsets, values)
        else:
            columns[column.name] = rows.extra[column.offset]
    return pa.table(columns)


def _empty(job: Job) -> pa.Table:
    """No rows, in the very types that blocks come in."""
    compiled = compile_job(job)
    frame = pl.from_arrow(compiled.schema.empty_table())
    assert isinstance(frame, pl.DataFrame)
    encoded = encode(compiled.features.apply(frame.select(compiled.features.columns)), compiled.layout.schema)
    return arrow_table(encoded, compiled.layout.schema)
