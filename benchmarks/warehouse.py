"""The costs and gains of the warehouse's features in one command, with every comparison interleaved.

    python benchmarks/warehouse.py                       everything, some twenty minutes on two cores
    python benchmarks/warehouse.py --only projection     one part: projection, popular, filters, optimize
    python benchmarks/warehouse.py --tiny                few rows, one round: a test that all works

projection  a tenth of the columns of a 400-column table: bytes and time against a bare loop (`projection.py`)
popular     the same tenth after `optimize --order`, these columns first: requests per row group, by the rule for
            remote row groups (tests/system/test_stores.py counts the same against an S3 server)
filters     counting the rows that a filter keeps: columns as codes against pyarrow's decoder (`filters.py`)
optimize    bytes, throughput, memory and decode speed of `feedline optimize` (`optimize.py`)

`snapshots.py` measures snapshots of many files, `maps.py` features from maps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filters
import optimize
import projection

from feedline import Table

PARTS = ("projection", "popular", "filters", "optimize")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; more than once for several")
    parser.add_argument("--rows", type=int, default=1_048_576, help="of the 400-column table")
    parser.add_argument("--rounds", type=int, default=9, help="of the projection")
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    return parser.parse_args(arguments)


def read_a_tenth(table: Path, *, rounds: int) -> dict[str, Any]:
    """Measure bytes and seconds of reading a tenth of the columns, and both ratios."""
    names = projection.tenth(Table(table).snapshot().file_columns)
    found = projection.compare(table, names, rounds=rounds)
    return dataclasses.asdict(found) | {"bytes_ratio": found.bytes_ratio, "time_ratio": found.time_ratio}


def popular_first(table: Path, target: Path, *, row_group_rows: int) -> dict[str, Any]:
    """Count requests per row group for a tenth of the columns: scattered over the file, and first in it."""
    names = projection.tenth(Table(table).snapshot().file_columns)
    report = Table(table).optimize(target, order=names, projection=names, row_group_rows=row_group_rows)
    return {
        "columns": len(names),
        "requests_per_row_group": {
            "before": report.before.requests_per_row_group,
            "after": report.after.requests_per_row_group,
        },
        "bytes_requested": {
            "before": report.before.projection.requested_bytes,
            "after": report.after.projection.requested_bytes,
        },
    }


def count_filters(folder: Path, *, rows: int, row_group_rows: int, rounds: int) -> dict[str, Any]:
    """Measure nanoseconds per row of counting each filter, with both decoders."""
    filters.write_table(folder / "0.parquet", rows=rows, row_group_rows=row_group_rows)
    costs = filters.compare(folder, rounds=rounds)
    return {cost.where: dataclasses.asdict(cost) | {"ratio": cost.ratio} for cost in costs}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    parts = options.only or PARTS
    rows, group_rows, rounds = (4_096, 1_024, 1) if options.tiny else (options.rows, 65_536, options.rounds)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        wide = Path(folder) / "wide"
        if {"projection", "popular"} & set(parts):
            projection.write_wide_table(wide, rows=rows, row_group_rows=group_rows, files=4)
        if "projection" in parts:
            found["projection"] = read_a_tenth(wide, rounds=rounds)
        if "popular" in parts:
            found["popular"] = popular_first(wide, Path(folder) / "popular", row_group_rows=group_rows)
        if "filters" in parts:
            size = {"rows": 2 * rows, "row_group_rows": rows}
            found["filters"] = count_filters(Path(folder) / "filtered", **size, rounds=3 * rounds)
    print(json.dumps(found, indent=1))
    if "optimize" in parts:
        found["optimize"] = optimize.measured(optimize.parse(["--tiny"] if options.tiny else []))
        print(json.dumps(found["optimize"], indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
