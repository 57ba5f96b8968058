"""The rows of a block for files: in plan order, and without deduplicated groups.

Runs in: the tasks of `feedline materialize`.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.blocks.request import BlockRequest, Job
from feedline.loader.encoding.encoded_rows import EncodedRows, expand, with_values
from feedline.loader.encoding.quality import Quality
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


def finished_rows(job: Job, block: NumberedBlock) -> tuple[list[EncodedRows], Quality]:
    """The block's rows, in parts, as those of batches without deduplication, and their quality."""
    result = run_block(job, block.request, f"feedline-materialize-{block.number}", False)
    schema = compile_job(job).layout.schema
    parts = []
    for rows in result.parts or ():
        assert isinstance(rows, EncodedRows)  # those of a block without a permutation are in order
        parts.append(with_values(expand(rows, schema)))
    return parts, result.quality
