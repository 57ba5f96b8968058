"""A table of rows with unique ids, an interrupted run over it, and rewrites of its files in between."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.loader.state import state_of
from feedline.loader.wire.facts import PlanFacts
from feedline.planning.plan import Plan

FEATURES = {"extra": {"id": [], "name": []}, "dense": {"x": [{"fill_null": 0}]}, "sparse": {"ids": []}}


class Rewritten:
    """A folder with a table of partitions `ds=0 …`, its pipeline, and its content: file -> ids."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.table = folder / "t"
        self.files: dict[str, list[int]] = {}
        self.top = 0

    @property
    def ids(self) -> list[int]:
        """Return the ids of all current rows."""
        return sorted(row for rows in self.files.values() for row in rows)

    def new_ids(self, count: int) -> list[int]:
        self.top += count
        return list(range(self.top - count, self.top))

    def write(self, name: str, ids: Sequence[int], *, row_group_rows: int | None = None, **options: Any) -> None:
        """Write a file with these rows; equal ids give equal rows in any file."""
        path = self.table / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "user": pa.array([None if row % 60 < 5 else row // 5 for row in ids], pa.int64()),
                "x": pa.array([None if row % 7 == 0 else row / 8 for row in ids], pa.float32()),
                "name": pa.array([f"row-{row % 97}" for row in ids]),
                "ids": pa.array([[row] * (row % 3) for row in ids], pa.list_(pa.int64())),
                "keep": pa.array([row % 5 for row in ids], pa.int8()),
            }
        )
        size = row_group_rows or self.random.choice([17, 40, 64, 1000])
        pq.write_table(rows, path, row_group_size=size, **options)
        self.files[name] = list(ids)

    def remove(self, name: str) -> None:
        (self.table / name).unlink()
        del self.files[name]

    def fill(self, partitions: int = 4, files: int = 2, rows: int = 110) -> None:
        for day in range(partitions):
            for number in range(self.random.randint(1, files)):
                self.write(f"ds={day}/{number}.parquet", self.new_ids(self.random.randint(20, rows)))

    def of(self, day: int) -> list[str]:
        return [name for name in self.files if name.startswith(f"ds={day}/")]

    def delete(self, name: str, share: float = 0.3, *, shuffled: bool = True) -> None:
        """Rewrite a file without some of its rows, in another order and with other row groups."""
        rows = [row for row in self.files[name] if self.random.random() > share]
        if shuffled:
            self.random.shuffle(rows)
        self.write(name, rows)

    def rewrite(self) -> None:
        """Rewrite the table at random as a privacy job may do, partition by partition."""
        for day in range(8):
            names = self.of(day)
            if not names:
                continue
            what = self.random.choice(["nothing", "delete", "delete", "merge", "remove one", "remove all", "split"])
            rows = [row for name in names for row in self.files[name] if self.random.random() > 0.2]
            if what == "delete":
                self.delete(self.random.choice(names))
            elif what == "remove one":
                self.remove(self.random.choice(names))
            elif what in ("merge", "split", "remove all") and len({name[:5] for name in self.files}) > 1:
                for name in names:
                    self.remove(name)
                if what != "remove all":
                    cut = len(rows) if what == "merge" else len(rows) // 2
                    self.random.shuffle(rows)
                    for number, part in enumerate((rows[:cut], rows[cut:])):
                        if part:
                            self.write(f"ds={day}/{self.top}-{what}-{number}.parquet", part)
        if self.random.random() < 0.4:
            day = self.random.choice([7, 3])
            self.write(f"ds={day}/added-{self.top}.parquet", self.new_ids(30))

    def pipeline(self, **changes: Any) -> Pipeline:
        document: dict[str, Any] = {
            "version": 1,
            "name": "rewritten",
            "work_dir": "work",
            "source": {"table": str(self.table), "split_rows": 64, "row_key": "id", **changes.pop("source", {})},
            "features": FEATURES,
            "batch": {"size": 8, "tail": "partial"},
            "shuffle": {"seed": 5, "window_rows": 150},
            "lanes": 4,
            **changes,
        }
        path = self.folder / "p.yaml"
        path.write_text(json.dumps(document))
        return Pipeline.from_yaml(path)

    def forget(self) -> Path:
        """Delete all records of identities; return their folder."""
        return (self.folder / "work" / "rows").rename(self.folder / "forgotten")


def steps(pipeline: Pipeline, plan: Plan, epoch: int, first: int, last: int | None = None, world: int = 1) -> list[int]:
    """Return the ids that all ranks deliver in steps [first, last)."""
    found = []
    for rank in range(world):
        for batch in pipeline.batches(epoch, rank, world, step=first, plan=plan):
            if last is not None and batch.step >= last:
                break
            ids, valid = batch.extra["id"].tolist(), batch.valid.tolist()
            found += [row for row, counts in zip(ids, valid, strict=True) if counts]
    return found


def state_at(plan: Plan, epoch: int, step: int) -> dict[str, Any]:
    """Return the state of a dataset on this plan."""
    return state_of(plan.facts(), epoch, step)


def rows_dropped(facts: PlanFacts) -> int:
    return facts.rest.rows_dropped
