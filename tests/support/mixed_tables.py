"""Two small tables with columns of different names, and a pipeline that mixes them; every row has an id of its own.

The table `clicks` has the columns id, price, item and clicked, `views` the same as row, cost, product and clicked, with
ids from `VIEWS` on. Ids tell the tests which table a row of a batch is of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.loader.batch import Batch
from feedline.planning.plan import Plan

VIEWS = 1_000_000
NAMES = {"clicks": ("id", "price", "item"), "views": ("row", "cost", "product")}
OF_VIEWS: dict[str, Any] = {
    "dense": {"price": {"column": "cost"}},
    "categorical": {"item": {"column": "product"}},
    "extra": {"id": {"column": "row"}},
}


def write_files(folder: Path, names: tuple[str, str, str], first: int, *, files: int, rows: int, group: int) -> None:
    """Write files of consecutive ids, and what follows from them."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(files):
        ids = np.arange(first + index * rows, first + (index + 1) * rows)
        columns = {
            names[0]: ids,
            names[1]: (ids % 97).astype(np.float64),
            names[2]: ids % (7 if first < VIEWS else 11),
            "clicked": (ids % 2).astype(np.float32),
        }
        pq.write_table(pa.table(columns), folder / f"{first}-{index}.parquet", row_group_size=group)


def write_tables(folder: Path, *, clicks: int = 600, views: int = 150) -> Path:
    """Write both tables, of 3 files each, below a folder, with so many rows per file."""
    write_files(folder / "clicks", NAMES["clicks"], 0, files=3, rows=clicks, group=100)
    write_files(folder / "views", NAMES["views"], VIEWS, files=3, rows=views, group=50)
    return folder


def mixed_pipeline(folder: Path, *, stop: object = "first", size: int = 10, **changes: Any) -> dict[str, Any]:
    """A pipeline that mixes both tables 4:1."""
    pipeline = {
        "version": 1,
        "name": "mixed",
        "work_dir": str(folder / "work"),
        "sources": [
            {"name": "clicks", "table": str(folder / "clicks"), "weight": 4},
            {"name": "views", "table": str(folder / "views"), "weight": 1, "features": OF_VIEWS},
        ],
        "features": {
            "dense": {"price": []},
            "categorical": {"item": [{"modulo": 100}]},
            "label": {"clicked": []},
            "extra": ["id"],
        },
        "batch": {"size": size},
        "shuffle": {"window_rows": 200, "seed": 5},
        "mix": {"stop": stop},
        "cluster": {"threads": 2},
        "memory": "64MiB",
    }
    return {key: value for key, value in {**pipeline, **changes}.items() if value is not None}


def mixed_plan_of(folder: Path, world_size: int = 1, **changes: Any) -> Plan:
    """The plan of `mixed_pipeline`."""
    return Pipeline.from_dict(mixed_pipeline(folder, **changes)).plan(world_size=world_size)


def ids_of(batch: Batch, lanes: int = 1) -> np.ndarray:
    """int64 [lanes, rows of a lane]: the ids of a batch's rows."""
    return np.asarray(batch.extra["id"]).reshape(lanes, -1).copy()
