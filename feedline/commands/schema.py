"""Describe the tensors of a pipeline's batches, for `feedline schema`.

Runs in: the process of the command. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.loader.encoding.layout import BatchSchema, SlotColumn

_MATRICES = {"dense": "dense", "categorical": "categorical", "label": "labels"}


def describe_schema(schema: BatchSchema, batch_size: int) -> dict[str, Any]:
    """Describe the tensors with dtypes and shapes, and each feature's position in them, as plain values.

    A batch of L lanes has L x `batch_size` rows.
    """
    tensors = []
    for group, tensor in _MATRICES.items():
        columns = schema.group(group)
        if columns:
            width = sum(column.width for column in columns)
            tensors.append({"tensor": tensor, "dtype": columns[0].dtype, "shape": [batch_size, width]})
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
    return f"{_MATRICES[column.group]}[:, {index}]"


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
    matrices = "\n".join(f"batch.{one['tensor']}: {one['dtype']} {one['shape']}" for one in facts["tensors"])
    return Group(escape(matrices), table)
