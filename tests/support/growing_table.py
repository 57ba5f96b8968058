"""A table of days that grows, pipelines that follow it, and the ids of the rows that are delivered."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.loader.batch import Batch

ROW_GROUP = 16


@dataclass
class GrowingTable:
    """A table below a folder, each row with an id of its own, and every fifth one with x = 0."""

    folder: Path
    ids: Iterator[int] = field(default_factory=count)

    @property
    def path(self) -> Path:
        return self.folder / "table"

    def day(self, number: int) -> Path:
        return self.path / f"ds=2026-01-{number:02d}"

    def write(self, number: int, rows: int = 40, *, name: str | None = None, kind: pa.DataType | None = None) -> Path:
        """Write a file into a day, through another name as writers do."""
        day = self.day(number)
        day.mkdir(parents=True, exist_ok=True)
        ids = np.array([next(self.ids) for _ in range(rows)], np.int64)
        table = pa.table({"id": ids, "x": pa.array(ids % 5, kind or pa.int32())})
        path = day / (name or f"{ids[0]:06d}.parquet")
        pq.write_table(table, path.with_suffix(".tmp"), row_group_size=ROW_GROUP)
        path.with_suffix(".tmp").rename(path)
        return path

    def mark(self, number: int) -> None:
        (self.day(number) / "_SUCCESS").touch()

    def land(self, number: int, rows: int = 40, **options: Any) -> Path:
        """Write a file into a day, and mark the day as landed."""
        path = self.write(number, rows, **options)
        self.mark(number)
        return path

    def age(self, seconds: float) -> None:
        """Make all files so much older."""
        for path in self.path.rglob("*"):
            changed_s = path.stat().st_mtime - seconds
            os.utime(path, (changed_s, changed_s))

    def pipeline(self, name: str = "p", /, *, source: dict[str, Any] | None = None, **changes: Any) -> Path:
        """A pipeline.yaml; `follow` holds keys of source.follow."""
        follow = {"landed": "_SUCCESS", **changes.pop("follow", {})}
        document = {
            "version": 1,
            "name": name,
            "work_dir": f"work-{name}",
            "source": {"table": "table", "where": "x > 0", "follow": follow, **(source or {})},
            "features": {"dense": {"x": []}, "label": {"x2": {"column": "x"}}, "extra": {"id": []}},
            "batch": {"size": 8, "tail": "partial"},
            "shuffle": {"seed": 1, "window_rows": 64},
            "cluster": {"threads": 1, "dashboard": False},
            "memory": "64MiB",
            **changes,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(document, indent=1))
        return path

    def kept(self, *days: int) -> list[int]:
        """The ids of the rows with x > 0, of some days or all; by pyarrow."""
        folders = [self.day(number) for number in days] or sorted(self.path.iterdir())
        files = sorted(file for folder in folders for file in folder.glob("*.parquet"))
        tables = [pq.ParquetFile(file).read(["id", "x"]) for file in files]
        return sorted(id for table in tables for id, x in zip(*table.to_pydict().values(), strict=True) if x > 0)


def ids_of(batches: Iterable[Batch]) -> list[int]:
    """The ids that batches hold, sorted; of padding none."""
    found: list[int] = []
    for batch in batches:
        found += batch["id"][batch.valid].tolist() if batch.valid is not None else batch["id"].tolist()
    return sorted(found)
