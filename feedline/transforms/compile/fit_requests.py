"""Collect the artifacts that features use, and the fits that are missing.

Runs in: every process that compiles features. Pure. A fit is identified by the chain before it and by its op, not by
types: a table whose ids became wider raises an error about its types instead of requesting another fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureInput, FeatureSpec
from feedline.dataclass import dataclass
from feedline.transforms.learning.learner import Artifact, ArtifactSet, FitRequest, Learner
from feedline.transforms.ops import bind
from feedline.transforms.registry.op import BoundOp, OpError
from feedline.transforms.values.kinds import Lookup, Value

Key = tuple[Any, ...]
KNOWN_AS = "known as"  # in the key of a source, before the column or expression by which fits know it


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a value derives from: the table's columns with their types, and the missing fits.

    row_columns: the columns that ops need of each row besides its value, see `Learning.row_roles`. artifacts: those
    that ops use, by their names in `FitRequests.digests`.
    """

    types: Mapping[str, str]
    depends: frozenset[str] = frozenset()
    row_columns: frozenset[str] = frozenset()
    artifacts: frozenset[str] = frozenset()

    def merge(self, others: Sequence[Provenance]) -> Provenance:
        types = dict(self.types)
        for other in others:
            types |= other.types
        return Provenance(
            types=types,
            depends=self.depends.union(*(other.depends for other in others)),
            row_columns=self.row_columns.union(*(other.row_columns for other in others)),
            artifacts=self.artifacts.union(*(other.artifacts for other in others)),
        )

    def using(self, artifact: str) -> Provenance:
        return replace(self, artifacts=self.artifacts | {artifact})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPosition:
    """An op in a chain: its feature, the chain for messages, the chain's key, and the provenance of its values.

    before: its values as features of their own, without a group.
    """

    feature: FeatureSpec
    chain: str
    key: Key
    provenance: Provenance
    before: tuple[FeatureSpec, ...]


class FitRequests:
    """Collects the artifacts in use and the fits that are missing while features are compiled."""

    def __init__(self, artifacts: ArtifactSet) -> None:
        self._artifacts = artifacts
        self._requests: dict[str, FitRequest] = {}
        self._streams: dict[str, dict[Key, tuple[FeatureSpec, ...]]] = {}
        self.digests: dict[str, str] = {}  # of the artifacts in use, for the fingerprint

    @property
    def missing(self) -> tuple[FitRequest, ...]:
        return tuple(
            replace(
                request,
                streams=tuple(self._streams[key].values()),
                depends=self._with_dependencies(request.depends),
                behind=tuple(sorted({_text(_as_fitted(chain)) for chain in self._streams[key]})),
            )
            for key, request in self._requests.items()
        )

    def _with_dependencies(self, keys: frozenset[str]) -> frozenset[str]:
        """These fits and all that they depend on: a shared fit waits for the fits before each of its features."""
        found: set[str] = set()
        queue = list(keys)
        while queue:
            if (key := queue.pop()) not in found:
                found.add(key)
                queue.extend(self._requests[key].depends)
        return frozenset(found)

    def artifact(
        self, bound: BoundOp, values: Sequence[Value], position: OpPosition
    ) -> tuple[Artifact | None, Provenance]:
        """The op's artifact, a blank one if its fit is missing; and the provenance of the op's result.

        Raises OpError.
        """
        with bound.named_errors():
            if bound.op.reads is not None:
                reading = bound.op.reads(bound.parameters)
                artifact = self._artifacts.read(reading)
                self.digests[reading.name] = artifact.digest
                return artifact, position.provenance.using(reading.name)
            learner = bound.learner(values)
            return (None, position.provenance) if learner is None else self._fit(bound, learner, position)

    def _fit(self, bound: BoundOp, learner: Learner, position: OpPosition) -> tuple[Artifact, Provenance]:
        assert bound.op.learns is not None
        shared, key = bound.op.learns.name(bound.parameters), fit_key(bound, position)
        side_columns = bound.op.learns.side_columns(bound.parameters)
        stream = [*position.before, *(_column(column, position.feature) for column in side_columns.values())]
        prefix = f"{key[:12]}:{len(self._streams.get(key, ()))}"
        # without expectations, which are about finished values
        observed = tuple(
            replace(feature, name=f"{prefix}:{index}", group="observed", expect=())
            for index, feature in enumerate(stream)
        )
        request = FitRequest(
            key=key,
            feature=position.feature.name,
            op=bound.identity,
            chain=position.chain,
            learner=learner,
            types=dict(sorted(position.provenance.types.items())),
            streams=(observed,),
            depends=position.provenance.depends,
            behind=(_text(_as_fitted(position.key)),),
            shared=shared is not None,
        )
        if key in self._with_dependencies(request.depends):
            raise OpError(
                bound.path,
                f"{bound.op.name} cannot learn from its own results: got the name {shared!r} twice in a chain. Rename "
                f"one of them",
            )
        found = None if position.provenance.depends else self._artifacts.find_artifact(request)
        if found is not None:
            self.digests[key] = found.digest
            return found, position.provenance.using(key)
        self._add(bound, request, position.key)
        return learner.blank(), replace(position.provenance, depends=position.provenance.depends | {key})

    def _add(self, bound: BoundOp, request: FitRequest, chain: Key) -> None:
        earlier = self._requests.setdefault(request.key, request)
        if earlier.learner != request.learner:
            raise OpError(
                bound.path,
                f"{bound.op.name} cannot be shared by columns of different types: got {_types(request)} here and "
                f"{_types(earlier)} in {earlier.feature}. Give them another name, or put a cast before it",
            )
        if earlier is not request:
            depends = earlier.depends | request.depends
            types = dict(sorted({**earlier.types, **request.types}.items()))
            self._requests[request.key] = replace(earlier, depends=depends, types=types)
        self._streams.setdefault(request.key, {}).setdefault(chain, request.streams[0])


def fit_key(bound: BoundOp, position: OpPosition) -> str:
    assert bound.op.learns is not None
    shared = bound.op.learns.name(bound.parameters)
    return _digest([*_as_fitted(position.key), bound.identity] if shared is None else ["shared", bound.identity])


def _as_fitted(key: Key) -> Key:
    """The key of a value as fits know it: of a source that redefines a feature, with the pipeline's own column."""
    # ("column", "cost", ("known as", "column", "price"), op) -> ("column", "price", op)
    if key[0] in ("column", "expr"):
        known = key[2] if len(key) > 2 and key[2][0] == KNOWN_AS else None
        return key if known is None else (*known[1:], *key[3:])
    return tuple(
        _as_fitted(part) if isinstance(part, tuple) and part[0] in ("column", "expr") else part for part in key
    )


def _column(name: str, feature: FeatureSpec) -> FeatureSpec:
    return FeatureSpec(name=name, group="observed", column=name, path=feature.path)


def _types(request: FitRequest) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in request.types.items())


def describe_chain(name: str) -> str:
    """The chain behind an item of `FitRequest.behind`, for messages: `item_id → modulo {"divisor":100}`."""
    chain = json.loads(name)
    if not chain or chain[0] not in ("column", "expr"):
        return name
    _, source, *ops = chain
    return " → ".join([source, *(f"{op} {parameters}" for op, _, parameters in ops)])


def _text(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


def _digest(content: object) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------------------------
# Hold values that several features need, so that each is computed once. Polars finds common subexpressions by itself,
# but none that contains a `list.eval`. So a value that is needed more than once becomes a column of its own, in
# levels, as one held value may derive from another.

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


class Stages:
    """The columns to compute before the features, each once; `schema`: of the columns that there are."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._held: dict[str, tuple[pl.Expr, int]] = {}  # expressions and their levels

    def hold(self, value: Value) -> Value:
        weights = None if value.weights is None else self._column(value.weights)
        return replace(value, expr=self._column(value.expr), weights=weights)

    def add(self, lookup: Lookup) -> None:
        """Compute the column of a lookup, under its own name."""
        self._held[lookup.name] = lookup.ids, self._level(lookup.ids)

    def _level(self, expr: pl.Expr) -> int:
        return max((self._held[root][1] + 1 for root in expr.meta.root_names() if root in self._held), default=0)

    def _column(self, expr: pl.Expr) -> pl.Expr:
        if expr.meta.is_column():
            return expr
        name = f"__held_{len(self._held)}"
        while self._schema.get_all_field_indices(name):
            name = f"_{name}"
        self._held[name] = expr.alias(name), self._level(expr)
        return pl.col(name)

    @property
    def levels(self) -> Levels:
        """The held columns by level: the first level to compute, the second, and so on."""
        columns = self._held.values()
        deepest = max((level for _, level in columns), default=-1)
        return tuple(tuple(expr for expr, at in columns if at == level) for level in range(deepest + 1))
