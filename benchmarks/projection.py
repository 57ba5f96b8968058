"""The cost of reading a tenth of a wide table, compared with a bare loop over its row groups.

Two readers read the same columns of the same row groups, on one thread, alternating: Feedline's `read_fragment`, one
call per split with all of its checks, and `ParquetFile.read_row_group(columns=…)` on files whose footers were parsed
before the clock started. Bytes are those that the process requested from the kernel (`rchar` of /proc/self/io), so all
reads count. Run by `warehouse.py`; needs no other process.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Table
from feedline.warehouse.reading.read import ReadRequest, bytes_of, read_fragment
from feedline.warehouse.selection.select import plan_fragments, screen_rows

DENSE, IDS, LISTS = 300, 80, 20
_MEAN_LENGTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The cost of reading columns of a table: median seconds, bytes of one reading, bytes of their column chunks."""

    columns: int
    table_columns: int
    rows: int
    chunk_bytes: int
    feedline_bytes: int
    bare_bytes: int
    feedline_s: float
    bare_s: float

    @property
    def bytes_ratio(self) -> float:
        """Bytes that Feedline read per byte of the column chunks."""
        return self.feedline_bytes / self.chunk_bytes

    @property
    def time_ratio(self) -> float:
        """Feedline's seconds per second of the bare loop."""
        return self.feedline_s / self.bare_s


def write_wide_table(folder: Path, *, rows: int, row_group_rows: int, files: int) -> None:
    """Write 400 columns: dense float32 with nulls, int64 ids, id lists; kinds alternate, to scatter projections."""
    random = np.random.default_rng(0)
    for number in range(files):
        size = rows // files
        columns: dict[str, pa.Array] = {}
        for index in range(DENSE):
            columns[f"dense_{index:03}"] = pa.array(
                random.standard_normal(size).astype(np.float32), mask=random.random(size) < 0.05
            )
        for index in range(IDS):
            columns[f"id_{index:03}"] = pa.array(random.zipf(1.3, size) % 1_000_000)
        for index in range(LISTS):
            lengths = random.integers(0, 2 * _MEAN_LENGTH + 1, size)
            offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
            columns[f"list_{index:03}"] = pa.ListArray.from_arrays(offsets, random.zipf(1.3, offsets[-1]) % 1_000_000)
        names = sorted(columns, key=lambda name: name[-3:])
        place = folder / f"ds=2026-01-{number + 1:02}" / "part-0.parquet"
        place.parent.mkdir(parents=True)
        pq.write_table(
            pa.table({name: columns[name] for name in names}), place, row_group_size=row_group_rows, compression="zstd"
        )


def tenth(names: Sequence[str]) -> list[str]:
    """Return every tenth column of each kind."""
    return [name for name in names if name[-3:].isdigit() and int(name[-3:]) % 10 == 0]


def compare(table: Path, columns: Sequence[str], *, rounds: int) -> Projection:
    """Read the columns `rounds` times with both, alternating."""
    snapshot = Table(table).snapshot()
    fragments = plan_fragments(snapshot, screen_rows(snapshot, None), 65_536)
    files = [pq.ParquetFile(path, pre_buffer=True) for path in sorted(table.rglob("*.parquet"))]

    def feedline() -> int:
        return sum(
            chunk.frame.height
            for fragment in fragments
            for chunk in read_fragment(fragment, ReadRequest(columns, snapshot.schema))
        )

    def bare() -> int:
        return sum(
            file.read_row_group(group, columns=list(columns), use_threads=False).num_rows
            for file in files
            for group in range(file.num_row_groups)
        )

    feedline()  # both warm: footers parsed, pages of the files in the kernel's cache
    bare()
    costs: dict[Callable[[], int], list[tuple[float, int]]] = {feedline: [], bare: []}
    for turn in range(rounds):
        for reader in (feedline, bare) if turn % 2 else (bare, feedline):
            costs[reader].append(_cost(reader, snapshot.rows))
    for file in files:
        file.close()
    seconds = {reader: statistics.median(second for second, _ in cost) for reader, cost in costs.items()}
    return Projection(
        columns=len(columns),
        table_columns=len(snapshot.file_columns),
        rows=snapshot.rows,
        chunk_bytes=bytes_of(snapshot, None, columns),
        feedline_bytes=costs[feedline][0][1],
        bare_bytes=costs[bare][0][1],
        feedline_s=seconds[feedline],
        bare_s=seconds[bare],
    )


def _cost(reader: Callable[[], int], expected: int) -> tuple[float, int]:
    gc.collect()
    before, began = bytes_requested(), time.perf_counter()
    rows = reader()
    seconds, nbytes = time.perf_counter() - began, bytes_requested() - before
    if rows != expected:
        raise AssertionError(f"a reader lost rows: got {rows}, expected {expected}")
    return seconds, nbytes


def bytes_requested() -> int:
    """Bytes that this process has requested from the kernel so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "rchar":
            return int(value)
    raise OSError("/proc/self/io does not say rchar: expected a Linux kernel with task accounting")
