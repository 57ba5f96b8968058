"""The rows of a block for files: in plan order, and without deduplicated groups.

Runs in: the tasks of `feedline materialize`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.loader.encoding.encoded_rows import EncodedRows, expand, take, with_values
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import ShuffledRows
from feedline.materialize.output_folder import OutputRef


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesJob:
    """What all tasks share. job: of blocks. output: where they write."""

    job: Job
    output: OutputRef


@dataclass(frozen=True, slots=True)
class NumberedBlock:
    """The rows of one task: the number of their part, and what is read."""

    number: int
    request: BlockRequest


def finished_rows(job: Job, block: NumberedBlock) -> tuple[EncodedRows, Quality]:
    """The block's rows, as those of batches without deduplication, and their quality."""
    result = run_block(job, block.request, f"feedline-materialize-{block.number}", False)
    assert result.parts is not None
    parts = [rows.rows_at(0, rows.rows) if isinstance(rows, ShuffledRows) else rows for rows in result.parts]
    rows = with_values(parts[0]) if len(parts) == 1 else take(parts, np.arange(result.rows))
    return expand(rows, compile_job(job).layout.schema), result.quality
