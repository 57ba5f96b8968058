"""The columns of its table that a pipeline reads, for plans, `feedline check` and reports.

Runs in: the feeder, the CLI, `Pipeline`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from feedline.config import PipelineSpec
from feedline.config.source_section import SourceSpec
from feedline.config.yaml_document import Path
from feedline.dataclass import dataclass
from feedline.errors import ExpressionError
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.column_parts import has_column
from feedline.planning.histories import list_columns, stored_columns
from feedline.planning.table_features import compile_spec, grouped_features, planned_schema
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample, Sample, bind_sample
from feedline.warehouse.reading.seen_rows import Mark, TableRows, bind_marks, source_names
from feedline.warehouse.selection.null_counts import first_absence
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import join, redact

# --------------------------------------------------------------------------------------------------------------------
# Bind filter, sample and the marks of rows that fits have seen to the columns of a table.


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


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadColumns:
    """The columns of its table that a pipeline reads: for features, filter, sample, marks and as keys. keys:
    `shuffle.by` and `weights`, the column whose lengths decide, and the row key. marks: conditions that recognise rows
    which fits have seen."""

    spec: PipelineSpec
    features: CompiledFeatures
    where: BoundExpression | None
    sample: BoundSample | None
    keys: tuple[str, ...]
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(
        cls,
        spec: PipelineSpec,
        features: CompiledFeatures,
        where: BoundExpression | None,
        sample: BoundSample | None,
    ) -> ReadColumns:
        """The columns of a spec bound to its table. Raises SpecError where rows that fits saw cannot be recognised."""
        marks = bound_marks(spec, features)
        shuffle = () if spec.shuffle is None else (spec.shuffle.by, spec.shuffle.weights)
        ordering = [name for name in (*shuffle, spec.batch.lengths) if name is not None]
        keys = (*ordering, *(spec.source.row_key or ()))
        return cls(spec=spec, features=features, where=where, sample=sample, keys=keys, marks=marks)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that blocks read, each once; partition keys may be among them. `sample_weight` is one of them
        only where the schema has it: otherwise the sample generates it."""
        conditions = [sorted(condition.columns) for condition in self._conditions]
        return self._unique([self.features.columns, self.keys, *conditions], schema)

    def parts(self, schema: pa.Schema) -> tuple[str, ...]:
        """The same, as column parts where only parts of them are read."""
        conditions = [sorted(condition.parts) for condition in self._conditions]
        return self._unique([self.features.parts, self.keys, *conditions], schema)

    @property
    def _conditions(self) -> list[BoundExpression | BoundSample | Mark]:
        return [condition for condition in (self.where, self.sample, *self.marks) if condition is not None]

    def _unique(self, names: Sequence[Sequence[str]], schema: pa.Schema) -> tuple[str, ...]:
        generated = self.sample is not None and not has_column(schema, SAMPLE_WEIGHT)
        not_read = {SAMPLE_WEIGHT} if generated else set()
        stored = stored_columns(self.spec, [name for each in names for name in each])
        return tuple(name for name in stored if name not in not_read)


def read_columns_of(spec: PipelineSpec, schema: pa.Schema) -> ReadColumns:
    """The columns that a run reads from a table of this schema. Raises SpecError as `make_plan` does."""
    where, lists = bound_where(spec, schema), list_columns(spec)
    own = [feature for feature in grouped_features(spec) if feature.history is None]
    features = compile_spec(spec, planned_schema(spec, schema), own)
    columns = ReadColumns.of(spec, features, where, bound_sample(spec, schema))
    return replace(columns, keys=(*columns.keys, *stored_columns(spec, lists)))


def require_columns(
    spec: PipelineSpec, snapshot: Snapshot, columns: Collection[str], where: BoundExpression | None
) -> None:
    """Raise SpecError where a file that may be read lacks one of these columns."""
    absence = first_absence(snapshot, columns, where)
    if absence is not None:
        name, path, files = absence
        raise spec.error(
            ("source", "schema", "missing"),
            f"column {name!r} is not in {join(redact(snapshot.uri), path)}: got {files} files without it, expected "
            f"none. Leave them out with source.where, or write `missing: null`",
        )
