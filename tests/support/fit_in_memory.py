"""Fit features on frames in memory: an oracle for fits on a cluster, and a shortcut for tests of ops."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, FitRequest, InMemoryArtifacts


def fit_frames(features: Sequence[FeatureSpec], schema: pa.Schema, frames: Sequence[pl.DataFrame]) -> InMemoryArtifacts:
    """Fit every artifact that the features need on these rows; `frames` have the schema's columns."""
    artifacts: dict[str, Artifact] = {}
    while True:
        known = InMemoryArtifacts(artifacts=dict(artifacts))
        ready = [request for request in compile_features(features, schema, known).missing_fits if not request.depends]
        if not ready:
            return known
        for request in ready:
            artifacts[request.key] = _fit(request, schema, known, frames)


def _fit(request: FitRequest, schema: pa.Schema, known: InMemoryArtifacts, frames: Sequence[pl.DataFrame]) -> Artifact:
    learner = request.learner
    states = [
        learner.observe(compile_features(stream, schema, known).apply(frame).get_columns())
        for stream in request.streams
        for frame in frames
    ]
    return learner.finish([learner.merge(states)])
