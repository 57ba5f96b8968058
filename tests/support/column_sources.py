"""Values of new columns for tests of column files: made from the column `id`, by a seed."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.warehouse.columns.change import AddReport, add_columns
from feedline.warehouse.storage.claim import Claim

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


@dataclass(frozen=True)
class SeededValues:
    """Columns by name, each of a kind: int, string, list or flag; some values are null."""

    columns: tuple[tuple[str, str], ...]
    seed: int = 1

    @property
    def text(self) -> str:
        return f"seed {self.seed}"

    def inputs(self, schema: pa.Schema) -> tuple[str, ...]:
        return ("id",)

    def compute(self, rows: pa.Table) -> pa.Table:
        ids = rows["id"].to_numpy()
        return pa.table({name: seeded(ids, kind, self.seed) for name, kind in self.columns})


def seeded(ids: np.ndarray, kind: str, seed: int) -> pa.Array:
    null = (ids * seed) % 7 == 3
    if kind == "int":
        return pa.array(ids * seed, mask=null)
    if kind == "string":
        return pa.array([f"{seed}-{each % 11}" for each in ids.tolist()], pa.string(), mask=null)
    if kind == "flag":
        return pa.array(ids % (seed + 1) == 0, mask=null)
    values = [None if skip else [each * seed] * (each % 3) for each, skip in zip(ids.tolist(), null, strict=True)]
    return pa.array(values, pa.list_(pa.int64()))


def write_days(root: Path, *, rows: int = 200, row_group_rows: int = 70, days: tuple[str, ...] = DAYS) -> Path:
    """A table of one file per day, of several row groups: id, name, price."""
    for day, ds in enumerate(days):
        folder = root / f"ds={ds}"
        folder.mkdir(parents=True)
        ids = np.arange(rows) + day * rows
        columns: Mapping[str, pa.Array] = {
            "id": pa.array(ids),
            "name": pa.array([f"n{each % 5}" for each in ids.tolist()]),
            "price": pa.array(ids / 4),
        }
        pq.write_table(pa.table(dict(columns)), folder / "part-0.parquet", row_group_size=row_group_rows)
    return root


def add_seeded(
    root: Path | str, name: str, kind: str = "int", seed: int = 1, where: str | None = None, *, replaced: bool = False
) -> AddReport:
    return add_columns(str(root), SeededValues(((name, kind),), seed), where=where, replaced=replaced)


def killed_add(root: str, moment: str) -> None:
    """Add a column in a process that dies: while it writes its second file, with all moved, or before its commit."""
    if moment == "writing":
        turns = iter([None])

        def compute(self: SeededValues, rows: pa.Table, own: Any = SeededValues.compute) -> pa.Table:
            if rows.num_rows and next(turns, "last") == "last":
                os.kill(os.getpid(), signal.SIGKILL)
            return own(self, rows)

        SeededValues.compute = compute  # type: ignore[method-assign]
    elif moment == "moving":
        Claim.move = lambda self, files: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
    else:
        os.link = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
    add_seeded(root, "x", seed=2)
