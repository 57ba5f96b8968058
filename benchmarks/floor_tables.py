"""The tables that the floor benchmark reads: generated, optimized, and brought into the page cache.

Runs in the benchmark's process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from measure import measure
from shape_tables import write_table
from shapes import SHAPES

from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

PLAIN, OPTIMIZED = "plain", "optimized"
TINY_GROUP_ROWS, TINY_FILE_ROWS = 2048, 6000


class BenchmarkError(Exception):
    """The benchmark cannot continue, or its contenders deliver different rows."""


@contextmanager
def open_tables(options: argparse.Namespace) -> Iterator[dict[str, Path]]:
    """Yield the tables' folders by name: the given ones, or temporary ones."""
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        folder = Path(options.table or Path(scratch) / "table")
        if not folder.exists() or not any(folder.iterdir()):
            _generate(folder, options)
        tables = {PLAIN: folder}
        if options.optimized:
            tables[OPTIMIZED] = folder.with_name(f"{folder.name}-optimized")
            _optimize(folder, tables[OPTIMIZED])  # continues or keeps what is there
        yield tables


def _generate(folder: Path, options: argparse.Namespace) -> None:
    shape = SHAPES[options.shape]
    if shape.clicks:
        sizes: dict[str, Any] = {"row_group_rows": TINY_GROUP_ROWS, "part_rows": TINY_FILE_ROWS} if options.tiny else {}
        recipe = ClickRecipe(
            rows=options.rows,
            days=(5 if shape.name == "short" else 2) if options.tiny else 10,
            strings=0,
            clustered=options.order == "clustered",
            **sizes,
        )
        generate_clicks(str(folder), recipe)
    else:
        group_rows = options.group_rows or (TINY_GROUP_ROWS if options.tiny else shape.group_rows)
        write_table(folder, shape, rows=options.rows, group_rows=group_rows)


def _optimize(source: Path, target: Path) -> None:
    """Write the table anew as it decodes fastest, its rows in the same order."""
    done = measure([sys.executable, "-m", "feedline", "optimize", str(source), str(target), "--for", "decode"])
    if done.code != 0:
        raise BenchmarkError(f"feedline optimize ended with exit code {done.code}:\n{done.stderr[-4000:]}")


def cached_files(table: Path, expected_rows: int) -> list[str]:
    """Return the table's files, which all contenders find in the page cache. Raises BenchmarkError for other rows."""
    files = sorted(str(file) for file in table.resolve().rglob("*.parquet"))
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    if rows != expected_rows:
        raise BenchmarkError(
            f"{table} holds {rows} rows, expected {expected_rows}: say --rows {rows}, or another --table"
        )
    for file in files:
        Path(file).read_bytes()
    return files
