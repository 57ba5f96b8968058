"""Read files of the Parquet collection in a child process under limits, and report the results."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.commands.check import run_check
from feedline.config import load_spec
from feedline.errors import FeedlineError
from feedline.pipeline import Pipeline
from feedline.warehouse.reading.read import ReadRequest, read_arrow, read_fragment
from feedline.warehouse.selection.select import SPLIT_ROWS, plan_fragments, screen_rows
from feedline.warehouse.snapshot.take import take_snapshot

MEMORY_BYTES = 1 << 30  # address space beyond what the child already has


def compare(path: str) -> dict[str, Any]:
    """Compare what Feedline and pyarrow read; `refused` and `pyarrow` are their errors, or None."""
    refused = theirs = None
    read = expected = None
    try:
        snapshot = take_snapshot(path)
        columns = list(snapshot.file_columns)
        fragments = plan_fragments(snapshot, screen_rows(snapshot, None), SPLIT_ROWS)
        schema = pa.schema([snapshot.schema.field(name) for name in columns])
        parts = [read_arrow(part, ReadRequest(columns, snapshot.schema)) for part in fragments]
        read = pa.concat_tables([schema.empty_table(), *parts])
    except FeedlineError as error:
        refused = f"{type(error).__name__}: {error}"
    try:
        expected = pq.ParquetFile(
            path, coerce_int96_timestamp_unit="us", arrow_extensions_enabled=False, page_checksum_verification=True
        ).read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        theirs = f"{type(error).__name__}: {error}"
    different = []
    if read is not None and expected is not None:
        different = [] if read.schema.names == expected.schema.names else ["names"]
        different += [name for name in expected.schema.names if not _same(read[name], expected[name])]
    return {"refused": refused, "pyarrow": theirs, "different": different, "frames": _frames(path)}


def skip(path: str, work: str) -> dict[str, Any]:
    """Check and plan a pipeline over a good file and this one that skips bad files; return the findings."""
    folder = Path(work)
    pq.write_table(pa.table({"a_good_column": pa.array(range(100), pa.float32())}), folder / "good.parquet")
    (folder / "p.yaml").write_text(
        json.dumps(
            {
                "version": 1,
                "name": "collection",
                "source": {"table": [str(folder / "good.parquet"), path], "on_bad_file": "skip"},
                "features": {"dense": {"a_good_column": []}},
                "batch": {"size": 10},
                "shuffle": "off",
            }
        )
    )
    report = run_check(load_spec(folder / "p.yaml", {}), deep=True, all_columns=True)
    plan = Pipeline.from_yaml(folder / "p.yaml").plan()
    return {
        "checked": [bad.file for bad in report.bad_files],
        "problems": [[problem.file, problem.reason] for problem in report.problems],
        "skipped": [[bad.path, bad.reason] for bad in plan.bad_files()],
        "files": len(plan.source.snapshot.files),
        "rows": int(plan.source.selection.rows.sum()),
    }


def child(answers: Connection, function: str, jobs: Sequence[tuple[str, ...]]) -> None:
    """Run jobs one after the other, each under the memory limit, and send their results as JSON."""
    for arguments in jobs:
        limit = psutil.Process().memory_info().vms + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        answers.send(json.dumps({"compare": compare, "skip": skip}[function](*arguments)))
    answers.close()


def _same(read: pa.ChunkedArray, expected: pa.ChunkedArray) -> bool:
    if pa.types.is_dictionary(expected.type):
        expected = expected.cast(expected.type.value_type)
    if read.type != expected.type:
        return False
    # NaN is not equal to itself
    return bool(read.combine_chunks().equals(expected.combine_chunks())) or repr(read.to_pylist()) == repr(
        expected.to_pylist()
    )


def _frames(path: str) -> str | None:
    """Read the file as Polars frames; return the error, if any. Polars must not panic."""
    try:
        snapshot = take_snapshot(path)
        for part in plan_fragments(snapshot, screen_rows(snapshot, None), SPLIT_ROWS):
            for _ in read_fragment(part, ReadRequest(list(snapshot.file_columns), snapshot.schema)):
                pass
    except FeedlineError as error:
        return f"{type(error).__name__}: {error}"
    return None
