"""The cost of `feedline profile`: a table of many files, and one of many columns.

    python benchmarks/profiling.py           1,000 files of 24 columns; 10,000 columns in 4 files
    python benchmarks/profiling.py --tiny    8 files and 100 columns: a test that all works

Each profile runs in a process of its own: seconds of the clock and of the processor after imports, and the peak of
memory, imports included. The target is 10 s for 1,000 files, which `feedline init` has as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from feedline.profiling.profile_table import profile_table

DENSE, IDS, WORDS, LISTS = 8, 8, 4, 3
FILE_ROWS, WIDE_ROWS, WIDE_FILES = 2_000, 2_000, 4


def write_many_files(folder: Path, files: int) -> None:
    """Write `files` files of a click log, a day per ten of them."""
    for number in range(files):
        path = folder / f"ds=2026-{number // 280 + 1:02}-{number // 10 % 28 + 1:02}"
        path.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(number)
        columns: dict[str, object] = {"label": random.integers(0, 2, FILE_ROWS)}
        columns |= {f"dense_{index}": random.lognormal(size=FILE_ROWS) for index in range(DENSE)}
        columns |= {f"id_{index}": random.zipf(1.3, FILE_ROWS) % 10**6 for index in range(IDS)}
        columns |= {
            f"word_{index}": random.choice([f"w{word}" for word in range(500)], FILE_ROWS) for index in range(WORDS)
        }
        lengths = random.integers(0, 30, FILE_ROWS)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        for index in range(LISTS):
            columns[f"list_{index}"] = pa.ListArray.from_arrays(offsets, random.integers(0, 10**5, int(offsets[-1])))
        pq.write_table(pa.table(columns), path / f"{number}.parquet")


def write_many_columns(folder: Path, columns: int) -> None:
    """Write a few files of `columns` numbers."""
    folder.mkdir(parents=True)
    for number in range(WIDE_FILES):
        random = np.random.default_rng(number)
        values = {f"c{index}": random.integers(0, 1000, WIDE_ROWS) for index in range(columns - 1)}
        pq.write_table(pa.table({**values, "label": random.integers(0, 2, WIDE_ROWS)}), folder / f"{number}.parquet")


def measure_profile(folder: str) -> dict[str, float]:
    """Profile a table in this process."""
    began, used = time.perf_counter(), time.process_time()
    facts = profile_table(folder)
    return {
        "files": facts.files,
        "columns": len(facts.columns),
        "sampled rows": facts.sampled.rows,
        "seconds": time.perf_counter() - began,
        "CPU seconds": time.process_time() - used,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_profiles(files: int, columns: int) -> list[dict[str, float]]:
    """Write both tables, and profile each in a process of its own."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        write_many_files(Path(scratch) / "files", files)
        write_many_columns(Path(scratch) / "columns", columns)
        for name in ("files", "columns"):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found.append(pool.submit(measure_profile, str(Path(scratch) / name)).result())
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    measures = run_profiles(*((8, 100) if options.tiny else (options.files, options.columns)))
    if options.json:
        print(json.dumps(measures))
        return 0
    table = Table(title="feedline profile", title_justify="left")
    for name in measures[0]:
        table.add_column(name, justify="right")
    for row in measures:
        table.add_row(
            *(
                f"{value:,.0f}" if value == int(value) or name == "peak MB" else f"{value:.1f}"
                for name, value in row.items()
            )
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
