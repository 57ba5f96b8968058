"""Encode rows outside a run, one request or file at a time, with the same bytes as training.

Runs in: the process that serves a model or transforms a file: no Dask, no torch, no table, no labels. It calls the
functions of a block's task (`project`, the pass of `CompiledFeatures`, `encode`), so both produce the same bytes.
Features are compiled once per schema of rows (see `form`). A `Serving` is safe to use from several threads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from feedline.artifacts.store import StoredArtifactSet
from feedline.artifacts.type_records import load_types
from feedline.blocks.batch_schema import batch_schema
from feedline.errors import DataError, SpecError
from feedline.expressions.extraction import project
from feedline.loader.encoding.arrow_table import arrow_table
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.row_arrays import Encoded
from feedline.planning.binding.fitted_artifacts import artifact_set_key, artifact_set_ref, artifacts_dir, require_fitted
from feedline.planning.binding.table_features import compile_spec, planned_schema, served_schema
from feedline.serving.form import Form
from feedline.serving.null_types import AmbiguousType, ambiguous_type_error, resolve_types, without_type
from feedline.serving.request_types import needs_no_conversion, refuse_absent_parts, refuse_other_kinds
from feedline.serving.row_forms import Rows, frame_of
from feedline.serving.stacks import stack
from feedline.spec import PipelineSpec
from feedline.spec.features import GROUPS, FeatureSpec
from feedline.transforms.compile.chains import chain_text
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.compile.dedup_groups import named_columns
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT

SERVED_GROUPS = ("dense", "categorical", "sparse")

_MAX_FORMS = 16  # compiled forms kept: callers use few schemas


class Serving:
    """The features of some groups of a pipeline, as a function of rows.

    types: the column types of training, to which rows are converted (default: as recorded by fits, runs and plans).
    Columns without a record keep their type, or get the type that the ops require if they hold only nulls.
    """

    def __init__(
        self, spec: PipelineSpec, *, groups: tuple[str, ...] = SERVED_GROUPS, types: pa.Schema | None = None
    ) -> None:
        unknown = set(groups).difference(GROUPS)
        assert not unknown, f"no groups: {unknown}"
        self._spec = spec
        # Rows of requests are plain: a deduplicated group changes no value, and so no fingerprint and no golden vector.
        self.features = tuple(replace(feature, dedup=None) for feature in spec.features if feature.group in groups)
        self._types = types
        self._artifacts = StoredArtifactSet(
            artifact_set_ref(spec, served=True), newest=True
        )  # one set of fits for all forms
        self._forms: tuple[tuple[pa.Schema | pl.Schema, Form], ...] = ()
        self._schema: BatchSchema | None = None
        self._lock = threading.Lock()

    def encode(self, rows: Rows) -> tuple[EncodedRows, BatchSchema]:
        """Encode rows; returns them with their columns.

        Raises SpecError if a column is missing or of a kind that the features do not take; DataError, with its `row` if
        known, for nulls, values that cannot be computed, and columns and values that do not fit the types of training.
        """
        frame = frame_of(rows, self._training_types())
        form = self.form(frame.schema)
        return encode(form.compute(frame), form.columns), form.columns

    def transform(self, rows: Rows) -> Encoded:
        """Encode rows and expose them under the names of a batch; errors name the row."""
        try:
            encoded, columns = self.encode(rows)
        except DataError as error:
            raise error if error.row is None else DataError(f"{error} (row {error.row})") from error
        return Encoded(schema=columns, encoded=encoded)

    def schema(self, tables: Callable[[], Sequence[pa.Schema]]) -> BatchSchema:
        """Columns of a batch of all groups, from the types of training or, without a record, from the tables'.

        Raises SpecError if a fit or a feature's column is missing.
        """
        if self._schema is None:
            types = self._training_types()  # which include the columns that a sample generates
            if not len(types):
                types = served_schema(self._spec, tables())
            elif SAMPLE_WEIGHT not in types.names and not self._spec.is_mixed:
                types = planned_schema(self._spec, types)
            features = compile_spec(self._spec, types, artifacts=self._artifacts)
            require_fitted(self._spec, features)
            self._schema = batch_schema(features)
        return self._schema

    def per_feature(self) -> Iterator[Serving]:
        """Yield a `Serving` of each feature alone."""
        for feature in self.features:
            part = copy.copy(self)
            part.features, part._forms, part._lock = (feature,), (), threading.Lock()
            yield part

    def form(self, schema: pa.Schema | pl.Schema) -> Form:
        """Return the compiled form for rows of a schema; it is compiled on first use."""
        for other, form in self._forms:
            if type(other) is type(schema) and other == schema:
                return form
        with self._lock:
            for other, form in self._forms:  # another thread may have compiled it meanwhile
                if type(other) is type(schema) and other == schema:
                    return form
            form = self._compile_form(schema if isinstance(schema, pa.Schema) else _arrow_schema(schema))
            self._forms = ((schema, form), *self._forms[: _MAX_FORMS - 1])
        return form

    def _training_types(self) -> pa.Schema:
        """The recorded columns of training; empty without a record."""
        if self._types is None:
            used = set().union(*map(named_columns, self.features))
            self._types = load_types(artifacts_dir(self._spec), artifact_set_key(self._spec), used) or pa.schema([])
        return self._types

    def _features(self, schema: pa.Schema, features: Sequence[FeatureSpec]) -> CompiledFeatures:
        return compile_spec(self._spec, schema, features, artifacts=self._artifacts)

    def _resolve_null_types(self, schema: pa.Schema) -> pa.Schema:
        """Give columns that hold only nulls the type that the ops require; returns `schema` itself if there are none.

        Raises SpecError if the ops do not determine it.
        """
        if not any(without_type(field.type) for field in schema):
            return schema

        def outcome(index: int, candidate: pa.Schema, rows: pa.Table) -> str | None:
            try:
                features = self._features(candidate, [self.features[index]])
            except SpecError:
                return None
            return None if features.missing_fits else _describe_rows(features, rows)

        uses = [frozenset(named_columns(feature)) for feature in self.features]
        resolved = resolve_types(schema, uses, outcome)
        if isinstance(resolved, AmbiguousType):
            feature = self.features[resolved.feature]
            remedy = (
                f"Send it with a type, or record those of training: run `{self._spec.command('plan')}` where the "
                "table is (run and fit record them, too)"
            )
            raise ambiguous_type_error(resolved, feature.name, chain_text(feature), remedy)
        return resolved

    def _compile_form(self, row_schema: pa.Schema) -> Form:
        """Compile for rows of a schema; columns that training recorded are compiled, and converted, to its types."""
        types = self._training_types()
        fields = {field.name: field for field in types}
        schema = pa.schema([fields.get(field.name, field) for field in row_schema])
        try:
            try:
                features = self._features(schema, self.features)
            except SpecError:
                resolved = self._resolve_null_types(schema)
                if resolved is schema:
                    raise
                features = self._features(resolved, self.features)
                fields |= {field.name: field for field in resolved if schema.field(field.name).type != field.type}
        except SpecError as error:
            missing = [name for name in types.names if name not in row_schema.names]
            if not missing:
                raise
            reason = f"the rows lack {len(missing)} of the {len(types)} columns of training: {', '.join(missing[:12])}"
            raise SpecError(f"{error}; {reason}") from error
        require_fitted(self._spec, features, served=True)
        casts = []
        for name in features.columns:
            field = row_schema.field(name)
            if name in fields and not needs_no_conversion(field, fields[name]):
                refuse_other_kinds(field, fields[name].type)
                casts.append(fields[name])
        refuse_absent_parts(row_schema, features.parts)
        stacks, others = stack(self.features, row_schema, casts)
        return Form(
            features=features,
            columns=batch_schema(features).expanded,
            casts=tuple(casts),
            stacks=stacks,
            rest=self._features(features.schema, others) if others else None,
        )


def _describe_rows(features: CompiledFeatures, rows: pa.Table) -> str:
    """The encoded rows as one string, for comparison."""
    encoded, columns = [], batch_schema(features).expanded
    for row in range(rows.num_rows):
        try:
            frame = project(rows.slice(row, 1), features.parts)
            encoded.append(repr(arrow_table(encode(features.apply(frame), columns), columns).to_pylist()))
        except DataError:
            encoded.append("an error")
    return " ".join(encoded)


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema
