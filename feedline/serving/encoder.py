"""Encode rows outside a run, one request or file at a time, with the same bytes as training.

Runs in: the process that serves a model or transforms a file: no Dask, no torch, no table, no labels. It calls the
functions of a block's task (`project`, the pass of `CompiledFeatures`, `encode`), so both produce the same bytes.
Features are compiled once per schema of rows (see `form`). A `Serving` is safe to use from several threads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from feedline.artifacts.store import StoredArtifactSet
from feedline.artifacts.type_records import load_types
from feedline.blocks.jobs import batch_schema
from feedline.config import PipelineSpec
from feedline.config.features import GROUPS, FeatureSpec
from feedline.config.histories import HistoryRead
from feedline.config.yaml_document import unknown_message
from feedline.dataclass import dataclass
from feedline.errors import DataError, SpecError
from feedline.expressions.extraction import project
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.row_arrays import Encoded
from feedline.planning.histories import event_columns, stored_columns
from feedline.planning.table_features import (
    artifact_set_key,
    artifact_set_ref,
    artifacts_dir,
    compile_spec,
    planned_schema,
    require_fitted,
    served_schema,
)
from feedline.serving.request_types import (
    convert,
    is_pandas,
    needs_no_conversion,
    refuse_absent_parts,
    refuse_other_kinds,
    series_array,
    table_of,
)
from feedline.serving.stacks import STACKED_ROWS, Stack, stack
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.compile.dedup_groups import named_columns
from feedline.transforms.values.arrays import Column
from feedline.warehouse.histories.join import HistoryJoin
from feedline.warehouse.histories.memory_events import MemoryEvents
from feedline.warehouse.parquet.schemas import relabel, storage_rows, storage_schema
from feedline.warehouse.reading.columns import expand_series
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT

# --------------------------------------------------------------------------------------------------------------------
# Convert a caller's rows to a table: Arrow, Polars, pandas, columns by name, a list of dicts or one dict. A dict is
# one row if any of its values is a single value, such as a number, a string or None, else columns by name. Values
# without a type of their own take that of training.

Rows: TypeAlias = (
    pa.Table | pa.RecordBatch | pl.DataFrame | pl.LazyFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any
)
Frame: TypeAlias = pa.Table | pa.RecordBatch | pl.DataFrame

NO_EVENTS: Mapping[str, Rows] = {}
_SINGLE = (type(None), str, bytes, bool, int, float, Decimal, date, datetime, time, timedelta, np.generic, Mapping)
_EXPECTED = "Arrow, Polars or pandas, columns by name, a list of dicts, or one dict of one row's values"


def frame_of(rows: Rows, types: pa.Schema) -> Frame:
    """Convert rows to a table; `types`: the recorded columns of training.

    Raises DataError for what does not hold rows, for columns of different lengths, for rows of different columns, and
    for values that do not fit the type of their column.
    """
    if isinstance(rows, pl.DataFrame):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return relabel(rows, storage_schema(rows.schema))
    if isinstance(rows, pa.Table):
        return storage_rows(rows)
    if isinstance(rows, pl.LazyFrame):
        return rows.collect()
    if isinstance(rows, Mapping):
        return _of_row(rows, types) if _is_row(rows) else storage_rows(table_of(rows, types))
    if is_pandas(rows, "DataFrame"):
        return storage_rows(_of_pandas(rows, types))
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _of_dicts(rows, types)
    if hasattr(rows, "__arrow_c_stream__"):
        return storage_rows(pa.table(rows))
    raise DataError(f"transform takes rows: got {type(rows).__name__}, expected {_EXPECTED}")


def _is_row(values: Mapping[str, Any]) -> bool:
    return any(isinstance(value, _SINGLE) for value in values.values())


def _of_row(row: Mapping[str, Any], types: pa.Schema) -> pa.Table:
    for name, value in row.items():
        kind = _training_type(types, name)
        if kind is not None and not isinstance(value, _SINGLE) and not _is_list(kind):
            single = next(name for name, value in row.items() if isinstance(value, _SINGLE))
            raise DataError(
                f"a dict with a single value ({single!r}) is one row: got {type(value).__name__} for column {name!r}, "
                f"expected {kind}. Give each column a list for several rows, or each column one value"
            )
    return table_of({name: [_plain(value)] for name, value in row.items()}, types)


def _of_dicts(rows: Sequence[Any], types: pa.Schema) -> pa.Table:
    if not rows:
        if not len(types):
            raise DataError("an empty list has no columns: got no row and no recorded types of training. Fit first")
        return types.empty_table()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"a list holds rows as dicts: got {type(row).__name__} as row {index}, expected a dict")
        if row.keys() != rows[0].keys():
            name = min(row.keys() ^ rows[0].keys(), key=str)
            without = index if name not in row else 0
            raise DataError(
                f"rows have different columns: got no {name!r} in row {without}, expected it as in other rows. "
                "Write None where a value is missing"
            )
    return table_of({name: [_plain(row[name]) for row in rows] for name in rows[0]}, types)


def _of_pandas(rows: Any, types: pa.Schema) -> pa.Table:
    names = list(rows.columns)
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            fault = "twice" if isinstance(name, str) else f"of type {type(name).__name__}"
            raise DataError(f"a pandas frame has a column {fault}: got {name!r}, expected distinct strings as names")
    return pa.table({name: series_array(name, rows[name], _training_type(types, name)) for name in names})


def _plain(value: Any) -> Any:
    """Convert a value of a row to one that Arrow takes inside a list."""
    if isinstance(value, pl.Series | pa.Array | pa.ChunkedArray):
        return value.to_pylist() if isinstance(value, pa.Array | pa.ChunkedArray) else value.to_list()
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return value.tolist()
    return value


def _training_type(types: pa.Schema, name: str) -> pa.DataType | None:
    index = types.get_field_index(name)
    return types.field(index).type if index >= 0 else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind) or pat.is_map(kind))


# --------------------------------------------------------------------------------------------------------------------
# The features compiled for rows of one schema, and their computation. What does not depend on the rows is in the
# form: the types that columns are converted to, the pass over all features, and the stacks that few rows are computed
# by.


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
        columns: dict[str, Column] = {}
        for rows_stack in self.stacks:
            columns |= rows_stack.compute(arrays, count)
        if self.rest is not None:
            columns |= self._compute(rows, self.rest)
        return columns

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


# --------------------------------------------------------------------------------------------------------------------

SERVED_GROUPS = ("dense", "categorical", "sparse")

_MAX_FORMS = 16  # compiled forms kept: callers use few schemas


class Serving:
    """The features of some groups of a pipeline, as a function of rows.

    types: the column types of training, to which rows are converted (default: as recorded by fits, runs and plans).
    Columns without a record keep their type, and have to have one.
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

    def encode(self, rows: Rows, histories: Mapping[str, Rows] = NO_EVENTS) -> tuple[EncodedRows, BatchSchema]:
        """Encode rows; returns them with their columns. histories: the events of each, of which rows get lists.

        Raises SpecError if a column is missing or of a kind that the features do not take; DataError, with its `row` if
        known, for nulls, values that cannot be computed, and columns and values that do not fit the types of training.
        """
        frame = self._with_lists(frame_of(rows, self._training_types()), histories)
        form = self.form(frame.schema)
        return encode(form.compute(frame), form.columns), form.columns

    def transform(self, rows: Rows, histories: Mapping[str, Rows] = NO_EVENTS) -> Encoded:
        """Encode rows and expose them under the names of a batch; errors name the row."""
        try:
            encoded, columns = self.encode(rows, histories)
        except DataError as error:
            raise error if error.row is None else DataError(f"{error} (row {error.row})") from error
        return Encoded(schema=columns, encoded=encoded)

    def _with_lists(self, frame: Frame, histories: Mapping[str, Rows]) -> Frame:
        """The rows, with lists of the events that they see, unless they have them. Raises SpecError where events are
        missing, or do not fit."""
        for name in histories:
            if name not in self._spec.histories:
                raise SpecError(unknown_message("history", name, self._spec.histories))
        reads: dict[str, list[HistoryRead]] = {}
        names = frame.columns if isinstance(frame, pl.DataFrame) else frame.schema.names
        for feature in self.features:
            if feature.history is not None and feature.history.name not in names:
                reads.setdefault(feature.history.history, []).append(feature.history)
        if not reads:
            return frame
        rows = frame if isinstance(frame, pl.DataFrame) else project(frame, names)
        for name, own in reads.items():
            if name not in histories:
                raise SpecError(
                    f"features read history {name!r}, which was not passed: got the histories "
                    f"{', '.join(histories) or 'none'}. Pass its events, `histories={{{name!r}: events}}`"
                )
            if isinstance(histories[name], list | dict) and not histories[name]:  # no events, and so no columns
                rows = rows.with_columns(self._empty_lists(own, rows.height))
                continue
            events = frame_of(histories[name], pa.schema([]))
            table = events.to_arrow() if isinstance(events, pl.DataFrame) else pa.table(events)
            columns = event_columns(name, self._spec.histories[name])
            join = HistoryJoin(columns, own, rows.to_arrow().schema, table.schema)
            lists, values = join.join(MemoryEvents(table, columns), rows)
            rows = rows.with_columns([expand_series(each, values[each.name]) for each in lists])
        return rows

    def _empty_lists(self, reads: Sequence[HistoryRead], height: int) -> list[pl.Series]:
        """A column of empty lists for each read, of the type that it had in training."""
        types = self._training_types()
        kinds = [types.field(read.name).type if read.name in types.names else pa.list_(pa.null()) for read in reads]
        return [pl.Series(read.name, pa.array([[]] * height, kind)) for read, kind in zip(reads, kinds, strict=True)]

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
            used.update(stored_columns(self._spec, used))
            self._types = load_types(artifacts_dir(self._spec), artifact_set_key(self._spec), used) or pa.schema([])
        return self._types

    def _features(self, schema: pa.Schema, features: Sequence[FeatureSpec]) -> CompiledFeatures:
        return compile_spec(self._spec, schema, features, artifacts=self._artifacts)

    def _refuse_unknown_types(self, schema: pa.Schema, recorded: Collection[str]) -> None:
        """Raise DataError for a column that features use, of which neither training nor the rows say the type."""
        used = set().union(*map(named_columns, self.features))
        for field in schema:
            if field.name in used and field.name not in recorded and _is_unknown(field.type):
                raise DataError(
                    f"column {field.name!r} holds no value, and its type is not known: got {field.type}, and no record "
                    "of its type in training. Pass an Arrow table or a typed array, or record the types of training: "
                    f"run `{self._spec.command('plan')}` where the table is (run and fit record them, too)"
                )

    def _compile_form(self, row_schema: pa.Schema) -> Form:
        """Compile for rows of a schema; columns that training recorded are compiled, and converted, to its types."""
        types = self._training_types()
        fields = {field.name: field for field in types}
        schema = pa.schema([fields.get(field.name, field) for field in row_schema])
        self._refuse_unknown_types(schema, fields)
        try:
            features = self._features(schema, self.features)
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


def _is_unknown(kind: pa.DataType) -> bool:
    """Whether a type is null, or a list of nulls."""
    return pat.is_null(kind) or (_is_list(kind) and not pat.is_map(kind) and pat.is_null(kind.value_type))


def _arrow_schema(schema: pl.Schema) -> pa.Schema:
    return pl.DataFrame(schema=schema).to_arrow().schema
