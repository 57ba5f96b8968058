"""Describe the tensors of a pipeline's batches, and write the JSON Schema of pipeline.yaml or samples.yaml: `feedline
schema`.

Runs in: the process of the command. Pure, but for the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.errors import SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn

SCHEMA_FILE = "pipeline.schema.json"  # beside pipeline.yaml, for editors
SCHEMA_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"  # the first line of a pipeline.yaml that names it
_MATRICES = {"dense": "dense", "categorical": "categorical", "label": "labels"}


def write_json_schema(file: Path, schema: Mapping[str, Any]) -> None:
    """Write the JSON Schema of pipeline.yaml or samples.yaml to a file, or over that of another version.

    Raises SpecError for a file that holds anything else, or cannot be written.
    """
    described, *_ = schema["title"].split()  # "pipeline.yaml of Feedline 1.0"
    try:
        if file.exists() and not _title_of(file).startswith(f"{described} of Feedline"):
            raise SpecError(f"{file} holds something else: expected a schema of {described}, or no file. Name another")
        file.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file} cannot be written: {error.strerror}. Name another file") from error


def _title_of(file: Path) -> str:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        return ""
    return str(content.get("title", "")) if isinstance(content, dict) else ""


def describe_schema(schema: BatchSchema, batch_size: int) -> dict[str, Any]:
    """Describe the tensors with dtypes and shapes, and each feature's position in them, as plain values.

    A batch of L lanes has L x `batch_size` rows. A deduplicated group has any number of unique rows: None.
    """
    tensors = []
    for dedup, part in zip((None, *schema.dedup), schema.parts, strict=True):
        rows = batch_size if dedup is None else None
        for group in _MATRICES:
            columns = part.group(group)
            if columns:
                width = sum(column.width for column in columns)
                tensors.append({"tensor": _matrix(group, dedup), "dtype": columns[0].dtype, "shape": [rows, width]})
    return {
        "batch_size": batch_size,
        "tensors": tensors,
        "features": [
            {
                "name": column.name,
                "group": column.group,
                "tensor": _tensor(column),
                "dtype": column.dtype or column.arrow,
                "width": column.width,
                "num_embeddings": column.num_embeddings,
                "unit": column.unit,
                "chain": column.chain,
            }
            for column in schema
        ],
    }


def _tensor(column: SlotColumn) -> str:
    """The expression that takes a feature from a batch."""
    if column.group == "sparse":
        return f'sparse["{column.name}"]'
    if column.group == "extra":
        return f'extra["{column.name}"]'
    stop = column.offset + column.width
    index = str(column.offset) if column.width == 1 else f"{column.offset}:{stop}"
    return f"{_matrix(column.group, column.dedup)}[:, {index}]"


def _matrix(group: str, dedup: str | None) -> str:
    return _MATRICES[group] if dedup is None else f'groups["{dedup}"].{_MATRICES[group]}'


def schema_table(facts: Mapping[str, Any]) -> Group:
    """Render the facts: the matrices, then a line per feature."""
    table = Table(title="features", title_justify="left")
    for name in ("feature", "in the batch", "dtype", "width", "rows of an embedding", "made by"):
        table.add_column(
            name, overflow="fold", justify="right" if name in ("width", "rows of an embedding") else "left"
        )
    for one in facts["features"]:
        rows = one["num_embeddings"]
        table.add_row(
            escape(one["name"]),
            escape(one["tensor"]),
            one["dtype"] + (f" ({one['unit']})" if one["unit"] else ""),
            str(one["width"]),
            "" if rows is None else f"{rows:,}",
            escape(one["chain"]),
        )
    matrices = "\n".join(
        f"batch.{one['tensor']}: {one['dtype']} [{'unique rows' if rows is None else rows}, {width}]"
        for one in facts["tensors"]
        for rows, width in (one["shape"],)
    )
    return Group(escape(matrices), table)
