"""Compute features up to each of their steps, to measure what a step costs.

Runs in: `feedline plan --ops`, and processes that explain. Pure. A pass computes the values after a step from a frame's
columns as all features together do, apart from steps that other features share: those it computes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.chains import Compiler
from feedline.transforms.compile.fused_pass import FusedPass
from feedline.transforms.compile.shared import Levels
from feedline.transforms.learning.learner import NO_ARTIFACTS, ArtifactSet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPass:
    """Values after a step of a feature. op: None for its source; sharers: how many features compute the same values.

    is_plain: a column as it is, which costs nothing.
    """

    feature: str
    op: str | None
    sharers: int
    is_plain: bool
    _stages: Levels
    _pass: FusedPass

    def run(self, frame: pl.DataFrame) -> None:
        """Compute the values of an unchunked frame, and drop them."""

        def select(expressions: Sequence[pl.Expr]) -> pl.DataFrame:
            lazy = frame.lazy()
            for stage in self._stages:
                lazy = lazy.with_columns_seq(stage)
            return lazy.select_seq(expressions).collect(engine="in-memory")

        self._pass.run(frame, select)


def step_passes(
    features: Sequence[FeatureSpec],
    schema: pa.Schema,
    artifacts: ArtifactSet = NO_ARTIFACTS,
    only: Collection[str] | None = None,
) -> list[list[StepPass]]:
    """The passes of each feature, step by step from its source. only: of these features; of all, sharers are counted.
    Raises OpError as `compile_features`."""
    whole = Compiler(schema, artifacts)
    keys = [
        [whole.chain(replace(feature, ops=feature.ops[:length]))[1] for length in range(len(feature.ops) + 1)]
        for feature in features
    ]
    holders = Counter(key for each in keys for key in each)
    return [
        [_pass_of(feature, length, holders[key], schema, artifacts) for length, key in enumerate(each)]
        for feature, each in zip(features, keys, strict=True)
        if only is None or feature.name in only
    ]


def _pass_of(feature: FeatureSpec, length: int, sharers: int, schema: pa.Schema, artifacts: ArtifactSet) -> StepPass:
    compiler = Compiler(schema, artifacts)
    value, _ = compiler.chain(replace(feature, ops=feature.ops[:length]))
    call = feature.ops[length - 1] if length else feature.op
    return StepPass(
        feature=feature.name,
        op=None if call is None else call.op,
        sharers=sharers,
        is_plain=call is None and feature.expr is None,
        _stages=compiler.stages.levels,
        _pass=FusedPass([feature.name], [value], list(compiler.types)),
    )
