"""Deleting 100 users of a table: the bytes written, of those of the row groups that hold their rows, and of the table.

    python benchmarks/deleting.py                        1 M users, 4 M rows
    python benchmarks/deleting.py --users 10000000       10 M users, 40 M rows
    python benchmarks/deleting.py --tiny                 2,000 users: a test that all works

A table of visits over some days, zstd, in three layouts: `log` (by time), `clustered` (by the hash of the user, as
`feedline optimize --cluster-by user_id` orders a partition) and `sorted` (by the user). Per layout: the row groups that
hold rows of the users, what these weigh, what they weigh when written anew (as a share of it: at most 1.05), what was
copied as it was, the files left alone, and the seconds to find the rows and to write, beside a bare loop that reads,
filters and writes every file with pyarrow. The rows that stay are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ratios import bytes_below

from feedline import Table
from feedline.resources.cgroups import available_cores
from feedline.warehouse.parquet.key_hashes import key_hashes

LAYOUTS = ("log", "clustered", "sorted")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=4, help="rows per user (default: %(default)s)")
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--deleted", type=int, default=100, help="users to delete (default: %(default)s)")
    parser.add_argument("--row-group-rows", type=int, default=65_536)
    parser.add_argument("--file-rows", type=int, default=1_048_576)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--tiny", action="store_true", help="few rows: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.users, options.days, options.deleted = 2_000, 2, 3
        options.row_group_rows, options.file_rows = 256, 1_024
    return options


def visits(rows: int, users: int, seed: int) -> pa.Table:
    """The visits of one day, by time."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, rows)
    offsets = np.arange(rows + 1, dtype=np.int32) * 4
    return pa.table(
        {
            "user_id": user,
            "ts": np.sort(rng.integers(0, 86_400_000_000, rows)),
            "item_id": rng.integers(0, 1_000_000, rows),
            "price": rng.random(rows).astype(np.float32),
            "recent": pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(user * 7 % 100_000, 4))),
            "country": pa.array(np.array(["de", "fr", "us", "jp"])[user % 4]),
        }
    )


def write(folder: Path, layout: str, options: argparse.Namespace) -> None:
    """Write the table in a layout."""
    for day in range(options.days):
        table = visits(options.users * options.visits // options.days, options.users, day)
        if layout == "clustered":
            table = table.take(pa.array(np.argsort(key_hashes(table, ["user_id"]), kind="stable")))
        elif layout == "sorted":
            table = table.take(pa.array(np.argsort(table["user_id"].to_numpy(), kind="stable")))
        place = folder / f"day={day}"
        place.mkdir(parents=True)
        for number, first in enumerate(range(0, len(table), options.file_rows)):
            part = table.slice(first, options.file_rows)
            path = place / f"{number:04d}.parquet"
            pq.write_table(part, path, row_group_size=options.row_group_rows, compression="zstd")


def bare_loop(source: Path, target: Path, gone: pa.Array, options: argparse.Namespace) -> float:
    """Write every file without the users; returns the seconds."""
    began = time.perf_counter()
    for path in sorted(source.rglob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        kept = table.filter(pc.invert(pc.is_in(table["user_id"], value_set=gone)))
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(kept, place, row_group_size=options.row_group_rows, compression="zstd")
    return time.perf_counter() - began


def same_rows(one: Path, other: Path) -> bool:
    """Whether two tables hold the same rows, file by file."""
    for path in sorted(one.rglob("*.parquet")):
        tables = [pq.read_table(root / path.relative_to(one), partitioning=None) for root in (one, other)]
        if not tables[0].equals(tables[1]):
            return False
    return True


def measured(layout: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Delete the users from one layout."""
    table, bare = folder / layout, folder / f"{layout}-bare"
    write(table, layout, options)
    rng = np.random.default_rng(9)
    gone = pa.array(rng.choice(options.users, options.deleted, replace=False))
    ids = folder / "ids.parquet"
    pq.write_table(pa.table({"user_id": gone}), ids)
    table_bytes = bytes_below(table)
    bare_s = bare_loop(table, bare, gone, options)
    where = f'user_id in file("{ids}")'
    began = time.perf_counter()
    Table(str(table)).delete(where, dry_run=True, threads=options.threads)
    finding_s = time.perf_counter() - began
    report = Table(str(table)).delete(where, threads=options.threads)
    whole_s = time.perf_counter() - began - finding_s
    return {
        "layout": layout,
        "rows": options.users * options.visits,
        "deleted_rows": report.rows,
        "table_bytes": table_bytes,
        "row_groups": report.row_groups,
        "row_groups_read": report.read,
        "row_groups_held": report.held_row_groups,
        "held_bytes": report.held_bytes,
        "encoded_bytes": report.encoded_bytes,
        "copied_bytes": report.copied_bytes,
        "of_held": report.encoded_bytes / max(report.held_bytes, 1),
        "of_table": report.encoded_bytes / table_bytes,
        "finding_s": finding_s,
        "whole_s": whole_s,
        "bare_s": bare_s,
        "same_rows": same_rows(table, bare),
    }


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """The figures as a table."""
    heads = ("layout", "row groups with such rows", "of the table's bytes", "bytes anew of theirs", "s", "bare loop, s")
    rows = [
        (
            each["layout"],
            f"{each['row_groups_held']:,} of {each['row_groups']:,}",
            f"{each['of_table']:.1%}",
            f"{each['of_held']:.3f}",
            f"{each['whole_s']:.1f}",
            f"{each['bare_s']:.1f}",
        )
        for each in found
    ]
    return [f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every layout."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as folder:
        found = []
        for layout in LAYOUTS:
            place = Path(folder) / layout
            place.mkdir()
            found.append(measured(layout, place, options))
    print("\n".join(lines(found)))
    if options.json:
        Path(options.json).write_text(json.dumps({"options": vars(options), "layouts": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
