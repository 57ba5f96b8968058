"""The cost of `feedline profile` and `feedline init`: a table of many files, and one of many columns.

    python benchmarks/profiling.py           1,000 files of 25 columns; 10,000 columns in 4 files
    python benchmarks/profiling.py --tiny    8 files and 100 columns: a test that all works

Each runs the command as a person does, start and imports included: seconds of the clock and of the processor, and the
peak of memory. Targets are 10 s for 1,000 files, and 60 s for 10,000 columns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

TARGETS_S = {"files": 10.0, "columns": 60.0}
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


def measure_command(*words: str) -> dict[str, float]:
    """Run a command of Feedline: seconds of the clock and of the processor, and the peak of memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "feedline", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "CPU seconds": used.ru_utime + used.ru_stime, "peak MB": used.ru_maxrss / 1024}


def run_all(files: int, columns: int) -> dict[str, dict[str, dict[str, float]]]:
    """Write both tables; profile each, and begin with it."""
    with tempfile.TemporaryDirectory() as scratch:
        write_many_files(Path(scratch) / "files", files)
        write_many_columns(Path(scratch) / "columns", columns)
        return {
            command: {name: measure_command(command, f"{scratch}/{name}", *options) for name in TARGETS_S}
            for command, options in {"profile": ("--json",), "init": ("--stdout",)}.items()
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    measures = run_all(*((8, 100) if options.tiny else (options.files, options.columns)))
    if options.json:
        print(json.dumps(measures))
        return 0
    table = Table("command", "many", "seconds", "CPU seconds", "peak MB", "target")
    for command, rows in measures.items():
        for name, row in rows.items():
            cells = (f"{row['seconds']:.1f}", f"{row['CPU seconds']:.1f}", f"{row['peak MB']:.0f}")
            table.add_row(command, name, *cells, f"{TARGETS_S[name]:.0f} s")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
