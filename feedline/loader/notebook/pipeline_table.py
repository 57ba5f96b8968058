"""Show a pipeline in a notebook: its features, with what they read and how it is transformed.

Runs in: the process of a notebook. Pure: it reads no table.
"""

from __future__ import annotations

import json

from feedline.loader.notebook.notebook_table import notebook_table
from feedline.spec import PipelineSpec
from feedline.spec.features import FeatureSpec


def pipeline_table(spec: PipelineSpec) -> str:
    """The pipeline as an HTML table, a row per feature."""
    counts = f"{len(spec.features):,} features, batches of {spec.batch.size:,} rows per lane"
    rows = [
        (each.name, each.group, _source(each), ", ".join(_call(call.to_yaml()) for call in each.ops))
        for each in spec.features
    ]
    return notebook_table(f"pipeline {spec.name}: {counts}", ("feature", "group", "reads", "ops"), rows)


def _source(feature: FeatureSpec) -> str:
    if feature.op is None:
        return feature.column or feature.expr or ""
    inputs = (item.column or item.expr or "" for item in feature.inputs)
    return f"{_call(feature.op.to_yaml())} of {', '.join(inputs)}"


def _call(call: object) -> str:
    """An op as a word, or with its parameters."""
    if not isinstance(call, dict):
        return str(call)
    [(name, parameters)] = call.items()
    return f"{name}: {json.dumps(parameters, ensure_ascii=False)}"
