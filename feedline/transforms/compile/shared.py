"""Hold values that several features need, so that each is computed once.

Runs in: every process that compiles features. Pure. Polars finds common subexpressions by itself, but none that
contains a `list.eval`. So a value that is needed more than once becomes a column of its own, in levels, as one held
value may derive from another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from feedline.spec.features import FeatureInput, FeatureSpec
from feedline.transforms.compile.fit_requests import KNOWN_AS, Key
from feedline.transforms.ops import bind
from feedline.transforms.registry.op import OpError
from feedline.transforms.values.kinds import Lookup, Value

Levels = tuple[tuple[pl.Expr, ...], ...]


def source_key(source: FeatureSpec | FeatureInput, name: str) -> Key:
    """The key of a column or an expression that begins a chain, and what fits know it as, if that differs."""
    own = ("expr", source.expr) if source.expr is not None else ("column", source.column or name)
    return own if source.known_as in (None, own) else (*own, (KNOWN_AS, *source.known_as))


def shared_keys(features: Iterable[FeatureSpec]) -> frozenset[Key]:
    """The keys of the values (of a source or an op) from which several others derive."""
    after: dict[Key, set[Key]] = {}
    for feature in features:
        try:
            _walk(feature, after)
        except OpError:  # building the feature raises it with its position
            continue
    return frozenset(key for key, dependants in after.items() if len(dependants) > 1)


def _walk(feature: FeatureSpec, after: dict[Key, set[Key]]) -> None:
    if feature.op is None:
        key = source_key(feature, feature.name)
    else:
        starts = [source_key(source, feature.name) for source in feature.inputs]
        inputs = [
            _extend(start, [bind(call).identity for call in source.ops], after)
            for start, source in zip(starts, feature.inputs, strict=True)
        ]
        key = (bind(feature.op).identity, *inputs)
        for input_key in inputs:
            after.setdefault(input_key, set()).add(key)
    _extend(key, [*(bind(call).identity for call in feature.ops), feature.group], after)


def _extend(key: Key, steps: Iterable[object], after: dict[Key, set[Key]]) -> Key:
    for step in steps:
        longer = (*key, step)
        after.setdefault(key, set()).add(longer)
        key = longer
    return key


@dataclass(frozen=True, slots=True)
class _SharedColumn:
    expr: pl.Expr
    level: int


class Stages:
    """The columns to compute before the features, each once; `schema`: of the columns that there are."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._held: dict[str, _SharedColumn] = {}

    def hold(self, value: Value) -> Value:
        """The value as columns that are computed once. Existing columns stay as they are."""
        weights = None if value.weights is None else self._column(value.weights)
        return replace(value, expr=self._column(value.expr), weights=weights)

    def add(self, lookup: Lookup) -> None:
        """Compute the column of a lookup, under its own name."""
        self._held[lookup.name] = _SharedColumn(lookup.ids, self._level(lookup.ids))

    def _level(self, expr: pl.Expr) -> int:
        return max((self._held[root].level + 1 for root in expr.meta.root_names() if root in self._held), default=0)

    def _column(self, expr: pl.Expr) -> pl.Expr:
        if expr.meta.is_column():
            return expr
        name = f"__held_{len(self._held)}"
        while self._schema.get_all_field_indices(name):
            name = f"_{name}"
        self._held[name] = _SharedColumn(expr.alias(name), self._level(expr))
        return pl.col(name)

    @property
    def levels(self) -> Levels:
        """The held columns by level: the first level to compute, the second, and so on."""
        deepest = max((column.level for column in self._held.values()), default=-1)
        return tuple(
            tuple(column.expr for column in self._held.values() if column.level == level)
            for level in range(deepest + 1)
        )
