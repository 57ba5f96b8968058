"""The features compiled for rows of one schema, and their computation.

Runs in: the process that serves. What does not depend on the rows is in the form: the types that columns are converted
to, the pass over all features, and the stacks that few rows are computed by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from feedline.errors import DataError
from feedline.expressions.extraction import Frame, project
from feedline.loader.encoding.layout import BatchSchema
from feedline.serving.request_types import convert
from feedline.serving.stacks import STACKED_ROWS, Stack
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.values.arrays import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """features: all of them. columns: those of the encoded rows. casts: the columns to convert first. stacks: features
    that are computed together where rows are few; `rest` are the others.
    """

    features: CompiledFeatures
    columns: BatchSchema
    casts: tuple[pa.Field, ...]
    stacks: tuple[Stack, ...]
    rest: CompiledFeatures | None

    def compute(self, rows: Frame) -> Mapping[str, Column]:
        """The finished features of rows. Raises DataError, with the row if known."""
        count = rows.height if isinstance(rows, pl.DataFrame) else rows.num_rows
        if self.stacks and 0 < count <= STACKED_ROWS:
            try:
                return self._compute_stacked(rows, count)
            except (DataError, pa.ArrowException, pl.exceptions.PolarsError):
                pass  # the pass over all features raises it again, with the names of column, feature and row
        return self._compute(rows, self.features)

    def _compute_stacked(self, rows: Frame, count: int) -> Mapping[str, Column]:
        arrays = _arrays(rows)
        found: dict[str, Column] = {}
        for stack in self.stacks:
            found |= stack.compute(arrays, count)
        if self.rest is not None:
            found |= self._compute(rows, self.rest)
        return found

    def _compute(self, rows: Frame, features: CompiledFeatures) -> Mapping[str, Column]:
        casts = tuple(field for field in self.casts if field.name in features.columns)
        return features.finished(project(_cast_columns(rows, casts) if casts else rows, features.parts))


def _arrays(rows: Frame) -> list[pa.Array]:
    """Each column as one array."""
    if isinstance(rows, pl.DataFrame):
        rows = rows.to_arrow()
    if isinstance(rows, pa.Table):
        [rows] = rows.combine_chunks().to_batches()
    arrays: list[pa.Array] = rows.columns
    return arrays


def _cast_columns(rows: Frame, casts: tuple[pa.Field, ...]) -> Frame:
    if isinstance(rows, pl.DataFrame):
        return rows.with_columns(
            pl.Series(field.name, convert(rows.get_column(field.name).to_arrow(), field.type, field.name))
            for field in casts
        )
    fields, columns = list(rows.schema), list(rows.columns)
    for field in casts:
        index = rows.schema.get_field_index(field.name)
        fields[index], columns[index] = field, convert(columns[index], field.type, field.name)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
