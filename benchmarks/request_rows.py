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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

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
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
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


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


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


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All that is measured."""
    tables = write_tables(folder, options)
    first = next(tables["requests"].rglob("*.parquet"))
    explode: list[str] = json.loads(pq.read_metadata(first).metadata[b"feedline.requests"])["candidates"]
    sizes = {name: bytes_of(table) for name, table in tables.items()}
    requests = sum(pq.read_metadata(path).num_rows for path in tables["requests"].rglob("*.parquet"))
    found: dict[str, Any] = {
        "rows": options.rows,
        "requests": requests,
        "user_share": options.user_share,
        "bytes": sizes,
        "bytes_ratio": sizes["logged"] / sizes["requests"],
        "bytes_ratio_optimized": sizes["optimized"] / sizes["requests"],
        "bytes_ratio_clustered": sizes["rows"] / sizes["requests"],
        "rates": {},
    }
    for name, dedup in (("plain", False), ("dedup", True)):
        stored = pipeline(folder, tables["rows"], "rows", None, dedup=dedup)
        exploded = pipeline(folder, tables["requests"], "requests", explode, dedup=dedup)
        pairs = [(rates(stored), rates(exploded)) for _ in range(1 + options.rounds)][1:]
        for index, what in enumerate(("read", "batches")):
            found["rates"][f"{what}, {name}"] = {
                "rows_per_s": statistics.median(one[index] for one, _ in pairs),
                "exploded_rows_per_s": statistics.median(other[index] for _, other in pairs),
                "ratio": statistics.median(other[index] / one[index] for one, other in pairs),
            }
    return found


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
