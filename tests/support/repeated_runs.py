"""Tables of rows that repeat, as they are and with their groups stored once per run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from stored_runs import write_in_place

GROUPS = {"user": ["ids", "age", "who"], "page": ["site"]}


KINDS = {
    "ids": pa.list_(pa.int64()),
    "age": pa.float64(),
    "who": pa.struct([("name", pa.string()), ("size", pa.int32())]),
    "site": pa.string(),
    "price": pa.float32(),
    "row": pa.int64(),
}


CELLS = {
    "ids": st.none() | st.lists(st.integers(-3, 3), max_size=4),
    "age": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    "who": st.none() | st.fixed_dictionaries({"name": st.none() | st.text(max_size=3), "size": st.integers(0, 9)}),
    "site": st.none() | st.text(max_size=3),
    "price": st.floats(width=32, allow_nan=False),
}


@st.composite
def runs(draw: st.DrawFn) -> tuple[pa.Table, dict[str, list[bool]]]:
    """A table of rows that repeat, and where its runs start."""
    count = draw(st.integers(1, 40))
    columns: dict[str, list[Any]] = {"row": list(range(count))}
    starts = {}
    columns["price"] = draw(st.lists(CELLS["price"], min_size=count, max_size=count))
    for group, names in GROUPS.items():
        flags = [True, *draw(st.lists(st.booleans(), min_size=count - 1, max_size=count - 1))]
        cells = [{name: draw(CELLS[name]) for name in names} for _ in range(sum(flags))]
        which = np.cumsum(flags) - 1
        columns |= {name: [cells[index][name] for index in which] for name in names}
        starts[group] = flags
    return pa.table({name: pa.array(columns[name], kind) for name, kind in KINDS.items()}), starts


def write_both(folder: Path, table: pa.Table, starts: dict[str, list[bool]], size: int, **changes: Any) -> None:
    """The table as it is, in `plain`, and with its groups stored once per run, in `stored`."""
    (folder / "plain").mkdir()
    pq.write_table(table, folder / "plain" / "a.parquet", row_group_size=size)
    write_in_place(folder / "stored" / "a.parquet", table, GROUPS, starts, size, **changes)
