"""What requests as rows save: stored bytes, and rows read per second.

    python benchmarks/request_rows.py                 600,000 rows in sessions of 16.5, 3 rounds
    python benchmarks/request_rows.py --tiny          20,000 rows, one round: a test that all works

A session of a generated click table is a request: its user-side columns (6 histories, and `--user-share` of 13 dense
and 26 ids) are the same in all of its rows; `request_id`, `ts`, the other columns and the labels are its candidates'.
The same rows are stored as

logged      impressions in the order of the log, as a writer leaves them (zstd, dictionaries)
optimized   the same order, encodings chosen by `optimize`
rows        impressions of a session together: what `--rows impression` makes of the requests
requests    a row per session

bytes       of each table.
rate        rows per second of CPU, of reading (decoding, to chunks of rows) and of `Pipeline.batches` (one thread, no
            ring), over `rows` and over exploded `requests`, with the user-side columns as a deduplicated group and
            without, in alternating rounds after one that is not counted; the median of ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from ratios import Row, bytes_below, print_rows, write_rows

from feedline import Pipeline, Table
from feedline.blocks.jobs import compile_job
from feedline.warehouse.reading.read import read_fragment
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

_USER = ["dense_0", "dense_1", "id_0", "id_1", "id_2", *(f"hist_{index}" for index in range(6))]
_LABELS = ["clicked", "dwell"]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--session-rows", type=float, default=16.5)
    parser.add_argument("--user-share", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--goal", default="balanced", help="of the encodings of all tables")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.rounds = 20_000, 1
    return options


def write_tables(folder: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Write the tables; returns their folders by name."""
    tables = {name: folder / name for name in ("logged", "optimized", "requests", "rows")}
    recipe = ClickRecipe(
        rows=options.rows,
        days=1,
        sessions_mean=options.session_rows,
        user_share=options.user_share,
        keep_probability=1.0,
        joint_changes=True,
        clustered=False,
    )
    generate_clicks(str(tables["logged"]), recipe)
    logged = Table(str(tables["logged"]))
    logged.optimize(tables["optimized"], goal=options.goal)
    logged.optimize(tables["requests"], rows="request", by="session_id", sort_by="ts", goal=options.goal)
    Table(str(tables["requests"])).optimize(tables["rows"], rows="impression", goal=options.goal)
    return tables


def pipeline(folder: Path, table: Path, name: str, explode: list[str] | None, *, dedup: bool) -> Pipeline:
    """The user side, two item-side columns and the labels, in the table's order."""
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "work_dir": str(folder / f"work-{name}-{dedup}"),
        "source": {"table": str(table), "explode": explode},
        "features": {
            "dense": {column: [{"fill_null": 0}] for column in [*_USER[:2], "dense_12"]},
            "categorical": {column: [{"hash_bucket": 1_000_000}] for column in [*_USER[2:5], "id_25"]},
            "sparse": {column: [{"hash_bucket": 1_000_000}] for column in _USER[5:]},
            "label": {"clicked": [], "dwell": [{"fill_null": 0}]},
        },
        "batch": {"size": 8192, "tail": "partial"},
        "shuffle": "off",
        **({"dedup": {"user": {"columns": _USER}}} if dedup else {}),
    }
    return Pipeline.from_dict(document)


def rates(read: Pipeline) -> tuple[float, float]:
    """Rows per second of an epoch, of its reading alone and of its batches; the plan is made before. By the thread's
    CPU time: all of it is done in this one."""
    plan = read.complete_plan()
    [source] = plan.sources
    request, selection = compile_job(source.job).read, source.selection
    started_s = time.thread_time()
    rows = 0
    for group in range(len(selection.rows)):
        fragment = selection.fragment(source.snapshot, np.array([group]))
        rows += sum(chunk.frame.height for chunk in read_fragment(fragment, request))
    read_s = time.thread_time() - started_s
    batches = sum(batch.rows for batch in read.batches(plan=plan))
    assert rows == batches
    return rows / read_s, rows / (time.thread_time() - started_s - read_s)


def stored_bytes(tables: Mapping[str, Path]) -> Iterator[Row]:
    """Bytes of the tables of impressions, divided by those of requests."""
    requests = sum(pq.read_metadata(path).num_rows for path in tables["requests"].rglob("*.parquet"))
    sizes = {name: bytes_below(table) for name, table in tables.items()}
    for name, aim in (("logged", "4.0"), ("optimized", "-"), ("rows", "-")):
        figures = f"{sizes[name] / 1e6:,.1f} MB, {sizes['requests'] / 1e6:,.1f} MB of {requests} requests"
        yield Row(f"bytes, {name} / requests", sizes[name] / sizes["requests"], aim, figures)


def row_rates(folder: Path, tables: Mapping[str, Path], rounds: int) -> Iterator[Row]:
    """Rows per second of CPU over exploded requests, divided by those of the same rows, stored as rows."""
    first = next(tables["requests"].rglob("*.parquet"))
    explode: list[str] = json.loads(pq.read_metadata(first).metadata[b"feedline.requests"])["candidates"]
    for how, dedup in (("the user side as a group", True), ("all as rows", False)):
        stored = pipeline(folder, tables["rows"], "rows", None, dedup=dedup)
        exploded = pipeline(folder, tables["requests"], "requests", explode, dedup=dedup)
        pairs = [(rates(stored), rates(exploded)) for _ in range(1 + rounds)][1:]
        for index, what in enumerate(("reading", "batches")):
            one, other = (statistics.median(pair[side][index] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(other[index] / one[index] for one, other in pairs)
            aim = "2.0" if dedup and not index else "-"
            yield Row(f"rows/s of {what}, {how}, exploded / rows", ratio, aim, f"{one:,.0f} → {other:,.0f} rows/s")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as name:
        tables = write_tables(Path(name), options)
        setting = f"{options.rows:,} rows, {options.user_share} of the columns are the user's, {options.rounds} rounds"
        measured = chain(stored_bytes(tables), row_rates(Path(name), tables, options.rounds))
        write_rows(options.json, print_rows(setting, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
