"""Write the finished features of a plan's rows into a folder.

Runs in: the process that materializes; tasks run on `Workers`, at most two per thread at once, so that memory is
bounded by the blocks in flight. Rows are those of the plan in the order of the table: file after file, row group after
row group, whatever `shuffle` says. Tasks write the Parquet file of their block, or return what it adds to each array.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.blocks.jobs import compile_job
from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.extras import extra
from feedline.fitting.reduction import Workers, run_tasks
from feedline.loader.encoding.encoded_rows import arrow_table
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import Quality
from feedline.materialize.feature_arrays import (
    array_columns,
    arrays_of,
    block_elements,
    feature_facts,
)
from feedline.materialize.output_folder import FilesJob, NumberedBlock, OutputFolder, explain_writes, finished_rows
from feedline.planning.schedule import Block, Schedule
from feedline.planning.source_plan import SourcePlan
from feedline.progress import report_progress
from feedline.service.feeder.quality_monitor import QualityMonitor
from feedline.version import VERSION
from feedline.warehouse.optimize.landing import refuse_overlap
from feedline.warehouse.storage.content_store import put

# --------------------------------------------------------------------------------------------------------------------
# Write features as Parquet: one file per block, a column per feature. Columns have the types of `feedline transform`:
# float32, fixed-size lists of float32, int64, large lists of int64 or float32, large lists of struct<id, weight>, and
# the extras' own. A file appears whole: locally it is renamed when it is complete, in a store it is one upload.

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
    return [feature_facts(column) for column in schema]


# --------------------------------------------------------------------------------------------------------------------

FORMATS = ("zarr", "parquet")
_FORMAT = 2  # of the facts in the marker
_BLOCK_ROWS = 131_072
_BLOCK_BYTES = 64 << 20  # compressed bytes that a block reads

_COMPUTING = "computing"  # the phase of progress

Format = Literal["zarr", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeReport:
    """What was written. bytes: of Parquet files, of arrays before compression."""

    output: str
    format: str
    rows: int
    features: int
    bytes: int
    seconds: float


def open_output(out: str, format: str, *, overwrite: bool) -> OutputFolder:
    """The folder to write into, checked and unchanged. Raises SpecError for what cannot be written."""
    if format not in FORMATS:
        raise SpecError(f"the format is unknown: got {format!r}, expected {' or '.join(FORMATS)}")
    return OutputFolder(out, overwrite=overwrite)


def write_plan(
    plan: SourcePlan,
    folder: OutputFolder,
    format: str,
    workers: Workers,
    *,
    monitor: QualityMonitor,
) -> MaterializeReport:
    """Write the features of all of a plan's rows. monitor: checks their quality; a warning for what it complains of.

    Raises TableError where the folder cannot be written, what blocks raise, and DataError for broken expectations.
    Then OUT is as it was, or, in a store, without its marker.
    """
    began = time.perf_counter()
    refuse_overlap([plan.snapshot.uri], folder.ref.claim.uri)
    job = replace(plan.job, order=None, record=None, environment=workers.environment)
    plan = replace(plan, weights=None)  # each row comes once
    schema = compile_job(job).layout.schema.expanded
    if format == "zarr":
        with extra("zarr", "--format zarr"):
            from feedline.materialize.arrays_writer import ArraysWriter  # noqa: PLC0415 -- an extra
        arrays_of(schema)  # raises for features that no array holds, before anything is written
    blocks, rows = _blocks(plan)
    done = 0
    report_progress(_COMPUTING, done, rows, "rows")

    def add(block: Block, quality: Quality) -> None:
        nonlocal done
        monitor.add(done, [(replace(block, last_step=done + block.rows), quality)])
        done += block.rows
        report_progress(_COMPUTING, done, rows, "rows")

    tasks = [
        NumberedBlock(index, replace(plan.request(block, 0), permutation=None)) for index, block in enumerate(blocks)
    ]
    try:
        output = folder.begin()
        if format == "parquet":
            columns, contents = file_columns(schema), [file_name(output.run, task.number) for task in tasks]
            nbytes = 0
            for block, (size, quality) in zip(
                blocks, run_tasks(workers, write_block_file, FilesJob(job=job, output=output), tasks), strict=True
            ):
                nbytes += size
                add(block, quality)
        else:
            columns, contents = array_columns(schema), [array.path for array in arrays_of(schema)]
            writer = ArraysWriter(schema, output)
            for block, (elements, quality) in zip(blocks, run_tasks(workers, block_elements, job, tasks), strict=True):
                writer.append(elements)
                add(block, quality)
            nbytes = writer.finish()
        for complaint in monitor.end():
            warnings.warn(complaint, UserWarning, stacklevel=3)
        folder.finish({**_facts(plan, format, rows), "columns": columns, "contents": contents}, group=format == "zarr")
    except BaseException:
        workers.remove_when_idle(folder.discard)
        raise
    return MaterializeReport(
        output=folder.name,
        format=format,
        rows=rows,
        features=len(schema),
        bytes=nbytes,
        seconds=time.perf_counter() - began,
    )


def _blocks(plan: SourcePlan) -> tuple[list[Block], int]:
    """All selected rows in the order of the table, cut where splits end; and how many there are."""
    # rows of 1 KiB, compressed: 65,536 to a block
    rows = max(1, min(_BLOCK_ROWS, int(_BLOCK_BYTES / max(plan.row_bytes.selected, 1))))
    schedule = Schedule(
        split_rows=plan.split_rows,
        lanes=1,
        batch_size=1,
        tail="partial",
        block_rows=rows,
        shuffle=False,
        seed=0,
        epoch=0,
    )
    return list(schedule.blocks(0, everything=True)), schedule.rows


def _facts(plan: SourcePlan, format: str, rows: int) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "files": format,
        "feedline": VERSION,
        "pipeline": plan.spec.name,
        "snapshot": plan.snapshot.id,
        "plan": plan.fingerprint,
        "features": plan.features_fingerprint,
        "rows": rows,
    }
