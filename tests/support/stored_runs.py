"""Write Parquet files with columns stored once per run of equal rows, row by row in Python: an oracle for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash


def write_in_place(
    path: Path,
    table: pa.Table,
    groups: Mapping[str, Sequence[str]],
    starts: Mapping[str, Sequence[bool]],
    row_group_rows: int,
    **changes: Any,
) -> None:
    """Write a table whose groups' runs start at `starts` and at row groups.

    changes: what differs from the format: `flags` (group: per row), `keep` (values stay where rows repeat), `late`
    (values stand only there), `astray` (column: rows whose values stay), `metadata` (a function of the document; None:
    no metadata). `options`: of pyarrow's writer.
    """
    described: dict[str, Any] = {name: {"columns": list(columns), "row_groups": []} for name, columns in groups.items()}
    parts = []
    for first in range(0, table.num_rows, row_group_rows):
        part = table.slice(first, row_group_rows)
        flags = {}
        for name in groups:
            mine = [index == 0 or bool(starts[name][first + index]) for index in range(part.num_rows)]
            bits = np.packbits(np.array(mine), bitorder="little").tobytes()
            described[name]["row_groups"].append([part.num_rows, sum(mine), xxhash.xxh3_64_hexdigest(bits)])
            flags[name] = mine
        for name, columns in groups.items():
            index = pa.array([row if start else None for row, start in enumerate(flags[name])], pa.int64())
            if changes.get("late"):
                index = pa.array([None if start else row for row, start in enumerate(flags[name])], pa.int64())
            for column in [] if changes.get("keep") else columns:
                place = part.schema.get_field_index(column)
                kept = {row - first for row in changes.get("astray", {}).get(column, ())}.intersection(
                    range(len(index))
                )
                rows = pa.array([row if row in kept else at for row, at in enumerate(index.to_pylist())], pa.int64())
                part = part.set_column(place, part.schema.field(column).with_nullable(True), part[column].take(rows))
        for name in groups:
            stored = changes.get("flags", {}).get(name)
            mine = flags[name] if stored is None else list(stored[first : first + row_group_rows])
            part = part.append_column(f"__run_{name}", pa.array(mine, pa.bool_()))
        parts.append(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, parts[0].schema, **changes.get("options", {})) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=row_group_rows)
        document = {"version": 1, "groups": described}
        document = changes["metadata"](document) if "metadata" in changes else document
        if document is not None:
            writer.add_key_value_metadata({"feedline.dedup": json.dumps(document)})
