"""The columns of a batch, from the outputs of compiled features.

Runs in: the feeder, workers, serving. Pure.
"""

from __future__ import annotations

import polars as pl

from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.transforms.compile.chains import chain_text
from feedline.transforms.compile.compiled import CompiledFeatures


def batch_schema(features: CompiledFeatures) -> BatchSchema:
    """The columns of a batch, from the features' outputs. `expanded` of it are those of plain rows."""
    columns: list[SlotColumn] = []
    widths: dict[tuple[str, str | None], int] = {}
    arrow_types: dict[pl.DataType, str] = {}
    for output, feature in zip(features.outputs, features.features, strict=True):
        dtype, unit = _fixed_dtype(output.group, output.dtype)
        if (arrow := arrow_types.get(output.dtype)) is None:
            arrow = arrow_types[output.dtype] = str(pl.Series([], dtype=output.dtype).to_arrow().type)
        matrix = output.group, feature.dedup if output.group in ("dense", "categorical") else None
        offset = widths.get(matrix, 0)
        width = output.dtype.size if isinstance(output.dtype, pl.Array) and output.group != "extra" else 1
        columns.append(
            SlotColumn(
                name=output.name,
                group=output.group,
                dtype=dtype,
                arrow=arrow,
                offset=offset,
                width=width,
                unit=unit,
                weighted=output.group == "sparse" and isinstance(output.dtype, pl.Struct),
                chain=chain_text(feature),
                on_nonfinite=feature.on_nonfinite,
                looks_up=bool(output.lookups),
                lookups=len(output.lookups),
                num_embeddings=output.num_embeddings if dtype == "int64" and output.group != "extra" else None,
                dedup=feature.dedup,
            )
        )
        widths[matrix] = offset + width
    return BatchSchema(tuple(columns))


def _fixed_dtype(group: str, dtype: pl.DataType) -> tuple[str, str | None]:
    """The numpy dtype of a feature's values ("" for extras that have no fixed width), and the unit of times."""
    if group in ("dense", "label"):
        return "float32", None
    if group == "categorical":
        return "int64", None
    if group == "sparse":
        return ("float32" if dtype == pl.List(pl.Float32()) else "int64"), None
    if isinstance(dtype, pl.Datetime | pl.Duration):
        return "int64", dtype.time_unit
    if dtype == pl.Date:
        return "int32", "D"
    if dtype == pl.Boolean:
        return "bool", None
    numeric = dtype.is_integer() or dtype.is_float()
    return (str(pl.Series([], dtype=dtype).to_numpy().dtype) if numeric else ""), None
