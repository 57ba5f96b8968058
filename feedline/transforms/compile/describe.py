"""Describe the steps of each feature's chain, and the steps that features share.

Runs in: `feedline plan --ops`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from feedline.config.features import AnyGroup, FeatureSpec, OpCall
from feedline.dataclass import dataclass
from feedline.expressions.types import type_name
from feedline.transforms.compile.chains import Compiler, input_feature
from feedline.transforms.compile.fit_requests import Key
from feedline.transforms.learning.learner import NO_ARTIFACTS, ArtifactSet
from feedline.transforms.registry.user_code import code_of
from feedline.transforms.values.kinds import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStep:
    """A value in a chain: the op that computes it (None: the source), its kind and its type.

    code: the user's function behind the op, as `module:function`; None for built-in ops.
    """

    op: str | None
    kind: str
    dtype: str
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A feature, or an input of one: its source, the inputs of an op over several columns, and a step per op.

    source: the column or expression, None if the first step is an op over `inputs`. dtype: its final type, that of its
    group. shared: the number of steps (without the source) of the longest prefix that other features share. sharers:
    the names of those features.
    """

    name: str
    group: AnyGroup | None
    source: str | None
    inputs: tuple[Chain, ...]
    steps: tuple[ChainStep, ...]
    dtype: str
    shared: int
    sharers: tuple[str, ...]

    def text(self) -> str:
        """`price: float32 → fill_null → float32 → log1p → float32 → dense float32`."""
        first = "" if self.source is None else f"{self.source}: "
        words = [_show(step, () if index else self.inputs) for index, step in enumerate(self.steps)]
        end = [] if self.group is None else [f"{self.group} {self.dtype}"]
        return first + " → ".join([*words, *end])


def chains(
    features: Sequence[FeatureSpec], schema: pa.Schema, artifacts: ArtifactSet = NO_ARTIFACTS
) -> tuple[Chain, ...]:
    """The chains of features that fit the schema. Raises OpError like `compile_features`."""
    compiler = Compiler(schema, artifacts)
    holders: dict[Key, dict[str, None]] = {}
    keys: list[list[Key]] = []
    found = []
    for feature in features:
        chain, names = _chain(compiler, feature)
        found.append(chain)
        keys.append(names)
        for key in names:
            holders.setdefault(key, {})[feature.name] = None
    return tuple(_with_sharers(chain, names, holders) for chain, names in zip(found, keys, strict=True))


def _chain(compiler: Compiler, feature: FeatureSpec, *, whole: bool = True) -> tuple[Chain, list[Key]]:
    """The chain, and the key after each step; `whole`: up to its group's type."""
    compiler.chain(feature)  # raises the errors of the whole chain
    values, keys = [], []
    for length in range(len(feature.ops) + 1):
        value, key = compiler.chain(replace(feature, ops=feature.ops[:length]))
        values.append(value)
        keys.append(key)
    calls: list[OpCall | None] = [feature.op, *feature.ops]
    inputs = tuple(_chain(compiler, input_feature(feature, one), whole=False)[0] for one in feature.inputs)
    end = compiler.feature(feature)[0] if whole else values[-1]
    source = feature.expr if feature.op is None and feature.expr is not None else feature.column
    chain = Chain(
        name=feature.name,
        group=feature.group if whole else None,
        source=None if feature.op is not None else source or feature.name,
        inputs=inputs,
        steps=tuple(_step(call, value) for call, value in zip(calls, values, strict=True)),
        dtype=type_name(end.dtype),
        shared=0,
        sharers=(),
    )
    return chain, keys


def _step(call: OpCall | None, value: Value) -> ChainStep:
    dtype = type_name(value.dtype)
    return ChainStep(
        op=None if call is None else call.op,
        kind=str(value.kind),
        dtype=f"weighted {dtype}" if value.weights is not None else dtype,
        code=None if call is None else code_of(call),
    )


def _with_sharers(chain: Chain, keys: Sequence[Key], holders: dict[Key, dict[str, None]]) -> Chain:
    """The longest shared prefix; a plain column costs nothing and does not count."""
    plain = chain.source is not None and keys[0][0] == "column"
    for length in range(len(keys) - 1, 0 if plain else -1, -1):
        others = tuple(name for name in holders[keys[length]] if name != chain.name)
        if others:
            return replace(chain, shared=length, sharers=others)
    return chain


def _show(step: ChainStep, inputs: tuple[Chain, ...]) -> str:
    if step.op is None:
        return step.dtype
    code = "" if step.code is None else f" {step.code}" if step.op == "python" else f" ({step.code})"
    arguments = f"({', '.join(chain.text() for chain in inputs)})" if inputs else ""
    return f"{step.op}{code}{arguments} → {step.dtype}"
