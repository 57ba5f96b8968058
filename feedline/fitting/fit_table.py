"""One table that a fit learns from: the rows to learn from, what a pass reads of them, and the job of its tasks.

Runs in: the process that fits. A pipeline of several sources has one for each, with features of its own whose fits are
those of the pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from feedline.artifacts.fit_origin import FitOrigin
from feedline.blocks.environment import Environment
from feedline.config import PipelineSpec
from feedline.config.features import FeatureSpec
from feedline.config.yaml_document import Path
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, PlanError
from feedline.expressions import BoundExpression
from feedline.fitting.observe import FitJob, TableConditions
from feedline.fitting.spill import Scratch
from feedline.planning.exclusions import named_exclusion
from feedline.planning.histories import stored_columns
from feedline.planning.read_columns import bound_sample, bound_where, require_columns, rows_of
from feedline.planning.table_features import artifact_set_ref, compile_spec, planned_schema, required_functions
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.learning.learner import ArtifactSet, FitRequest
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, BoundSample
from feedline.warehouse.reading.seen_rows import source_names
from feedline.warehouse.selection.exclusion import Exclusion
from feedline.warehouse.selection.pruning_report import deciding_parts, needed_bytes
from feedline.warehouse.selection.select import Selection, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPass:
    """One pass over all tables of a fit. ready: the fits that it makes. readings: the external artifacts. earlier:
    folder and manifest of the fits of passes before, which this one needs. tables: see `FitJob`."""

    ready: Sequence[FitRequest]
    scratch: Scratch
    environment: Environment
    readings: tuple[tuple[str, str], ...]
    earlier: tuple[str, str] | None
    tables: tuple[TableConditions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTable:
    """A table, and the rows of it to learn from. where_path: of `where` in pipeline.yaml."""

    spec: PipelineSpec
    snapshot: Snapshot
    schema: pa.Schema
    where: BoundExpression | None
    where_path: Path
    sample: BoundSample | None
    exclusion: Exclusion | None = None

    @classmethod
    def of(cls, spec: PipelineSpec, snapshot: Snapshot) -> FitTable:
        """The table of a pipeline with one source. Raises SpecError where pipeline.yaml does not match it."""
        path: Path = ("fit", "where") if spec.fit.where is not None else ("source", "where")
        return cls(
            spec=spec,
            snapshot=snapshot,
            schema=planned_schema(spec, snapshot.schema, snapshot.histories),
            where=bound_where(spec, snapshot.schema, text=spec.fit.where, path=path),
            where_path=path,
            sample=bound_sample(spec, snapshot.schema, fits=True),
            exclusion=named_exclusion(spec, snapshot) if spec.fit.where is None else None,
        )

    @property
    def where_text(self) -> str | None:
        return self.spec.fit.where or self.spec.source.where

    def compile(self, artifacts: ArtifactSet) -> CompiledFeatures:
        """The pipeline's features over this table."""
        return compile_spec(self.spec, self.schema, artifacts=artifacts)

    def select(self) -> Selection:
        """The row groups that may hold rows to learn from."""
        return screen_rows(self.snapshot, self.where, sample=self.sample).without(self.exclusion)

    @property
    def conditions(self) -> TableConditions:
        """What selects the rows, for tasks."""
        return TableConditions(
            where=self.where_text,
            sample=None if self.sample is None else self.sample.sample,
            schema=self.schema.serialize().to_pybytes(),
        )

    def rows(self, selection: Selection) -> int:
        """Stored rows that a pass reads."""
        return int(self.snapshot.rows_per_row_group[selection.rows != 0].sum())

    def require(self, parts: Collection[str]) -> None:
        """Raise SpecError where files lack a column that a pass reads, and pipeline.yaml does not allow it."""
        if self.spec.source.schema_rules.missing == "error":
            require_columns(self.spec, self.snapshot, self._read_columns(parts), self.where)

    def pass_bytes(self, parts: Collection[str], selection: Selection) -> int:
        """Compressed bytes of the column chunks that a pass reads."""
        read, every = frozenset(stored_columns(self.spec, parts)), np.ones(len(selection.rows), np.bool_)
        deciding = deciding_parts(
            selection.proofs,
            self.where,
            self.sample,
            whole=selection.kept_rows == self.snapshot.rows_per_row_group,
            weigh=self.sample is not None and SAMPLE_WEIGHT in read,
        )
        return int(needed_bytes(self.snapshot, [(read, every), *deciding])[selection.rows != 0].sum())

    def origin(self, rows: int) -> FitOrigin:
        """What a manifest records of the rows learnt from."""
        return FitOrigin(
            table=redact(self.snapshot.uri),
            snapshot=self.snapshot.id,
            where=self.where_text,
            sample=None if self.sample is None else self.sample.sample.to_json(),
            rows=rows,
            pipeline=self.spec.name,
            fit_where=self.spec.fit.where,
            named=source_names(self.spec.source.table, self.spec.source.format),
            exclude=None if self.exclusion is None else self.exclusion.id,
        )

    def no_rows_error(self) -> FeedlineError:
        rows = self.snapshot.rows
        if not rows or (self.where is None and self.sample is None):
            return PlanError(f"nothing to fit on: got 0 of {rows:,} rows of {redact(self.snapshot.uri)}")
        if self.where is None:
            return self.spec.error(("source", "sample"), f"the sample keeps no row: got 0 of {rows:,} rows to fit on")
        return self.spec.error(
            self.where_path, f"the filter keeps no row: got 0 of {rows:,} rows to fit on for {self.where.text!r}"
        )

    def job(self, fit_pass: FitPass, alike: tuple[frozenset[int], ...]) -> FitJob:
        """The job of a pass. alike: see `FitJob`."""
        rows = replace(rows_of(self.spec.source, self.snapshot), where=self.where_text)
        ref = replace(artifact_set_ref(self.spec), readings=fit_pass.readings, request=None, rows=rows)
        if fit_pass.earlier is not None:
            ref = replace(ref, folder=fit_pass.earlier[0], manifest=fit_pass.earlier[1])
        return FitJob(
            features=self.spec.features,
            rows=self.conditions,
            keys=tuple(request.key for request in fit_pass.ready),
            artifacts=ref,
            scratch=fit_pass.scratch,
            environment=fit_pass.environment,
            code=required_functions(self.spec),
            tables=fit_pass.tables,
            alike=alike,
        )

    def _read_columns(self, parts: Collection[str]) -> list[str]:
        conditions = [condition.parts for condition in (self.where, self.sample) if condition is not None]
        generated = self.sample is not None and SAMPLE_WEIGHT not in self.snapshot.schema.names
        return sorted(
            {*stored_columns(self.spec, parts)}.union(*conditions) - ({SAMPLE_WEIGHT} if generated else set())
        )


def fit_tables(spec: PipelineSpec, snapshots: Sequence[Snapshot]) -> list[FitTable]:
    """The tables that a pipeline learns from: one for each source. Rows that several read are learnt from once, see
    `shared_rows`."""
    return [FitTable.of(each, snapshot) for each, snapshot in zip(spec.per_source(), snapshots, strict=True)]


def same_requests(
    tables: Sequence[FitTable], artifacts: ArtifactSet
) -> tuple[dict[str, FitRequest], list[dict[str, frozenset[int]]]]:
    """The fits that all tables need, by key; and for each table, by key, the other tables (indices) of which that fit
    learns the same values. Raises SpecError for a fit whose values differ between tables in type, or which a table
    lacks."""
    first = tables[0]
    of_tables = [{each.key: each for each in table.compile(artifacts).missing_fits} for table in tables]
    requests = dict(of_tables[0])
    for table, own in zip(tables[1:], of_tables[1:], strict=True):
        for key in dict.fromkeys([*requests, *own]):
            one, two = requests.get(key), own.get(key)
            if one is None or two is None or one.learner != two.learner:
                raise _difference(first, one, table, two)
            types = dict(sorted({**two.types, **one.types}.items()))
            requests[key] = replace(one, types=types, behind=tuple(sorted({*one.behind, *two.behind})))
    alike = [
        {
            key: frozenset(
                other
                for other, theirs in enumerate(of_tables)
                if other != index and _values(theirs[key]) == _values(own[key])
            )
            for key in requests
        }
        for index, own in enumerate(of_tables)
    ]
    return requests, alike


def _values(request: FitRequest) -> list[list[FeatureSpec]]:
    """What a fit learns from, whatever the pipeline's own column is where a source redefines it."""
    return [
        [
            replace(feature, known_as=None, inputs=tuple(replace(each, known_as=None) for each in feature.inputs))
            for feature in stream
        ]
        for stream in request.streams
    ]


def _difference(first: FitTable, one: FitRequest | None, table: FitTable, two: FitRequest | None) -> FeedlineError:
    request = one or two
    assert request is not None
    name = request.feature.partition(" (input ")[0]
    path = next(feature.path for feature in table.spec.features if feature.name == name)
    got, expected = (
        "nothing" if each is None else ", ".join(f"{column} {dtype}" for column, dtype in each.types.items())
        for each in (two, one)
    )
    message = f"{request.feature}: {request.op[0]} cannot learn from both sources {first.spec.source_name} and "
    message += f"{table.spec.source_name}: got {got}, expected {expected}"
    return table.spec.error(path, f"{message}. Put a cast before it, or give it the same ops in both")
