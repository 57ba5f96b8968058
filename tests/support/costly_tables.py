"""Tables and pipelines whose costs are known beforehand: long lists, a heavy op, tiny row groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline
from feedline.planning.plan import Plan

FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"], "both": {"expr": "price * 2 + item"}},
    "categorical": {"item": [{"modulo": 1000}]},
    "sparse": {"hist": [{"hash_bucket": 1000}]},
    "label": {"clicked": []},
}


def lists(rng: np.random.Generator, rows: int, mean: float, *, values: int = 2**40) -> pa.Array:
    """Lists of geometric lengths, of random ids."""
    lengths = rng.geometric(1 / max(mean, 1), rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, rng.integers(0, values, int(offsets[-1])))


def costly_plan(
    folder: Path,
    *,
    rows: int = 8_192,
    row_group_rows: int = 4_096,
    list_mean: float = 40,
    files: int = 2,
    features: dict[str, Any] | None = None,
    columns: dict[str, Any] | None = None,
    **changes: Any,
) -> Plan:
    """The plan of a pipeline over a new table in the folder. columns: further ones."""
    return Pipeline.from_yaml(
        costly_pipeline(
            folder,
            rows=rows,
            row_group_rows=row_group_rows,
            list_mean=list_mean,
            files=files,
            features=features,
            columns=columns,
            **changes,
        )
    ).plan()


def costly_pipeline(
    folder: Path,
    *,
    rows: int,
    row_group_rows: int,
    list_mean: float,
    files: int = 2,
    features: dict[str, Any] | None = None,
    columns: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write the table and its pipeline.yaml. rows: of each file."""
    table = folder / "table"
    table.mkdir(parents=True)
    for file in range(files):
        rng = np.random.default_rng(file)
        content = pa.table(
            {
                "price": rng.random(rows).astype(np.float32),
                "item": rng.integers(0, 50_000, rows),
                "hist": lists(rng, rows, list_mean),
                "clicked": rng.integers(0, 2, rows),
                **{name: make(rng, rows) for name, make in (columns or {}).items()},
            }
        )
        pq.write_table(content, table / f"{file}.parquet", row_group_size=row_group_rows)
    document = {
        "version": 1,
        "name": "costly",
        "work_dir": "work",
        "source": {"table": str(table)},
        "features": features or FEATURES,
        "batch": {"size": 256, "tail": "drop"},
        "shuffle": {"seed": 1},
        **changes,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path
