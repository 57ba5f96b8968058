"""Bind filter, sample and the marks of rows that fits have seen to the columns of a table.

Runs in: the feeder, the CLI, `Pipeline`. Pure.
"""

from __future__ import annotations

import pyarrow as pa

from feedline.errors import ExpressionError
from feedline.expressions import BoundExpression, bind_where
from feedline.spec import PipelineSpec
from feedline.spec.source_section import SourceSpec
from feedline.spec.yaml_document import Path
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.sample import BoundSample, Sample, bind_sample
from feedline.warehouse.reading.seen_rows import Mark, TableRows, bind_marks, source_names
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import redact


def bound_where(
    spec: PipelineSpec, schema: pa.Schema, *, text: str | None = None, path: Path = ("source", "where")
) -> BoundExpression | None:
    """`source.where`, or the expression at another path, bound to the table's columns; None where there is none."""
    text = spec.source.where if text is None else text
    try:
        return None if text is None else bind_where(text, schema)
    except ValueError as error:
        raise spec.error(path, str(error)) from error


def bound_sample(spec: PipelineSpec, schema: pa.Schema, *, fits: bool = False) -> BoundSample | None:
    """`source.sample`, bound to the table's columns. fits: the rows that fits learn from, whose rest may be read."""
    sample = Sample.of(spec.source.sample)
    if sample is None:
        return None
    try:
        return bind_sample(sample.fitted if fits else sample, schema)
    except ValueError as error:
        part = "where" if isinstance(error, ExpressionError) else "key"
        raise spec.error(("source", "sample", part), str(error)) from error


def rows_of(source: SourceSpec, snapshot: Snapshot) -> TableRows:
    """The rows that a run reads: table, filter and sample."""
    return TableRows(
        root=redact(snapshot.uri),
        sources=source_names(source.table, source.format),
        where=source.where,
        sample=Sample.of(source.sample),
    )


def bound_marks(spec: PipelineSpec, features: CompiledFeatures) -> tuple[Mark, ...]:
    """Conditions that recognise rows which fits have seen. Raises SpecError where the table's rows do not show it."""
    try:
        return bind_marks(features.marks, features.schema)
    except ValueError as error:
        cause = str(error).partition("\n")[0]
        raise spec.error(
            ("fit",),
            f"filter and sample of the fit do not tell which rows of this table it has seen: got {cause}. "
            "Fit again on this table, or write `out_of_fold: false` if no fit has seen its rows",
        ) from error
