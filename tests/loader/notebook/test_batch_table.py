"""A batch is shown with what its tensors hold; a schema, a plan and a pipeline as tables of their parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from minimal_pipeline import MINIMAL
from table_reader import TableReader
from toy_ops import written

from feedline import Batch, Pipeline
from feedline.loader.notebook import batch_table as module
from feedline.spec import parse_spec

DENSE = {"dense_0": "dense_0", "dense_1": "dense_1", "<b>": "dense_2"}
FEATURES: dict[str, Any] = {
    "dense": {name: {"column": column, "ops": [{"fill_null": 0}]} for name, column in DENSE.items()},
    "categorical": {"id_0": [{"modulo": 100}], "id_1": [{"modulo": 1_000}]},
    "sparse": {"hist_0": [{"first_x": 20}], "hist_1": []},
    "label": {"clicked": []},
    "extra": ["request_id", "str_0"],
}


def batch_of(tmp_path: Path, clicks: Path, **keys: Any) -> Batch:
    keys = {"features": FEATURES, "batch": {"size": 256}, **keys}
    return next(iter(Pipeline.from_yaml(written(tmp_path, clicks, **keys)).batches()))


def rows_of(html: str) -> dict[str, list[str]]:
    return {row[0]: row for row in TableReader(html).rows}


@pytest.mark.parametrize("dedup", [False, True])
def test_a_batch_is_shown_with_its_values(tmp_path: Path, clicks: Path, dedup: bool):
    keys: dict[str, Any] = {}
    if dedup:
        keys = {"shuffle": {"by": "user_id"}, "dedup": {"user": {"columns": ["dense_1", "hist_0", "id_0"]}}}
    batch = batch_of(tmp_path, clicks, **keys)
    shown = rows_of(batch._repr_html_())
    assert [*shown] == ["feature", *batch.keys()]
    plain = batch.expanded()
    for name in ("dense_0", "dense_1", "id_0", "id_1", "clicked", "request_id"):
        values = plain[name].tolist()
        finite = [value for value in values if not math.isnan(value)]
        found = shown[name]
        assert found[5:] == [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values[:3]]
        low, high = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in (min(finite), max(finite)))
        assert found[4] == f"{low} … {high}"
        assert found[1].split(",")[0] == batch.schema[name].group
    for name in ("hist_0", "hist_1"):
        lists = plain.sparse[name]
        for row in range(3):
            values = lists.values[lists.offsets[row] : lists.offsets[row + 1]].tolist()
            more = ", …" if len(values) > 6 else ""
            assert shown[name][5 + row] == f"[{', '.join(map(str, values[:6]))}{more}]"
        assert shown[name][3] == "int64"
    assert shown["dense_0"][2:4] == ["[256]", "float32"]
    assert ("unique" in shown["dense_1"][2]) == dedup
    assert shown["str_0"][3:6] == ["large_string", "", plain.extra["str_0"][0].as_py()]


def test_padding_and_wide_batches(tmp_path: Path, clicks: Path, monkeypatch):
    batch = list(
        Pipeline.from_yaml(
            written(tmp_path, clicks, features=FEATURES, batch={"size": 12_000, "tail": "pad"})
        ).batches()
    )[-1]
    padding = batch.rows - int(batch.valid.sum())
    assert padding
    assert f"{padding:,} of them padding" in batch._repr_html_()
    monkeypatch.setattr(module, "_FEATURES", 2)
    assert len(TableReader(batch._repr_html_()).rows) == 3
    assert "the first 2 of 10 features" in batch._repr_html_()


def test_a_schema_and_a_plan_are_tables(tmp_path: Path, clicks: Path):
    pipeline = Pipeline.from_yaml(written(tmp_path, clicks, features=FEATURES, batch={"size": 256}))
    schema = rows_of(pipeline.schema._repr_html_())
    assert schema["id_1"] == ["id_1", "categorical", "int64", "1", "1", "1,000", "", schema["id_1"][7]]
    assert "modulo" in schema["id_1"][7]
    plan = pipeline.plan(world_size=2)
    facts = plan.facts()
    shown = rows_of(plan._repr_html_())
    assert shown["rows"][1] == "20,000"
    assert shown["steps of an epoch"][1] == f"{facts.steps:,}"
    assert shown["snapshot"][1] in (facts.snapshot, f"{facts.snapshot[:59]}…")
    assert plan._repr_html_() == facts._repr_html_()


def test_a_pipeline_is_a_table_of_its_features():
    assert [*rows_of(Pipeline(parse_spec(MINIMAL))._repr_html_())] == ["feature", "price"]
