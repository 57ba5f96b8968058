"""Which columns of its table does a pipeline read? The one answer for plans, blocks, `feedline check` and reports.

Runs in: the feeder, the CLI, `Pipeline.batches`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from feedline.expressions import BoundExpression
from feedline.expressions.column_parts import has_column
from feedline.planning.binding import bound_marks
from feedline.spec import PipelineSpec
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.reading.seen_rows import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a pipeline asks of its table: for features, filter and sample, and `named` besides (runs, row key).

    marks: what tells rows that fits have seen from others.
    """

    features: CompiledFeatures
    where: BoundExpression | None
    sample: BoundSample | None
    named: tuple[str, ...]
    marks: tuple[Mark, ...] = ()

    @classmethod
    def of(
        cls,
        spec: PipelineSpec,
        features: CompiledFeatures,
        where: BoundExpression | None,
        sample: BoundSample | None,
    ) -> Needs:
        """The needs of a spec that is bound to its table. Raises SpecError where it cannot be known what was seen."""
        marks = bound_marks(spec, features)
        by = (spec.shuffle.by,) if spec.shuffle is not None and spec.shuffle.by is not None else ()
        named = (*by, *(spec.source.row_key or ()))
        return cls(features=features, where=where, sample=sample, named=named, marks=marks)

    def columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns that blocks read, each once; partition keys may be among them.

        `sample_weight` is one of them only where the schema has it: a sample makes it where the table does not.
        """
        conditions = [sorted(condition.columns) for condition in self._conditions]
        return self._known([self.features.columns, self.named, *conditions], schema)

    def parts(self, schema: pa.Schema) -> tuple[str, ...]:
        """The same, by their parts (`projection`) where only parts of them are read."""
        conditions = [sorted(condition.parts) for condition in self._conditions]
        return self._known([self.features.parts, self.named, *conditions], schema)

    @property
    def _conditions(self) -> list[BoundExpression | BoundSample | Mark]:
        return [condition for condition in (self.where, self.sample, *self.marks) if condition is not None]

    def _known(self, names: Sequence[Sequence[str]], schema: pa.Schema) -> tuple[str, ...]:
        made = self.sample is not None and not has_column(schema, SAMPLE_WEIGHT)
        return tuple(dict.fromkeys(name for each in names for name in each if not (made and name == SAMPLE_WEIGHT)))
