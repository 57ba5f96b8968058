"""Encode rows outside a run, one request or file at a time, with the bytes that training gives.

Runs in: the process that serves a model or transforms a file: no Dask, no torch, no table, no labels. It calls the
functions of a block's task (`project`, `CompiledFeatures.apply`, `encode`), so both give the same bytes. Features are
compiled once for every schema of rows. Any number of threads may use a `Serving`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from feedline.artifacts.store import StoredArtifactSet
from feedline.artifacts.type_records import load_types
from feedline.blocks.batch_schema import batch_schema
from feedline.errors import DataError, SpecError
from feedline.expressions.extraction import Frame, project
from feedline.loader.encoding.arrow_table import arrow_table
from feedline.loader.encoding.encode import EncodedRows, encode
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.row_arrays import Encoded
from feedline.planning.binding import (
    artifact_set_key,
    artifact_set_ref,
    artifacts_dir,
    compile_spec,
    named_columns,
    planned_schema,
    require_fitted,
)
from feedline.serving.null_types import AmbiguousType, ambiguous_type_error, resolve_types, without_type
from feedline.serving.request_types import convert, refuse_absent_parts, refuse_other_kinds, same
from feedline.serving.row_forms import Rows, frame_of
from feedline.spec import PipelineSpec
from feedline.spec.features import GROUPS, FeatureSpec
from feedline.transforms.compile.chains import chain_text
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT

SERVED = ("dense", "categorical", "sparse")

_SCHEMAS = 16  # compiled forms that are kept: callers send their rows in a few schemas


@dataclass(frozen=True, slots=True)
class Form:
    """The features compiled for rows of one schema, and the columns that must be converted first."""

    features: CompiledFeatures
    columns: BatchSchema
    casts: tuple[pa.Field, ...]


class Serving:
    """The features of some groups of a pipeline, as a function of rows.

    types: the columns as training saw them, to which those of rows are brought (default: as fits, runs and plans
    recorded them). Columns without a record are taken as they come, and those that hold nulls only in the type that
    the ops fix.
    """

    def __init__(self, spec: PipelineSpec, *, groups: tuple[str, ...] = SERVED, types: pa.Schema | None = None) -> None:
        unknown = set(groups).difference(GROUPS)
        assert not unknown, f"no groups: {unknown}"
        self._spec = spec
        self.features = tuple(feature for feature in spec.features if feature.group in groups)
        self._types = types
        self._artifacts = StoredArtifactSet(
            artifact_set_ref(spec, served=True), newest=True
        )  # one set of fits for all forms
        self._forms: tuple[tuple[pa.Schema | pl.Schema, Form], ...] = ()
        self._schema: BatchSchema | None = None
        self._lock = threading.Lock()

    def encode(self, rows: Rows) -> tuple[EncodedRows, BatchSchema]:
        """The rows' encoded form, and its columns.

        Raises SpecError where a column is missing or of a kind that the features do not take, DataError, with its `row`
        where it is about one, for nulls, for values that cannot be computed, and for columns and values that do not fit
        the types of training.
        """
        given = frame_of(rows, self._trained())
        form = self.form(given.schema)
        frame = project(_converted(given, form.casts) if form.casts else given, form.features.parts)
        return encode(form.features.apply(frame), form.columns), form.columns

    def transform(self, rows: Rows) -> Encoded:
        """The same under the names of a batch."""
        try:
            encoded, columns = self.encode(rows)
        except DataError as error:
            raise error if error.row is None else DataError(f"{error} (row {error.row})") from error
        return Encoded(schema=columns, encoded=encoded)

    def schema(self, table: Callable[[], pa.Schema]) -> BatchSchema:
        """The columns of a batch of all groups, by the types of training or, without a record, the table's.

        Raises SpecError where something has not been learnt yet, or a feature's column is not there.
        """
        if self._schema is None:
            types = self._trained() if len(self._trained()) else table()
            if SAMPLE_WEIGHT not in types.names:  # which is recorded with the others
                types = planned_schema(self._spec, types)
            features = compile_spec(self._spec, types, artifacts=self._artifacts)
            require_fitted(self._spec, features)
            self._schema = batch_schema(features)
        return self._schema

    def alone(self) -> Iterator[Serving]:
        """Each of the features by itself."""
        for feature in self.features:
            part = copy.copy(self)
            part.features, part._forms, part._lock = (feature,), (), threading.Lock()
            yield part

    def form(self, schema: pa.Schema | pl.Schema) -> Form:
        """What rows of that schema go through: compiled when the first of them come."""
        for known, form in self._forms:
            if type(known) is type(schema) and known == schema:
                return form
        with self._lock:
            for known, form in self._forms:  # another thread's, while this one waited
                if type(known) is type(schema) and known == schema:
                    return form
            form = self._compiled(schema if isinstance(schema, pa.Schema) else _arrow_schema(schema))
            self._forms = ((schema, form), *self._forms[: _SCHEMAS - 1])
        return form

    def _trained(self) -> pa.Schema:
        """The columns as training saw them, as far as that is known."""
        if self._types is None:
            used = set().union(*map(named_columns, self.features))
            self._types = load_types(artifacts_dir(self._spec), artifact_set_key(self._spec), used) or pa.schema([])
        return self._types

    def _features(self, schema: pa.Schema, features: Sequence[FeatureSpec]) -> CompiledFeatures:
        return compile_spec(self._spec, schema, features, artifacts=self._artifacts)

    def _typed(self, schema: pa.Schema) -> pa.Schema:
        """The schema with types for columns that hold nulls only, as the ops fix them; the same where there are none.

        Raises SpecError where they do not.
        """
        if not any(without_type(field.type) for field in schema):
            return schema

        def outcome(place: int, tried: pa.Schema, rows: pa.Table) -> str | None:
            try:
                features = self._features(tried, [self.features[place]])
            except SpecError:
                return None
            return None if features.missing_fits else _made(features, rows)

        uses = [frozenset(named_columns(feature)) for feature in self.features]
        found = resolve_types(schema, uses, outcome)
        if isinstance(found, AmbiguousType):
            feature = self.features[found.feature]
            remedy = (
                f"Send it with a type, or have the types of training recorded: `feedline plan {self._spec.file}` where "
                "the table is does, and so do run and fit"
            )
            raise ambiguous_type_error(found, feature.name, chain_text(feature), remedy)
        return found

    def _compiled(self, given: pa.Schema) -> Form:
        """Columns that training knew count as what they were there, and are converted where they come otherwise."""
        types = self._trained()
        wanted = {field.name: field for field in types}
        schema = pa.schema([wanted.get(field.name, field) for field in given])
        try:
            try:
                features = self._features(schema, self.features)
            except SpecError:
                typed = self._typed(schema)
                if typed is schema:
                    raise
                features = self._features(typed, self.features)
                wanted |= {field.name: field for field in typed if schema.field(field.name).type != field.type}
        except SpecError as error:
            missing = [name for name in types.names if name not in given.names]
            if not missing:
                raise
            lacking = f"the rows lack {len(missing)} of the {len(types)} columns of training: {', '.join(missing[:12])}"
            raise SpecError(f"{error}; {lacking}") from error
        require_fitted(self._spec, features, served=True)
        casts = []
        for name in features.columns:
            field = given.field(name)
            if name in wanted and not same(field, wanted[name]):
                refuse_other_kinds(field, wanted[name].type)
                casts.append(wanted[name])
        refuse_absent_parts(given, features.parts)
        return Form(features, batch_schema(features), tuple(casts))


def _made(features: CompiledFeatures, rows: pa.Table) -> str:
    """What becomes of each row, to be compared."""
    made, columns = [], batch_schema(features)
    for row in range(rows.num_rows):
        try:
            frame = project(rows.slice(row, 1), features.parts)
            made.append(repr(arrow_table(encode(features.apply(frame), columns), columns).to_pylist()))
        except DataError:
            made.append("an error")
    return " ".join(made)


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema


def _converted(rows: pa.Table | pa.RecordBatch | pl.DataFrame, casts: tuple[pa.Field, ...]) -> Frame:
    if isinstance(rows, pl.DataFrame):
        return rows.with_columns(
            pl.Series(field.name, convert(rows.get_column(field.name).to_arrow(), field.type, field.name))
            for field in casts
        )
    fields, columns = list(rows.schema), list(rows.columns)
    for field in casts:
        place = rows.schema.get_field_index(field.name)
        fields[place], columns[place] = field, convert(columns[place], field.type, field.name)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
