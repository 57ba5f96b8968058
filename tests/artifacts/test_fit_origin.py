"""What a manifest records of the rows of a fit, and reads back."""

from __future__ import annotations

import json

from feedline.artifacts.fit_origin import FitOrigin
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.reading.seen_rows import TableRows

SAMPLE = {"fraction": 0.5, "where": None, "seed": 3, "key": ["a"]}


def test_origins_are_read_back():
    origin = FitOrigin(table="/w/t", snapshot="s", where="a > 1", sample=SAMPLE, rows=7, named=("/w/t/b",), exclude="e")
    assert FitOrigin.from_json(json.loads(json.dumps(origin.to_json()))) == origin
    assert "exclude" not in FitOrigin(table="/w/t", snapshot="s", where=None, sample=None, rows=7).to_json()


def test_rows_do_not_depend_on_the_snapshot():
    origin = FitOrigin(table="/w/t", snapshot="s", where="a > 1", sample=SAMPLE, rows=7, named=("/w/t/b",))
    sample = Sample(fraction=0.5, where=None, seed=3, key=("a",))
    assert origin.table_rows == TableRows(root="/w/t", sources=("/w/t/b",), where="a > 1", sample=sample)
