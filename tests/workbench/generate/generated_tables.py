"""Small generated click tables, and how they are read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

ROWS, DAYS, PART_ROWS, GROUP_ROWS = 30_000, 3, 6_000, 2_048


SMALL = {"rows": 6_000, "part_rows": 1_200, "row_group_rows": 512}


def generate(folder: Path, **options: Any) -> Any:
    small = {"rows": ROWS, "days": DAYS, "part_rows": PART_ROWS, "row_group_rows": GROUP_ROWS, **options}
    run = {"threads": 2, **{name: small.pop(name) for name in ("threads", "overwrite") if name in small}}
    return generate_clicks(str(folder), ClickRecipe(**small), **run)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def read(folder: Path) -> pa.Table:
    parts = [
        pads.dataset(file, partitioning="hive", partition_base_dir=str(folder)).to_table() for file in files(folder)
    ]
    return pa.concat_tables(parts).combine_chunks()


def unchanged(table: pa.Table, name: str) -> float:
    """Share of rows inside a session (in time order) whose value equals the row above's, null included."""
    ordered = table.select(["session_id", "ts", "request_id", name]).sort_by(
        [("session_id", "ascending"), ("ts", "ascending")]
    )
    session = ordered.column("session_id").to_numpy()
    values = ordered.column(name).to_pylist()
    inside = np.flatnonzero(session[1:] == session[:-1])
    return float(np.mean([values[i] == values[i + 1] for i in inside]))
