"""Compile features to one pass over a frame, with the columns it reads.

Runs in: every process. Expressions are never pickled: a worker gets the features and the schema and compiles them
itself. A feature is a source (a column or an expression), a chain of ops and the type of its group. A value that
several features derive from becomes a column of its own (see `shared`). Then one `select` of a lazy frame computes all
features, except for the kernels at their ends (see `fused_pass`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.config.features import AnyGroup, FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.expressions.extraction import project
from feedline.transforms.compile.chains import Compiler, chain_text
from feedline.transforms.compile.fit_requests import Levels, Provenance, shared_keys
from feedline.transforms.compile.step_passes import FusedPass, select_in_stages
from feedline.transforms.learning.learner import NO_ARTIFACTS, ArtifactSet, FitRequest
from feedline.transforms.ops import bind
from feedline.transforms.values.arrays import Column, Columns, Values, as_arrays, as_series
from feedline.transforms.values.kinds import Lookup, Value
from feedline.transforms.values.lookup_counts import (
    RowLookups,
    count_lookups,
    lookups_of_rows,
    sum_of_lookups,
)

FINGERPRINT_VERSION = 1
_ALL = slice(None)
_MARK = pl.Boolean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished feature: `dtype` is its group's, `kind` that of its chain's last value, such as "float list".

    reads: the columns, or parts of columns, that it derives from. row_columns: those that its ops need of each row
    besides, for the fold of a row that a fit has seen. lookups: those of its chain, in order. num_embeddings: n if its
    ids are in [0, n); None if that is unknown, or its fit is missing.
    """

    name: str
    group: AnyGroup
    dtype: pl.DataType
    kind: str
    reads: tuple[str, ...]
    row_columns: tuple[str, ...]
    lookups: tuple[Lookup, ...]
    num_embeddings: int | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompiledFeatures:
    """All features as one pass, as `compile_features` builds it; unpickling compiles them again.

    columns: the source columns needed, in the schema's order. parts: the same, reduced to the parts in use (see
    `column_parts`): what a frame must hold, in `types`. marks: further Boolean columns that a frame must hold: whether
    a fit has seen the row. outputs: one per feature, in the features' order. fingerprint: hex digest of everything
    that decides the values (features, op versions, artifacts and the rows that they have seen, input types).
    missing_fits: fits to run before `apply` gives meaningful values.
    """

    features: tuple[FeatureSpec, ...]
    schema: pa.Schema
    columns: tuple[str, ...]
    parts: tuple[str, ...]
    types: tuple[pl.DataType, ...]
    marks: tuple[str, ...]
    outputs: tuple[Output, ...]
    fingerprint: str
    missing_fits: tuple[FitRequest, ...]
    artifacts: ArtifactSet
    _provenances: tuple[Provenance, ...]
    _digests: Mapping[str, str]
    _seen_rows: Mapping[str, bool | str]
    _stages: Levels
    _values: tuple[Value, ...]
    _elements: bool = False
    _separable: bool = False  # no feature shares a held column with another, uses an artifact or a part of a column

    @cached_property
    def _expressions(self) -> tuple[pl.Expr, ...]:
        pairs = zip(self._values, self.features, strict=True)
        return tuple(value.expr.alias(feature.name) for value, feature in pairs)

    @cached_property
    def _lookups(self) -> dict[str, Lookup]:
        return {lookup.name: lookup for output in self.outputs for lookup in output.lookups}

    @cached_property
    def _pass(self) -> FusedPass:
        return FusedPass([feature.name for feature in self.features], self._values, self.parts)

    def apply_counting(
        self,
        frame: pl.DataFrame,
        repeats: NDArray[np.int64] | None = None,
        of_rows: dict[str, list[RowLookups]] | None = None,
    ) -> tuple[Columns, dict[str, list[tuple[int, int]]]]:
        """Like `apply`, but perhaps as columns without a frame, some of them arrays. And for each feature with lookups,
        per lookup of its chain: the values looked up, and how many were unknown.

        frame: as tables are read; the types of its columns are not checked. repeats: int64 [rows], how often each row
        counts (None: once). of_rows: takes the same of each row, once.
        """
        finished, ids = self._run(self._with_parts(frame), list(self._lookups))
        if not self._lookups:
            return finished, {}
        lookups = self._lookups
        if of_rows is None:
            counts = {name: count_lookups(ids[name], lookup.unknown, repeats) for name, lookup in lookups.items()}
        else:
            found = {name: lookups_of_rows(ids[name], lookup.unknown) for name, lookup in lookups.items()}
            of_rows |= {each.name: [found[one.name] for one in each.lookups] for each in self.outputs if each.lookups}
            counts = {name: sum_of_lookups(each, repeats) for name, each in found.items()}
        return finished, {
            output.name: [counts[lookup.name] for lookup in output.lookups] for output in self.outputs if output.lookups
        }

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """One column per feature, of that name, row by row. `frame` holds `parts` or `columns`, in the schema's types.

        Raises DataError where a column is missing or of another type, or a value cannot be computed (a strict cast);
        the message names the column or the feature, and the error carries the row.
        """
        return pl.DataFrame([as_series(column).alias(name) for name, column in self.finished(frame).items()])

    def finished(self, frame: pl.DataFrame) -> Mapping[str, Column]:
        """Like `apply`, without a frame: some columns are arrays."""
        features, _ = self._apply(frame)
        if isinstance(features, pl.DataFrame):
            return dict(zip(features.columns, features.get_columns(), strict=True))
        return features

    def fits_of(self, index: int) -> frozenset[str]:
        """The keys of the fits that a feature (its index) uses, or waits for."""
        provenance = self._provenances[index]
        return provenance.depends | {name for name in provenance.artifacts if not name.startswith("[")}

    def numbers(self, values: pa.Array) -> list[Values] | None:
        """The features, numbers all of them, of values of the only column that they read; None if any is null.

        values: of the column's type. Raises as `apply`.
        """
        if self._pass.only_source:
            return as_arrays(self._pass.run_one(values))
        return as_arrays(self._apply(pl.Series(self.parts[0], values).to_frame())[0])

    def _apply(self, frame: pl.DataFrame, held: Sequence[str] = ()) -> tuple[Columns, pl.DataFrame]:
        """The features, and columns that are held for them. Raises as `apply`."""
        frame = self._with_parts(frame)
        schema = dict(zip(frame.columns, frame.dtypes, strict=True))
        for name, dtype in (*zip(self.parts, self.types, strict=True), *((mark, _MARK) for mark in self.marks)):
            if (found := schema.get(name)) != dtype:
                got = "none" if found is None else str(found)
                raise DataError(
                    f"column {name!r} has another type than the features were compiled for: got {got}, expected {dtype}"
                )
        return self._run(frame, held)

    def _with_parts(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A frame of `parts` and `marks`, from one that may hold `columns` instead."""
        if set(self.parts).issubset(frame.columns):
            return frame
        marks = [frame.get_column(name) for name in self.marks if name in frame.columns]
        return project(frame, self.parts).with_columns(marks)

    def _run(self, frame: pl.DataFrame, held: Sequence[str] = ()) -> tuple[Columns, pl.DataFrame]:
        frame = frame.rechunk()  # else Polars calls the kernels once for every chunk
        try:
            select = partial(select_in_stages, frame, self._stages)
            return self._pass.run(frame, lambda expressions: select(expressions).collect(engine="in-memory"), held)
        except (pl.exceptions.PolarsError, DataError) as error:
            raise self._blame(frame, error) from error

    def lazy(self, frame: pl.DataFrame, selection: slice = _ALL) -> pl.LazyFrame:
        """The pass over an unchunked frame of `parts`, for all features or some, as a lazy frame without kernels."""
        return select_in_stages(frame, self._stages, self._expressions[selection])

    def alone(self, index: int) -> tuple[str, tuple[str, ...]]:
        """The fingerprint and the marks of one feature, without compiling it alone as `compile_some` does."""
        own = self._provenances[index]
        types = {name: str(self.schema.field(name).type) for name in own.row_columns} | dict(own.types)
        digests = {name: self._digests[name] for name in own.artifacts}
        seen = {name: self._seen_rows[name] for name in own.artifacts if name in self._seen_rows}
        marks = sorted({mark for mark in seen.values() if isinstance(mark, str)})
        return _fingerprint(self.features[index : index + 1], types, digests, seen), tuple(marks)

    def __repr__(self) -> str:
        return f"CompiledFeatures({len(self.outputs)} features of {len(self.columns)} columns, {self.fingerprint[:12]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_features, (self.features, self.schema, self.artifacts, self._elements)

    def _blame(self, frame: pl.DataFrame, error: Exception) -> DataError:
        for index, feature in enumerate(self.features):
            if (own := self.failure(frame, index)) is not None:
                cause = str(own).partition("\n")[0].replace(" in column ''", "")  # elements have no name
                blamed = DataError(f"feature {_name_of(feature)} cannot be computed ({chain_text(feature)}): {cause}")
                row = self._first_row(frame, index)
                return blamed if row is None else blamed.at(row)
        return DataError(f"the features cannot be computed: {str(error).partition(chr(10))[0]}")

    def failure(self, frame: pl.DataFrame, index: int) -> Exception | None:
        """The error that one feature raises, if any."""
        try:
            self.lazy(frame, slice(index, index + 1)).collect(engine="in-memory")
        except (pl.exceptions.PolarsError, DataError) as error:
            return error
        return None

    def _first_row(self, frame: pl.DataFrame, index: int) -> int | None:
        """The first failing row of a frame that a feature fails on; None if the failure does not depend on the rows.

        Every value depends on its own row only, so a prefix of the rows fails as soon as it contains a failing row: 15
        passes of one feature find it among 32,768.
        """
        good, bad = -1, frame.height
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.failure(frame.head(middle), index) is None:
                good = middle
            else:
                bad = middle
        return bad - 1 if bad else None


def compile_features(
    features: Sequence[FeatureSpec],
    schema: pa.Schema,
    artifacts: ArtifactSet = NO_ARTIFACTS,
    elements: bool = False,
) -> CompiledFeatures:
    """The features as one pass over frames whose columns have the types that Polars gives to `schema`.

    elements: of columns of lists, frames have elements, a row each (see `coded_features`).

    Raises OpError (a SpecError with the path in pipeline.yaml) for an unknown column or op, a wrong parameter, an op
    that does not take the value before it, or a kind that the feature's group does not take. A fit that is missing or
    does not match is no error: see `missing_fits`.
    """
    compiler = Compiler(schema, artifacts, shared_keys(features), elements=elements)
    values = [compiler.feature(feature) for feature in features]
    columns = tuple(sorted(compiler.columns, key=schema.get_field_index))
    parts = [*(name for name in columns if name in compiler.types), *sorted(set(compiler.types).difference(columns))]
    input_types = {name: str(compiler.fields[name].type) for name in parts}
    marks = tuple(sorted({mark for mark in compiler.seen_rows.values() if isinstance(mark, str)}))
    outputs = tuple(
        Output(
            name=feature.name,
            group=feature.group,
            dtype=finished.dtype,
            kind=kind,
            reads=tuple(compiler.provenance(key).types),
            row_columns=tuple(sorted(compiler.provenance(key).row_columns)),
            lookups=compiler.lookups[key],
            num_embeddings=compiler.ids[key],
        )
        for feature, (finished, kind, key) in zip(features, values, strict=True)
    )
    return CompiledFeatures(
        features=tuple(features),
        schema=schema,
        columns=columns,
        parts=tuple(parts),
        types=tuple(compiler.types[name] for name in parts),
        marks=marks,
        outputs=outputs,
        fingerprint=_fingerprint(features, input_types, compiler.requests.digests, compiler.seen_rows),
        missing_fits=compiler.requests.missing,
        artifacts=artifacts,
        _provenances=tuple(compiler.provenance(key) for *_, key in values),
        _digests=compiler.requests.digests,
        _seen_rows=compiler.seen_rows,
        _stages=compiler.stages.levels,
        _values=tuple(finished for finished, *_ in values),
        _elements=elements,
        _separable=compiler.columns == compiler.types.keys()
        and not (compiler.stages.levels or compiler.requests.digests or compiler.requests.missing),
    )


def compile_some(whole: CompiledFeatures, names: Collection[str]) -> CompiledFeatures:
    """What `compile_features` makes of those of the features that have these names; their expressions are those of
    `whole`, unless features depend on each other or on artifacts.
    """
    chosen = [index for index, feature in enumerate(whole.features) if feature.name in names]
    features = tuple(whole.features[index] for index in chosen)
    if not whole._separable:
        return compile_features(features, whole.schema, whole.artifacts, whole._elements)
    outputs = tuple(whole.outputs[index] for index in chosen)
    read = {name for output in outputs for name in output.reads}
    types = {name: dtype for name, dtype in zip(whole.parts, whole.types, strict=True) if name in read}
    input_types = {name: str(whole.schema.field(name).type) for name in types}
    return replace(
        whole,
        features=features,
        columns=tuple(types),
        parts=tuple(types),
        types=tuple(types.values()),
        outputs=outputs,
        fingerprint=_fingerprint(features, input_types, {}, {}),
        _provenances=tuple(whole._provenances[index] for index in chosen),
        _values=tuple(whole._values[index] for index in chosen),
    )


def _name_of(feature: FeatureSpec) -> str:
    own = feature.column in (None, feature.name)
    return repr(feature.name) if own else f"{feature.name!r} of column {feature.column!r}"


def _inputs_identity(feature: FeatureSpec) -> list[Any]:
    """The op over several columns and its inputs; empty for other features, which keeps their fingerprints."""
    if feature.op is None:
        return []
    inputs = [[source.column, source.expr, [bind(call).identity for call in source.ops]] for source in feature.inputs]
    return [bind(feature.op).identity, inputs]


def _fingerprint(
    features: Sequence[FeatureSpec],
    types: Mapping[str, str],
    artifact_digests: Mapping[str, str],
    seen_rows: Mapping[str, bool | str],
) -> str:
    """`seen_rows`: for each fit that leaves rows out, the rows it has seen: mostly all of them, or none."""
    content: dict[str, Any] = {
        "version": FINGERPRINT_VERSION,
        "features": [
            [
                feature.name,
                feature.group,
                feature.column,
                feature.expr,
                [bind(call).identity for call in feature.ops],
                *_inputs_identity(feature),
                *([{"on_nonfinite": "zero"}] if feature.on_nonfinite == "zero" else []),
                *([{"dedup": feature.dedup}] if feature.dedup is not None else []),
            ]
            for feature in features
        ],
        "types": types,
    }
    if artifact_digests:
        content |= {"artifacts": artifact_digests, "out_of_fold": any(seen_rows.values())}
        if any(seen_rows.values()) and not all(rows is True for rows in seen_rows.values()):
            content["seen"] = seen_rows
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
