"""The cost of `feedline init`: a table of many files, and one of many columns.

    python benchmarks/init.py           1,000 files of 25 columns; 10,000 columns in 4 files
    python benchmarks/init.py --tiny    8 files and 100 columns: a test that all works

Each runs the command as a person does, start and imports included, on the tables of benchmarks/profiling.py. Targets
are 10 s for 1,000 files, and 60 s for 10,000 columns.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from profiling import write_many_columns, write_many_files
from rich.console import Console
from rich.table import Table

TARGETS_S = {"files": 10.0, "columns": 60.0}


def measure_init(table: Path, folder: Path) -> dict[str, float]:
    """Run `feedline init` on a table: seconds of the clock and of the processor."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "feedline", "init", str(table), "-o", str(folder), "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - began, "CPU seconds": used}


def run_both(files: int, columns: int) -> dict[str, dict[str, float]]:
    """Write both tables, and begin with each."""
    with tempfile.TemporaryDirectory() as scratch:
        write_many_files(Path(scratch) / "files", files)
        write_many_columns(Path(scratch) / "columns", columns)
        return {name: measure_init(Path(scratch) / name, Path(scratch) / f"{name}-out") for name in TARGETS_S}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--columns", type=int, default=10_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    measures = run_both(*((8, 100) if options.tiny else (options.files, options.columns)))
    if options.json:
        print(json.dumps(measures))
        return 0
    table = Table("many", "seconds", "CPU seconds", "target", title="feedline init", title_justify="left")
    for name, row in measures.items():
        table.add_row(name, f"{row['seconds']:.1f}", f"{row['CPU seconds']:.1f}", f"{TARGETS_S[name]:.0f} s")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
