"""Features may name the table's columns and, with a sample, the weight that it generates."""

from __future__ import annotations

import pyarrow as pa
import pytest
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.errors import SpecError
from feedline.planning.table_features import compile_spec, planned_schema

SCHEMA = pa.schema([("price", pa.float64()), ("user", pa.string())])


def spec_of(text: str) -> PipelineSpec:
    return parse_spec(completed(text), base_dir="/")


def test_a_sample_adds_its_weight():
    assert planned_schema(spec_of(""), SCHEMA) == SCHEMA
    sampled = planned_schema(spec_of("source: {table: data, sample: {fraction: 0.5}}\n"), SCHEMA)
    assert sampled.names == [*SCHEMA.names, "sample_weight"]


def test_a_group_names_columns_of_the_table():
    spec = spec_of("shuffle: {by: user}\ndedup: {profile: {columns: [prise]}}\n")
    with pytest.raises(SpecError, match=r"dedup\.profile\.columns.*: unknown column: got 'prise'.*price"):
        planned_schema(spec, SCHEMA)


def test_an_unknown_column_is_an_error_with_its_position():
    with pytest.raises(SpecError, match=r":\d+:\d+: features\.dense\.prise.*prise"):
        compile_spec(spec_of("features: {dense: {prise: []}}\n"), SCHEMA)


def test_features_are_compiled_in_the_order_of_the_file():
    features = compile_spec(spec_of("features: {dense: {price: []}, extra: {user: []}}\n"), SCHEMA)
    assert [output.name for output in features.outputs] == ["price", "user"]
    assert features.columns == ("price", "user")
