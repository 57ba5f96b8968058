"""Write features as Parquet: one file per block, a column per feature.

Runs in: the workers. Columns have the types of `feedline transform`: float32, fixed-size lists of float32, int64, large
lists of int64 or float32, large lists of struct<id, weight>, and the extras' own. A file appears whole: locally it is
renamed when it is complete, in a store it is one upload.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.blocks.jobs import compile_job
from feedline.loader.encoding.arrow_table import arrow_table
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality
from feedline.materialize.array_plan import shown_facts
from feedline.materialize.block_rows import FilesJob, NumberedBlock, finished_rows
from feedline.materialize.output_folder import explain_writes
from feedline.warehouse.storage.content_store import put

_ROW_GROUP_ROWS = 65_536


def write_block_file(files: FilesJob, block: NumberedBlock) -> tuple[int, Quality]:
    """Compute a block and write its file; returns the file's bytes, and the rows' quality."""
    files.output.check()
    parts, quality = finished_rows(files.job, block)
    schema = compile_job(files.job).layout.schema.expanded
    table = pa.concat_tables([arrow_table(rows, schema) for rows in parts])
    del parts
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", row_group_size=_ROW_GROUP_ROWS)
    del table
    content = sink.getvalue()
    with explain_writes(files.output.name):
        files.output.check()  # a run that began meanwhile has the folder
        put(files.output.files, file_name(files.output.run, block.number), [content])
    return content.size, quality


def file_name(run: str, number: int) -> str:
    """The name of a block's file: names of one run sort in the order of the table, those of two runs differ."""
    return f"part-{run}-{number:08d}.parquet"


def file_columns(schema: BatchSchema) -> list[dict[str, Any]]:
    """For each feature, its facts: the column of its name holds it."""
    return [shown_facts(column) for column in schema]
