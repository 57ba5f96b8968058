"""Compute features that differ only in their columns as one feature of all these columns' rows.

Runs in: the process that serves. The columns are laid end to end, transformed as one column, and cut again. What fails
is left to the pass over all features, whose error names the feature and the row. See docs/decisions/history.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from feedline.config.features import FeatureInput, FeatureSpec
from feedline.dataclass import dataclass
from feedline.expressions.extraction import project
from feedline.serving.request_types import convert
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.ops import bind
from feedline.transforms.values.arrays import Column

# Of 1,024 rows 600 features take half the time, of more the copies weigh as much as the calls.
STACKED_ROWS = 1024
# Alike features that are worth a pass of their own: of fewer, calls cost less than laying their columns end to end.
_FEWEST = 4
_FEWEST_WITHOUT_OPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Features that are alike: their names, and for each of their inputs, the indices of the features' columns.

    feature: one of them, compiled for columns that are named "0", "1", … by input. casts: the types of training of the
    columns that have another type in the rows.
    """

    names: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    feature: CompiledFeatures
    casts: Mapping[str, pa.DataType]

    def compute(self, columns: Sequence[pa.Array], rows: int) -> dict[str, Column]:
        """The features of the columns of so many rows. Raises for values that cannot be computed or converted."""
        stacked: dict[str, pa.Array] = {}
        for index, indices in enumerate(self.inputs):
            name = str(index)
            column = pa.concat_arrays([columns[position] for position in indices])
            stacked[name] = convert(column, self.casts[name], name) if name in self.casts else column
        frame = project(pa.table(stacked), self.feature.parts)
        [result] = self.feature.finished(frame).values()
        borders = range(0, rows * len(self.names), rows)
        return {name: result[start : start + rows] for name, start in zip(self.names, borders, strict=True)}


def stack(
    features: Sequence[FeatureSpec], schema: pa.Schema, casts: Sequence[pa.Field]
) -> tuple[tuple[Stack, ...], tuple[FeatureSpec, ...]]:
    """The stacks of features, and the features that are in none; `schema`: of the rows, before `casts`.

    Features of expressions, of parts of columns and with artifacts of their own, such as a mean, are in none.
    """
    types = {field.name: field.type for field in casts}
    alike: dict[Any, list[FeatureSpec]] = {}
    rest: list[FeatureSpec] = []
    for feature in features:
        key = _alike(feature, schema, types)
        if key is None:
            rest.append(feature)
        else:
            alike.setdefault(key, []).append(feature)
    stacks = []
    for group in alike.values():
        if len(group) < (_FEWEST if group[0].ops or group[0].op else _FEWEST_WITHOUT_OPS):
            rest.extend(group)
        else:
            stacks.append(_stack(group, schema, types))
    return tuple(stacks), tuple(rest)


def _alike(feature: FeatureSpec, schema: pa.Schema, casts: Mapping[str, pa.DataType]) -> Any:
    """What alike features have in common; None for a feature that is like no other."""
    sources = _sources(feature)
    calls = [*([] if feature.op is None else [feature.op]), *feature.ops, *(op for one in sources for op in one.ops)]
    bound = [bind(call) for call in calls]
    columns = [one.column for one in sources]
    plain = all(name is not None and name in schema.names for name in columns)
    if not plain or any(one.op.takes_context for one in bound):
        return None
    types = [(schema.field(name).type, casts.get(name)) for name in columns if name is not None]
    if any(pat.is_dictionary(kind) for kind, _ in types):  # perhaps of different words
        return None
    shape = [len(feature.ops), *(len(one.ops) for one in sources)]
    return feature.group, feature.op is None, *shape, *types, *(one.identity for one in bound)


def _sources(feature: FeatureSpec) -> tuple[FeatureInput, ...]:
    if feature.op is not None:
        return feature.inputs
    return (FeatureInput(column=feature.name if feature.expr is None and feature.column is None else feature.column),)


def _stack(group: Sequence[FeatureSpec], schema: pa.Schema, types: Mapping[str, pa.DataType]) -> Stack:
    columns = [[one.column or "" for one in _sources(feature)] for feature in group]
    fields, casts = [], {}
    for index, name in enumerate(columns[0]):
        field = schema.field(name).with_name(str(index))
        if name in types:
            casts[field.name] = types[name]
            field = field.with_type(types[name])
        fields.append(field)
    first = group[0]
    if first.op is None:
        feature = replace(first, column="0", expect=())
    else:
        inputs = tuple(replace(one, column=str(index)) for index, one in enumerate(first.inputs))
        feature = replace(first, inputs=inputs, expect=())
    return Stack(
        names=tuple(feature.name for feature in group),
        inputs=tuple(
            tuple(schema.get_field_index(name) for name in of_input) for of_input in zip(*columns, strict=True)
        ),
        feature=compile_features([feature], pa.schema(fields)),
        casts=casts,
    )
