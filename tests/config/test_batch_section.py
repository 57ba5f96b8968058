"""The section `batch`: how many rows a step has, and which column's lengths choose them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator
from minimal_pipeline import completed

from feedline.config.pipeline_spec import PipelineSpec, json_schema, parse_spec
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError


def spec_of(batch: str, more: str = "") -> PipelineSpec:
    return parse_spec(completed(f"batch: {batch}\n{more}"))


def test_lengths_are_off_by_default_and_not_in_the_canonical_text():
    spec = spec_of("{size: 8}")
    assert (spec.batch.balance, spec.batch.lengths, spec.batch.bucket_rows) == (None, None, ())
    assert json.loads(spec.canonical())["batch"] == {"size": 8, "tail": "drop"}


@pytest.mark.parametrize(
    ("batch", "column", "most"),
    [
        ("{size: 8, balance: h}", "h", None),
        ("{size: 8, balance: {column: h}}", "h", None),
        ("{size: 8, balance: {column: h, max: 50}}", "h", 50),
    ],
)
def test_a_balanced_column_is_a_name_or_a_mapping(batch: str, column: str, most: int | None):
    spec = spec_of(batch)
    assert spec.batch.balance is not None
    assert (spec.batch.balance.column, spec.batch.balance.most, spec.batch.lengths) == (column, most, "h")
    assert PipelineSpec.from_canonical(spec.canonical()) == spec


@pytest.mark.parametrize("column", ["length: h", "balance: h", "length: h, balance: h"])
def test_each_bucket_has_its_own_rows(column: str):
    spec = spec_of(f"{{max_tokens: 100, buckets: [4, 10, 33], {column}}}")
    assert spec.batch.bucket_rows == (25, 10, 3)
    assert (spec.batch.size, spec.batch.lengths) == (25, "h")
    again = PipelineSpec.from_canonical(spec.canonical())
    assert again == spec
    assert again.batch == spec.batch.model_copy()


@pytest.mark.parametrize(
    ("batch", "valid"),
    [
        ("{size: 8, balance: h}", True),
        ("{size: 8, balance: {column: h, max: 4}}", True),
        ("{max_tokens: 9, buckets: [2, 4], length: h, longer: cap}", True),
        ("{}", False),
        ("{size: 8, max_tokens: 9, buckets: [4], length: h}", False),
        ("{size: 8, balance: {max: 4}}", False),
        ("{max_tokens: 9, buckets: [0], length: h}", False),
        ("{max_tokens: 9, buckets: [4], length: h, longer: cut}", False),
    ],
)
def test_the_json_schema_knows_the_keys(batch: str, valid: bool):
    assert (
        Draft202012Validator(json_schema()).is_valid(read_document(completed(f"batch: {batch}\n"), "p.yaml").value)
        == valid
    )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("{size: 8, balance: 3}", r"batch\.balance: must be a column, or a mapping with the keys column, max: got 3"),
        ("{size: 8, buckets: [4]}", r"batch\.buckets: needs batch\.max_tokens"),
        ("{max_tokens: 9, length: h}", r"batch\.buckets: missing key: max_tokens needs the bounds"),
        ("{max_tokens: 9, buckets: [4]}", r"batch\.length: missing key: buckets need the list column"),
        ("{max_tokens: 9, buckets: [], length: h}", r"batch\.buckets: must be a list of ascending lengths"),
        ("{max_tokens: 9, buckets: [4, 4], length: h}", r"batch\.buckets: must be a list of ascending lengths"),
        ("{max_tokens: 9, buckets: [2, 10], length: h}", r"max_tokens: is smaller than a bucket's bound: got 9"),
        ("{max_tokens: 9, buckets: [5, 6], length: h}", r"buckets: give two buckets the same rows .*got 1 of"),
        ("{size: 8, max_tokens: 9, buckets: [4], length: h}", r"batch\.size: contradicts max_tokens"),
        ("{max_tokens: 9, buckets: [4], length: h, tail: pad}", r"batch\.tail: cannot be pad with max_tokens"),
        ("{max_tokens: 9, buckets: [4], length: h, balance: g}", r"length: must be the column of balance: got 'h'"),
        ("{max_tokens: 9, buckets: [4], balance: {column: h, max: 3}}", r"balance: cannot have a max with buckets"),
    ],
)
def test_wrong_keys_are_refused_by_name(batch: str, message: str):
    with pytest.raises(SpecError, match=message):
        spec_of(batch)


@pytest.mark.parametrize("batch", ["{size: 8, balance: h}", "{max_tokens: 9, buckets: [4], length: h}"])
@pytest.mark.parametrize(
    ("shuffle", "message"),
    [
        ("off", "contradicts shuffle: off"),
        ("{rows: false}", "contradicts shuffle.rows: false"),
        ("{by: user}", "contradicts shuffle.by"),
    ],
)
def test_lengths_need_rows_that_are_permuted_one_by_one(batch: str, shuffle: str, message: str):
    with pytest.raises(SpecError, match=rf"batch\.(balance|length): {message}.*Remove one of the two"):
        spec_of(batch, f"shuffle: {shuffle}\n")
