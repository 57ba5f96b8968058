"""Filter and sample are bound to the table's columns; errors name their position."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.errors import SpecError
from feedline.planning.read_columns import bound_sample, bound_where

SCHEMA = pa.schema([("price", pa.float64()), ("day", pa.int64()), ("user", pa.string())])


def spec_of(source: str) -> PipelineSpec:
    return parse_spec(completed(f"source: {{table: data, {source}}}\n"), base_dir="/")


def test_a_pipeline_without_filter_and_sample_binds_nothing():
    spec = parse_spec(completed(""), base_dir="/")
    assert bound_where(spec, SCHEMA) is None
    assert bound_sample(spec, SCHEMA) is None


def test_a_filter_reads_its_columns():
    where = bound_where(spec_of('where: "day > 3 and user is not None"'), SCHEMA)
    assert where is not None
    assert set(where.columns) == {"day", "user"}
    other = bound_where(spec_of('where: "day > 3"'), SCHEMA, text="price > 1")
    assert other is not None
    assert set(other.columns) == {"price"}


@pytest.mark.parametrize(
    ("bind", "source", "path"),
    [
        (bound_where, 'where: "dya > 3"', "source.where"),
        (bound_sample, "sample: {fraction: 0.5, key: [dya]}", "source.sample.key"),
        (bound_sample, 'sample: {fraction: 0.5, where: "dya > 3"}', "source.sample.where"),
    ],
)
def test_errors_name_their_position(bind: Callable[..., object], source: str, path: str):
    spec = spec_of(source)
    with pytest.raises(SpecError, match=rf"^[^ ]+:\d+:\d+: {path}[^ ]*: .*dya"):
        bind(spec, SCHEMA)
