"""What do features learn from rows that are in memory? What fitting on a cluster must equal, and the way of examples.

Runs in: any process. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, Fits, Wanted


def fit_frames(features: Sequence[FeatureSpec], schema: pa.Schema, frames: Sequence[pl.DataFrame]) -> Fits:
    """Every artifact that the features need, learnt from these rows; `frames` have the schema's columns."""
    artifacts: dict[str, Artifact] = {}
    while True:
        known = Fits(artifacts=dict(artifacts))
        ready = [want for want in compile_features(features, schema, known).wanted if not want.depends]
        if not ready:
            return known
        for want in ready:
            artifacts[want.key] = _fit(want, schema, known, frames)


def _fit(want: Wanted, schema: pa.Schema, known: Fits, frames: Sequence[pl.DataFrame]) -> Artifact:
    learner = want.learner
    states = [
        learner.observe(compile_features(stream, schema, known).apply(frame).get_columns())
        for stream in want.streams
        for frame in frames
    ]
    return learner.finish([learner.merge(states)])
