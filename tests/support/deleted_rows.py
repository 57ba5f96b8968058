"""Tables to delete rows of, what DuckDB leaves of them, and a deletion in a child process that kills itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.warehouse.delete import column_files, rewrite
from feedline.warehouse.delete import delete as deletion
from feedline.warehouse.delete.delete import DeleteReport, DeleteRequest, delete_rows
from feedline.warehouse.storage.claim import Claim


def visits(rows: int, seed: int = 0, *, users: int = 40) -> pa.Table:
    """Visits of users, some of them unknown, in runs: numbers, strings, lists, structs and maps."""
    rng = np.random.default_rng(seed)
    user = np.sort(rng.integers(0, users, rows))
    items = [None if each % 7 == 0 else [int(each)] * (int(each) % 4) for each in user]
    return pa.table(
        {
            "user_id": pa.array(user, mask=rng.random(rows) < 0.1),
            "visit": np.arange(rows) + 100_000 * seed,
            "price": pa.array(rng.random(rows).astype(np.float32), mask=rng.random(rows) < 0.2),
            "word": pa.array([f"word-{each % 5}" for each in user]),
            "items": pa.array(items, pa.list_(pa.int64())),
            "place": pa.array([{"country": f"c{each % 3}", "zip": int(each)} for each in user]),
            "scores": pa.array([[(f"k{each % 2}", 0.5)] for each in user], pa.map_(pa.string(), pa.float64())),
        }
    )


def visits_table(root: Path, *, days: int = 2, files: int = 2, rows: int = 400, **options: Any) -> Path:
    """A table of `days` partitions."""
    for day in range(days):
        for file in range(files):
            path = root / f"ds=2026-01-{day + 1:02d}" / f"{file}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            table = visits(rows, seed=day * files + file)
            pq.write_table(table, path, **{"row_group_size": 60, "use_dictionary": ["word"], **options})
    return root


def files_below(root: Path) -> list[Path]:
    """The files that readers see, in order."""
    return sorted(path for path in root.rglob("*.parquet") if "/_" not in str(path.relative_to(root.parent)))


def rows_of(root: Path) -> dict[str, pa.Table]:
    """The rows of each file, by its path below the root."""
    return {
        str(path.relative_to(root)): pq.ParquetFile(path, page_checksum_verification=True).read()
        for path in files_below(root)
    }


def rows_left(root: Path, sql: str, **lists: pa.Table) -> dict[str, pa.Table]:
    """What DuckDB leaves of each file where a condition is not true; files without rows are left out. `ds` is the
    file's partition."""
    left = {}
    with duckdb.connect() as connection:
        for name, table in lists.items():
            connection.register(name, table)
        for path, table in rows_of(root).items():
            day = path.split("/")[0].partition("=")[2]
            rows = table.append_column("row", pa.array(np.arange(len(table))))
            connection.register("visits", rows)
            query = f"select row from (select *, date '{day}' as ds from visits) where not coalesce(({sql}), false)"
            numbers = connection.sql(query).to_arrow_table()["row"]
            kept = table.take(pa.array(np.sort(numbers.to_numpy())))
            if len(kept):
                left[path] = kept
    return left


def delete_from(root: Path, where: str, **options: Any) -> DeleteReport:
    """Delete in one thread."""
    return delete_rows(str(root), DeleteRequest(where=where, **options), threads=1)


def dying_deletion(root: str, where: str, place: str, turn: int) -> None:
    """Delete, and die just before the n-th "write" of pages, "move" of files, "commit" of column files, "removal"
    of files, or "log"."""
    owner, name = {
        "write": (rewrite, "write_without"),
        "move": (Claim, "move"),
        "commit": (column_files, "create_commit"),
        "removal": (Claim, "delete"),
        "log": (deletion.DeletionLog, "write"),
        "release": (Claim, "release"),
    }[place]
    _die_at(owner, name, turn)
    delete_from(Path(root), where)


def _die_at(owner: Any, name: str, turn: int) -> None:
    calls, call = [], getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    setattr(owner, name, counted)


def dying_in_bytes(root: str, where: str, most: int) -> None:
    """Delete, and die in the middle of a file, after so many bytes were written."""
    written, write = 0, rewrite.write_without

    def counting(rows: Any, source: Any, sink: Callable[[bytes], object], note: Any) -> Any:
        def count(content: bytes) -> None:
            nonlocal written
            written += len(content)
            if written > most:
                os.kill(os.getpid(), signal.SIGKILL)
            sink(content)

        return write(rows, source, count, note)

    rewrite.write_without = counting
    delete_from(Path(root), where)
