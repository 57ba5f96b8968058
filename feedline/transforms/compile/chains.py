"""Build a feature's value from its source and its ops: an expression, its type, and facts about it.

Runs in: every process that compiles features. Pure. Each prefix of a chain is built once, under the key that identifies
it, and shared by all features that begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from feedline.config.features import AnyGroup, FeatureInput, FeatureSpec, Group, OpCall
from feedline.errors import ExpressionError, SpecError
from feedline.expressions.column_parts import has_column, part_field, part_of
from feedline.expressions.types import (
    BINARY,
    BOOLEAN,
    DECIMAL,
    FLOAT,
    INTEGER,
    NUMBERS,
    STRING,
    column_type,
    inner_type,
    is_too_wide,
    language_type,
    nearest,
    unknown_type_hint,
)
from feedline.transforms.compile.fit_requests import (
    FitRequests,
    Key,
    OpPosition,
    Provenance,
    Stages,
    fit_key,
    source_key,
)
from feedline.transforms.learning.learner import SEEN, ArtifactSet, Learning
from feedline.transforms.ops import bind
from feedline.transforms.ops.generated import row_expression
from feedline.transforms.registry.op import NO_CONTEXT, BoundOp, OpContext, OpError
from feedline.transforms.registry.user_code import op_label
from feedline.transforms.values.arrays import map_series
from feedline.transforms.values.kinds import TEMPORAL, WEIGHTS, Kind, Lookup, Value
from feedline.transforms.values.ragged import lists_of_one

# --------------------------------------------------------------------------------------------------------------------
# Give values the type of their group, and refuse kinds that the group does not take. The dtype is float32 (or vectors
# of float32) for dense and label, int64 for categorical, lists of int64 or float32 for sparse; extra keeps its types.
# A scalar under sparse is a list of at most one value. A weighted list becomes one struct of two lists, `VALUES` and
# `WEIGHTS_OF_VALUES`.

VALUES, WEIGHTS_OF_VALUES = "values", "weights"


def finish_element(value: Value, group: AnyGroup) -> Value:
    """The value of a list's element, of a feature that `finish` takes, in the type that its lists have."""
    if group != "sparse":
        return finish(value, group)
    return value.plain().convert(pl.Int64() if value.kind.element == INTEGER else pl.Float32())


def finish(value: Value, group: AnyGroup) -> Value:
    """The value in its group's type. Raises SpecError, with the remedy, for a kind that the group does not take."""
    if group == "observed":  # as an op over one column takes it
        return value.plain()
    kind = value.kind
    if group == "extra":
        return value
    dtype: pl.DataType
    if group == "categorical":
        _require(kind, group, "one integer id per row", elements=(INTEGER, BOOLEAN), listed=False)
        dtype = pl.Int64()
    elif group == "sparse":
        scalar = not kind.listed and kind.width is None
        expected = "lists of integers or floats, or one per row"
        _require(kind, group, expected, elements=(INTEGER, FLOAT, DECIMAL), listed=not scalar)
        element = pl.Int64() if kind.element == INTEGER else pl.Float32()
        dtype = pl.List(element)
        if scalar:
            numbers = value.plain().convert(element).expr
            return Value(expr=map_series(numbers, lists_of_one, dtype), dtype=dtype)
        if kind.weighted:
            return _finish_weighted(value.plain(), kind, dtype)
    elif kind.width is not None and kind.element in (*NUMBERS, BOOLEAN):
        dtype = pl.Array(pl.Float32(), kind.width)
        return Value(expr=value.expr if dtype == value.dtype else value.expr.cast(dtype), dtype=dtype)
    else:
        _require(kind, group, "one number per row", elements=(INTEGER, FLOAT, DECIMAL, BOOLEAN), listed=False)
        dtype = pl.Float32()
    return value.plain().convert(dtype)


def _finish_weighted(value: Value, kind: Kind, dtype: pl.DataType) -> Value:
    if kind.element != INTEGER:
        raise SpecError(
            f"sparse takes weights beside integer ids: got {kind}. Bucketize the ids, or drop the weights: ids"
        )
    assert value.weights is not None
    values = value.expr if dtype == value.dtype else value.expr.cast(dtype)
    both = pl.struct(values.alias(VALUES), value.weights.alias(WEIGHTS_OF_VALUES))
    return Value(expr=both, dtype=pl.Struct({VALUES: dtype, WEIGHTS_OF_VALUES: WEIGHTS}))


def _require(kind: Kind, group: Group, expected: str, *, elements: tuple[str, ...], listed: bool) -> None:
    if kind.element not in elements or kind.listed is not listed:
        raise SpecError(f"{group} takes {expected}: got {kind}. {_remedy(kind, group, listed)}")


def _remedy(kind: Kind, group: Group, listed: bool) -> str:
    group_name = "sparse" if kind.listed else "dense" if kind.element in (FLOAT, DECIMAL) else "categorical"
    move = "" if kind.listed is listed else f", and put the feature under {group_name}"
    if kind.element in NUMBERS and move:
        number = (
            ", or reduce the list to a number with expr, such as `x.list.len()`, or make a vector with {pad: LENGTH}"
            if kind.listed
            else ""
        )
        return f"Put the feature under {group_name}{number}"
    if kind.element in (FLOAT, DECIMAL):
        return "End its ops with bucketize or {cast: int64}, or put the feature under dense"
    if kind.element in (STRING, BINARY):
        if group in ("dense", "label") and not move:
            return "End its ops with {cast: float32}, or put it under categorical with {hash_bucket: 1000000}"
        return f"End its ops with {{hash_bucket: 1000000}}{move}"
    if kind.element == BOOLEAN:
        return f"End its ops with {{cast: int64}}{move}"
    if kind.element in TEMPORAL:
        return "Extract a number with expr, such as `expr: NAME.dt.hour()`"
    return 'Extract one field with expr, such as `expr: NAME["field"]`'


# --------------------------------------------------------------------------------------------------------------------


def chain_text(feature: FeatureSpec, marked: int | None = None, end: str = "") -> str:
    """`fill_null → [log1p]`: the feature's ops with one of them marked, or the group at the end.

    An op over several columns comes first, at position -1: `cartesian(a, b) → first_x`.
    """
    calls = [(-1, feature.op)] if feature.op is not None else []
    inputs = f"({', '.join(str(source) for source in feature.inputs)})"
    labels = []
    for position, call in [*calls, *enumerate(feature.ops)]:
        label = f"[{op_label(call)}]" if position == marked else op_label(call)
        labels.append(label + inputs if position == -1 else label)
    return " → ".join([*labels, f"[{end}]"] if end else labels) or "no ops"


class Compiler:
    """Builds values, each prefix of a chain once; collects source columns, and the fields and types of their parts.

    elements: of columns of lists, their elements: what ops make of each value, whatever list it is in.
    """

    def __init__(
        self,
        schema: pa.Schema,
        artifacts: ArtifactSet,
        shared: frozenset[Key] = frozenset(),
        *,
        elements: bool = False,
    ) -> None:
        self.schema = schema
        self._elements = elements
        self._finish = finish_element if elements else finish
        self.stages = Stages(schema)
        self._shared = shared
        self.requests = FitRequests(artifacts)
        self.seen_rows: dict[str, bool | str] = {}  # by fit: the rows that an op leaves out of their own statistics
        self._artifacts = artifacts
        self.columns: set[str] = set()
        self.fields: dict[str, pa.Field] = {}
        self.types: dict[str, pl.DataType] = {}
        self._built: dict[Key, Value] = {}
        self._provenance: dict[Key, Provenance] = {}
        self.lookups: dict[Key, tuple[Lookup, ...]] = {}
        self.ids: dict[Key, int | None] = {}

    def provenance(self, key: Key) -> Provenance:
        return self._provenance[key]

    def feature(self, feature: FeatureSpec) -> tuple[Value, str, Key]:
        """The value in its group's type, the kind before that conversion, and the key of the value."""
        value, key = self.chain(feature)
        try:
            finished = self._built.get((*key, feature.group)) or self._finish(value, feature.group)
        except SpecError as error:
            chain = chain_text(feature, end=feature.group)
            raise OpError(feature.path, f"{feature.name}: {chain}: {error}") from None
        self._built[(*key, feature.group)] = finished
        if not self.lookups[key] and any(bound.measure == "oov_rate" for bound in feature.expect):
            message = (
                f"{feature.name}: {chain_text(feature)}: no op looks values up, so there is no oov_rate. Remove it"
            )
            raise OpError((*feature.path, "expect", "oov_rate"), message)
        return finished, str(value.kind), key

    def chain(self, feature: FeatureSpec) -> tuple[Value, Key]:
        value, key = self._source(feature)
        if feature.ops:
            value = self._split_weights(value, key)
        for index, call in enumerate(feature.ops):
            try:
                bound = bind(call)
                before, key = key, (*key, bound.identity)
                if key not in self._built:
                    position = OpPosition(
                        feature=feature,
                        chain=chain_text(feature),
                        key=before,
                        provenance=self._provenance[before],
                        before=(replace(feature, ops=feature.ops[:index]),),
                    )
                    context, self._provenance[key] = self._context(bound, [value], position)
                    sliced = self._elements and bound.op.slices is not None
                    result = value if sliced else bound.apply(value, context)
                    self._add(key, bound, context, result, [before])
            except OpError as error:
                chain = chain_text(feature, marked=index)
                raise OpError(error.path, f"{feature.name}: {chain}: {error.message}") from None
            value = self._built[key]
        return value, key

    def _split_weights(self, value: Value, key: Key) -> Value:
        """A list of {id, weight} as ops take it, split into ids and weights once."""
        if value.weights is not None or (plain := value.plain()).weights is None:
            return value
        return self._built.setdefault((*key, "weighted"), self.stages.hold(plain))

    def _shared_value(self, value: Value, key: Key) -> Value:
        """The value, held as a column if several values derive from it, or if it has weights, as its ids and weights
        then do.
        """
        return self.stages.hold(value) if key in self._shared or value.weights is not None else value

    def _context(self, bound: BoundOp, values: Sequence[Value], position: OpPosition) -> tuple[OpContext, Provenance]:
        if not bound.op.takes_context:
            return NO_CONTEXT, position.provenance
        artifact, provenance = self.requests.artifact(bound, values, position)
        learns = bound.op.learns
        if artifact is None or learns is None:
            return OpContext(artifact=artifact), provenance
        columns = learns.side_columns(bound.parameters)
        if provenance.depends != position.provenance.depends:  # the fit is still missing
            self._side_values(bound, learns, columns)
        roles, key = learns.row_roles(bound.parameters), fit_key(bound, position)
        seen_rows = self._artifacts.seen_rows(key) if roles else False
        if roles:
            self.seen_rows[key] = seen_rows
        if not seen_rows:
            return OpContext(artifact=artifact), provenance
        side_values = self._side_values(bound, learns, {role: columns[role] for role in roles})
        for role in side_values:
            self._read(columns[role], self._type(columns[role]))
        if isinstance(seen_rows, str):
            side_values[SEEN] = Value(expr=pl.col(seen_rows), dtype=pl.Boolean())
        row_columns = provenance.row_columns.union(columns[role] for role in roles)
        return OpContext(artifact=artifact, side_values=side_values), replace(provenance, row_columns=row_columns)

    def _add(self, key: Key, bound: BoundOp, context: OpContext, result: Value, inputs: Sequence[Key]) -> None:
        """Keep an op's result, with the chain's lookups (the column of its own is computed before the result) and the
        number of ids that it may have: None before the fits that decide it.
        """
        lookups = [lookup for name in inputs for lookup in self.lookups[name]]
        if result.lookup is not None and result.lookup not in lookups:
            self.stages.add(result.lookup)
            lookups.append(result.lookup)
        self.lookups[key] = tuple(lookups)
        ids = [self.ids[name] for name in inputs]
        waits = self._provenance[key].depends
        self.ids[key] = None if waits else bound.op.ids(bound.parameters, context.artifact, ids)
        self._built[key] = self._shared_value(result, key)

    def _side_values(self, bound: BoundOp, learns: Learning, columns: Mapping[str, str]) -> dict[str, Value]:
        """The other columns that an op observes, by role. Raises OpError for one that is missing or of a wrong type."""
        with bound.named_errors():
            values = {role: Value(expr=pl.col(name), dtype=self._type(name)).plain() for role, name in columns.items()}
            learns.check(bound.parameters, values)
        return values

    def _source(self, feature: FeatureSpec) -> tuple[Value, Key]:
        if feature.op is not None:
            return self._combine(feature, feature.op)
        key = source_key(feature, feature.name)
        if key not in self._built:
            if feature.expr is not None:
                value, read = self._expression(feature, feature.expr)
            else:
                name = str(key[1])
                value, read = Value(expr=pl.col(name), dtype=self._column_type(feature, name)), (name,)
            self._built[key] = self._shared_value(value, key)
            self._provenance[key] = Provenance(types={name: str(self.fields[name].type) for name in read})
            self.lookups[key], self.ids[key] = (), None
        return self._built[key], key

    def _combine(self, feature: FeatureSpec, call: OpCall) -> tuple[Value, Key]:
        inputs = [input_feature(feature, source) for source in feature.inputs]
        chains = [self.chain(source) for source in inputs]
        try:
            bound = bind(call)
            key = (bound.identity, *(key for _, key in chains))
            if key not in self._built:
                values = [self.stages.hold(self._split_weights(value, key)) for value, key in chains]
                first, *others = (self._provenance[key] for _, key in chains)
                position = OpPosition(
                    feature=feature,
                    chain=chain_text(feature),
                    key=tuple(key for _, key in chains),
                    provenance=first.merge(others),
                    before=tuple(inputs),
                )
                context, self._provenance[key] = self._context(bound, values, position)
                self._add(key, bound, context, bound.combine(values, context), position.key)
        except OpError as error:
            raise OpError(error.path, f"{feature.name}: {chain_text(feature, marked=-1)}: {error.message}") from None
        return self._built[key], key

    def _column_type(self, feature: FeatureSpec, name: str) -> pl.DataType:
        try:
            dtype = self._type(name)
        except SpecError as error:
            raise OpError(feature.path, f"{feature.name}: {error}") from None
        if self._elements and isinstance(dtype, pl.List):
            dtype = language_type(inner_type(dtype))
        self._read(name, dtype)
        return dtype

    def _read(self, name: str, dtype: pl.DataType) -> None:
        self.columns.add(name)
        self.fields[name], self.types[name] = self.schema.field(name), dtype

    def _type(self, name: str) -> pl.DataType:
        """The type of a column of the table. Raises SpecError for a missing column or one without a type in Polars."""
        indices = self.schema.get_all_field_indices(name)
        if not indices:
            near = nearest(name, self.schema.names) or f". There are {_shorten(self.schema.names)}"
            if (part := part_of(name)) is not None and has_column(self.schema, part.column):
                near = f". Write {{expr: '{name}'}} for a part of a column"
            elif "*" in name:
                near = ". There is no wildcard: write a range, such as C{1..26}, or a list, {columns: [C1, C2], ops: …}"
            message = f"unknown column: got {name!r}, expected a column of the table{near}"
        elif len(indices) > 1:
            message = f"the table has {len(indices)} columns {name!r}"
        elif name == "*" or (name.startswith("^") and name.endswith("$")):
            message = f"the column {name!r} is named like a pattern of Polars: rename it to use it"
        elif (dtype := column_type(field := self.schema.field(indices[0]))) is None or is_too_wide(field.type):
            message = f"the column {name!r} has a type that Polars lacks: {field.type}{unknown_type_hint(field.type)}"
        else:
            return dtype
        raise SpecError(message)

    def _expression(self, feature: FeatureSpec, text: str) -> tuple[Value, tuple[str, ...]]:
        path = (*feature.path, "expr")
        try:
            bound = row_expression(text, self.schema)
        except ExpressionError as error:
            raise OpError(path, f"{feature.name}: {error}") from None
        for name in bound.parts:
            if has_column(self.schema, name):
                self._column_type(feature, name)
            elif (part := part_of(name)) is not None and name not in self.types:
                self.fields[name] = part_field(self.schema, part)
                dtype = column_type(self.fields[name])
                assert dtype is not None
                self.types[name] = dtype
        self.columns.update(bound.columns)
        return Value(expr=bound.narrow, dtype=bound.dtype), tuple(sorted(bound.parts))


def input_feature(feature: FeatureSpec, source: FeatureInput) -> FeatureSpec:
    """An input of a feature as a feature of its own, for its chain and its errors."""
    return FeatureSpec(
        name=f"{feature.name} (input {source})",
        group=feature.group,
        column=source.column,
        expr=source.expr,
        ops=source.ops,
        path=source.path or feature.path,
    )


def _shorten(names: Sequence[str], limit: int = 12) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
