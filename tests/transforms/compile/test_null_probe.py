"""Features that a null in one of their columns makes null are found by computing them on probe rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from feedline.config.features import read_features
from feedline.config.yaml_document import Document, Problems
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.compile.null_probe import null_leaks

# -- what features do with nulls ----------------------------------------------------------------------------------

SCHEMA = pa.schema(
    {
        "x": pa.float32(),
        "i": pa.int64(),
        "s": pa.string(),
        "d": pa.date32(),
        "ts": pa.timestamp("us", "UTC"),
        "b": pa.bool_(),
        "ids": pa.list_(pa.int64()),
        "user": pa.struct({"age": pa.int32()}),
    }
)


@pytest.mark.parametrize(
    ("group", "body", "leaks"),
    [
        ("dense", {"x": ["log1p"]}, {"x"}),
        ("dense", {"x": [{"fill_null": 0}, "log1p"]}, set()),
        ("dense", {"x": ["log1p", {"fill_null": 0}]}, set()),
        ("dense", {"x": [{"clip": {"min": 0, "max": 1}}]}, {"x"}),
        ("dense", {"x": ["standardize"]}, {"x"}),
        ("dense", {"x": ["fill_median"]}, set()),
        ("label", {"b": []}, {"b"}),
        ("categorical", {"i": []}, {"i"}),
        ("categorical", {"s": [{"hash_bucket": 10}]}, {"s"}),
        ("categorical", {"s": [{"hash_bucket": 10}, {"fill_null": 3}]}, set()),
        ("categorical", {"s": ["vocabulary"]}, set()),
        ("dense", {"n": {"column": "s", "ops": [{"cast": "float32"}]}}, {"s"}),
        ("dense", {"h": {"expr": "ts.dt.hour()"}}, {"ts"}),
        ("dense", {"h": {"expr": "d.dt.weekday()"}}, {"d"}),
        ("dense", {"z": {"expr": "x + i"}}, {"x", "i"}),
        ("dense", {"z": {"expr": "x is None"}}, set()),
        ("dense", {"z": {"expr": 'user["age"] + i'}}, {"i"}),
        ("dense", {"z": {"expr": "i / (i - 1)"}}, {"i"}),
        ("dense", {"v": {"column": "ids", "ops": [{"pad": 3}]}}, set()),
        ("sparse", {"ids": []}, set()),
        ("extra", {"x": []}, set()),
        ("categorical", {"c": {"op": {"hashed_cross": 100}, "inputs": ["i", "s"]}}, {"i", "s"}),
        # the plain row cannot be computed: of one column the null tells all the same, of several nothing is said
        ("dense", {"n": {"expr": 's.str.to_date("%Y-%m-%d").dt.day()'}}, {"s"}),
        ("dense", {"n": {"expr": 's.str.to_date("%Y-%m-%d").dt.day() + i'}}, set()),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),  # sets have no order
)
def test_nulls_that_features_cannot_hold_are_reported(group: str, body: dict[str, Any], leaks: set[str]):
    document = Document(file="p.yaml", value={"features": {group: body}})
    problems = Problems(document)
    features = read_features(document, problems)
    problems.raise_all()
    compiled = compile_features(features, SCHEMA)
    found = null_leaks(compiled, SCHEMA.names)
    assert {leak.column for leak in found} == leaks
    assert all(leak.always is (len(compiled.outputs[0].reads) == 1) for leak in found)


def test_a_null_beside_others_is_probed_alone():
    """Columns that no feature reads beside others share a probe row; `x` and `i` do not."""
    features = {"dense": {"x": [], "z": {"expr": "when(i is None, x, 0.0)"}, "n": {"column": "i", "ops": []}, "b": []}}
    document = Document(file="p.yaml", value={"features": features})
    problems = Problems(document)
    specs = read_features(document, problems)
    problems.raise_all()
    found = null_leaks(compile_features(specs, SCHEMA), SCHEMA.names)
    assert [(leak.feature, leak.column, leak.always) for leak in found] == [
        ("x", "x", True),
        ("n", "i", True),
        ("b", "b", True),
    ]
