"""A pipeline is shown by its features: what they read, and their ops."""

from __future__ import annotations

from table_reader import TableReader

from feedline.loader.notebook.pipeline_table import pipeline_table
from feedline.spec import parse_spec

TEXT = """
version: 1
name: "<i>small</i>"
source: {table: data}
features:
  dense:
    price: [{fill_null: 0}, log1p]
    ratio: {expr: a / b, ops: [{clip: {min: 0, max: 1}}]}
    overlap: {op: id_overlap_count, inputs: [left, {column: right, ops: [{first_x: 3}]}]}
  sparse: {history: []}
  label: {clicked: []}
batch: {size: 8}
"""


def test_features_with_their_sources_and_ops():
    read = TableReader(pipeline_table(parse_spec(TEXT)))
    assert read.texts["caption"] == "pipeline <i>small</i>: 5 features, batches of 8 rows per lane"
    assert read.rows == [
        ["feature", "group", "reads", "ops"],
        ["price", "dense", "price", "fill_null: 0, log1p"],
        ["ratio", "dense", "a / b", 'clip: {"max": 1, "min": 0}'],
        ["overlap", "dense", "id_overlap_count of left, right", ""],
        ["history", "sparse", "history", ""],
        ["clicked", "label", "clicked", ""],
    ]
