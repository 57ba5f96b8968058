"""What column files cost: in reading, against the compacted table; in bytes written, against a rewrite of their days.

    python benchmarks/column_files.py           4 days of 250,000 rows, 7 rounds; five minutes on two cores
    python benchmarks/column_files.py --tiny    4 days of 500 rows, one round: a test that all works

Clicks with 13 dense columns, 26 ids and 6 histories, to which five columns are added, each with a column file per base
file: two floats, an integer, a string and a flag. The compacted table has all columns in its files, in the same row
groups and encodings.

narrow, wide   rows per second of CPU of reading five base columns, or all, and the five new ones, divided by the
               compacted table's, on one thread, page cache warm; medians of interleaved rounds. The aim is 0.9.
bytes          written to add one float column to 3 of 90 days, divided by the bytes of these days rewritten with it.
               The aim is 0.1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ratios import Row, bytes_below, print_rows, write_rows

from feedline import Table
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.discovery.column_log import column_files_of
from feedline.warehouse.parquet.writer import DICTIONARY, Encoding, writer_options
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.select import SPLIT_ROWS, plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

NEW = {
    "ratio": "dense_0 / (dense_1 * dense_1 + 1)",
    "total": "dense_2 + dense_3",
    "shifted": "id_0 + 1",
    "named": "str_0.str.to_lowercase()",
    "large": "dense_4 > 0",
}
DAYS, BACKFILLED = 90, 3


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--day-rows", type=int, default=20_000, help="of each of the 90 days")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--row-group-rows", type=int, default=65_536)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.day_rows, options.rounds, options.row_group_rows = 2_000, 50, 1, 256
    return options


def reading(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Rows/s with column files, divided by those of the compacted table."""
    separate, compacted = str(folder / "separate"), str(folder / "compacted")
    log = str(folder / "log")
    recipe = ClickRecipe(
        rows=options.rows, days=options.days, row_group_rows=options.row_group_rows, part_rows=options.rows
    )
    generate_clicks(log, recipe)
    layout = {"row_group_rows": options.row_group_rows}
    Table(log).optimize(separate, **layout)
    for name, expression in NEW.items():
        add_columns(separate, ExpressionValues(expression=expression, name=name))
    compact(Path(separate), Path(compacted))
    tables = {name: Table(path).snapshot() for name, path in (("separate", separate), ("compacted", compacted))}
    base = [name for name in tables["separate"].file_columns if name not in NEW]
    rows = []
    for label, columns in (("narrow", [*base[:5], *NEW]), ("wide", [*base, *NEW])):
        rates = {name: list[float]() for name in tables}
        for _ in range(options.rounds + 1):
            for name, snapshot in tables.items():
                rates[name].append(rate(snapshot, columns))
        medians = {name: statistics.median(each[1:]) for name, each in rates.items()}
        ratios = [one / other for one, other in zip(rates["separate"][1:], rates["compacted"][1:], strict=True)]
        figures = f"{medians['separate']:,.0f} and {medians['compacted']:,.0f} rows/s, {len(columns)} columns"
        rows.append(Row(f"{label}: rows/s with 5 column files", statistics.median(ratios), ">= 0.9", figures))
    return rows


def compact(separate: Path, compacted: Path) -> None:
    """Write each base file with its columns of column files into one: the same row groups, encodings and codecs. Those
    of `optimize` are measured anew, so that two runs of it may choose others."""
    snapshot = Table(separate).snapshot()
    for file in range(len(snapshot.files)):
        base = snapshot.path_of(file)
        parts = [separate / base, *(separate / part.path for part in column_files_of(snapshot.files, file))]
        opened = [pq.ParquetFile(part) for part in parts]
        encodings = [encoding for each in opened for encoding in stored_encodings(each.metadata)]
        (compacted / base).parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([field for each in opened for field in each.schema_arrow])
        with pq.ParquetWriter(compacted / base, schema, **writer_options(encodings)) as writer:
            for group in range(opened[0].num_row_groups):
                tables = [each.read_row_group(group) for each in opened]
                columns = [column for table in tables for column in table.columns]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=tables[0].num_rows)


def stored_encodings(metadata: pq.FileMetaData) -> list[Encoding]:
    """How the columns of a file's first row group are stored."""
    found = []
    for leaf in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(leaf)
        plain = [each for each in chunk.encodings if each not in ("RLE", "RLE_DICTIONARY")]
        encoding = DICTIONARY if "RLE_DICTIONARY" in chunk.encodings else (plain or ["RLE"])[0]
        codec = chunk.compression.replace("UNCOMPRESSED", "NONE").lower()
        found.append(Encoding(leaf=chunk.path_in_schema, encoding=encoding, codec=codec))
    return found


def rate(snapshot: Snapshot, columns: Sequence[str]) -> float:
    """Rows per second of CPU of one pass over a table, on this thread."""
    fragments: list[Fragment] = plan_fragments(snapshot, screen_rows(snapshot, None), SPLIT_ROWS)
    request = ReadRequest(tuple(columns), snapshot.schema, coded=dict.fromkeys(columns, 0))
    start, rows = time.thread_time(), 0
    for fragment in fragments:
        rows += sum(chunk.frame.height for chunk in read_fragment(fragment, request))
    assert rows == snapshot.rows
    return rows / (time.thread_time() - start)


def written_bytes(folder: Path, options: argparse.Namespace) -> Row:
    """Bytes written for a column of 3 of 90 days, divided by those days rewritten with it."""
    log, table, whole = (str(folder / name) for name in ("log-90", "table-90", "whole-90"))
    recipe = ClickRecipe(
        rows=DAYS * options.day_rows, days=DAYS, row_group_rows=options.row_group_rows, part_rows=options.day_rows
    )
    generate_clicks(log, recipe)
    Table(log).optimize(table, row_group_rows=options.row_group_rows)
    snapshot = Table(table).snapshot()
    day = sorted(set(snapshot.partition_column("ds").to_pylist()))[-BACKFILLED]
    before = bytes_below(Path(table), "*")
    report = add_columns(table, ExpressionValues(expression=NEW["ratio"], name="ratio"), where=f'ds >= "{day}"')
    added = bytes_below(Path(table), "*") - before
    Table(table).optimize(whole, row_group_rows=options.row_group_rows)
    rewritten = sum(bytes_below(path) for path in Path(whole).iterdir() if path.name >= f"ds={day}")
    figures = f"{added:,} and {rewritten:,} bytes, {report.files} files of {report.rows:,} rows"
    return Row("bytes written for 3 of 90 days", added / rewritten, "<= 0.1", figures)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-columns-") as name:
        rows = [*reading(Path(name), options), written_bytes(Path(name), options)]
    setting = f"{options.rows:,} rows, 90 days of {options.day_rows:,}, medians of {options.rounds} rounds"
    write_rows(options.json, print_rows(setting, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
