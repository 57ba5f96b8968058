"""`feedline plan --ops` shows compiled chains, shared steps, and measured costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_modules import own_modules
from test_compiled import SCHEMA, feature
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.compile.describe import chains
from feedline.transforms.registry.op import OpError
from feedline.workbench.explain.op_costs import describe_ops, ops_table


def text(spec: FeatureSpec) -> str:
    [chain] = chains([spec], SCHEMA)
    return chain.text()


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (
            feature("dense", "price", {"fill_null": 0}, "log1p"),
            "price: float32 → fill_null → float32 → log1p → float32 → dense float32",
        ),
        (feature("extra", "ts"), "ts: timestamp[us, UTC] → extra timestamp[us, UTC]"),
        (feature("dense", "hour", expr="ts.dt.hour() / 23"), "ts.dt.hour() / 23: float64 → dense float32"),
        (
            FeatureSpec(
                name="crossed",
                group="sparse",
                op=OpCall(op="cartesian", arguments='{"": 1000}'),
                inputs=(
                    FeatureInput(column="triple", ops=(OpCall(op="first_x", arguments='{"": 5}'),)),
                    FeatureInput(column="history"),
                ),
                ops=(OpCall(op="first_x", arguments='{"": 3}'),),
            ),
            (
                "cartesian(triple: list<int32>[3] → first_x → list<int32>, history: list<int32>) → list<int64> → "
                "first_x → list<int64> → sparse list<int64>"
            ),
        ),
        (
            FeatureSpec(
                name="clicks",
                group="sparse",
                op=OpCall(op="weighted"),
                inputs=(FeatureInput(column="history"), FeatureInput(column="scores")),
            ),
            (
                "weighted(history: list<int32>, scores: list<float64>) → weighted list<int32> → sparse "
                "struct<values: list<int64>, weights: list<float32>>"
            ),
        ),
    ],
)
def test_chains_show_their_types(spec: FeatureSpec, shown: str) -> None:
    assert text(spec) == shown


def test_shared_steps_name_the_sharers() -> None:
    specs = [
        feature("dense", "price", {"fill_null": 0}, "log1p"),
        feature("dense", "half", {"fill_null": 0}, {"clip": {"max": 2}}, column="price"),
        feature("dense", "same", {"fill_null": 0}, "log1p", column="price"),
        feature("dense", "other", {"fill_null": 1}, column="price"),
        feature("dense", "hour", expr="ts.dt.hour() / 23"),
        feature("dense", "again", "log1p", expr="ts.dt.hour() / 23"),
    ]
    found = {chain.name: (chain.shared, chain.sharers) for chain in chains(specs, SCHEMA)}
    assert found == {
        "price": (2, ("same",)),
        "half": (1, ("price", "same")),
        "same": (2, ("price",)),
        "other": (0, ()),
        "hour": (0, ("again",)),
        "again": (0, ("hour",)),
    }


FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"], "low": {"column": "price", "ops": [{"fill_null": 0}]}},
    "sparse": {"items": [{"python": {"function": "my_features:doubled", "form": "numpy", "gives": "int64"}}]},
}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "table").mkdir()
    table = pa.table(
        {
            "price": pa.array([1.0, None, 3.0] * 10, pa.float32()),
            "items": pa.array([[1, 2], [], [3]] * 10),
            "unread": pa.array([1] * 30),
        }
    )
    pq.write_table(table, tmp_path / "table" / "a.parquet")
    (tmp_path / "my_features.py").write_text("def doubled(values):\n    return values * 2\n")
    content = {
        "version": 1, "name": "ops", "allow_code": True,
        "source": {"table": "table", "where": "price > 1 or price is None"}, "features": FEATURES, "batch": {"size": 2},
    }  # fmt: skip
    file = tmp_path / "pipeline.yaml"
    file.write_text(json.dumps(content))
    with own_modules(tmp_path):
        yield file


def test_costs_are_measured_on_rows_of_a_run(pipeline: Path) -> None:
    facts = describe_ops(Pipeline.from_yaml(pipeline).plan().source)
    assert (facts["rows"], facts["chunks"]) == (20, 1)
    price, low, items = facts["features"]
    assert [one["name"] for one in facts["features"]] == ["price", "low", "items"]
    assert (price["values"], price["reads"], items["values"], items["reads"]) == (20, ["price"], 10, ["items"])
    assert price["steps"] == [
        {"op": None, "kind": "float", "dtype": "float32", "code": None},
        {"op": "fill_null", "kind": "float", "dtype": "float32", "code": None},
        {"op": "log1p", "kind": "float", "dtype": "float32", "code": None},
    ]
    assert low["shared"] == {"steps": 1, "features": ["price"]}
    assert items["steps"][1]["code"] == "my_features:doubled"
    assert all(one["ms_per_million_values"] > 0 for one in facts["features"])
    assert sum(one["share"] for one in facts["features"]) == pytest.approx(1)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["ms_per_million_rows"]["pass"] > 0


def test_the_command(pipeline: Path) -> None:
    run = CliRunner().invoke(app, ["plan", str(pipeline), "--ops", "--json"])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert [one["chain"] for one in facts["features"]] == [
        "price: float32 → fill_null → float32 → log1p → float32 → dense float32",
        "price: float32 → fill_null → float32 → dense float32",
        "items: list<int64> → python my_features:doubled → list<int64> → sparse list<int64>",
    ]
    run = CliRunner().invoke(app, ["plan", str(pipeline), "--ops"], env={"COLUMNS": "160"})
    assert run.exit_code == 0, run.output
    assert "Shared up to fill_null: price, low" in run.stdout
    assert "price: float32 → fill_null → log1p → dense " in run.stdout
    assert "items: list<int64> → python my_features:doubled → sparse " in run.stdout
    assert "CPU time of each chain alone on 20 rows (1 chunks)" in run.stdout


def test_unfitted_features_have_no_cost() -> None:
    facts = {
        "table": "t", "rows": 0, "chunks": 0,
        "ms_per_million_rows": {"features_alone": 0.0, "pass": None, "encode": None},
        "features": [
            {"name": "a", "group": "dense", "source": "a", "inputs": [], "steps": [], "dtype": "float32",
             "shared": {"steps": 0, "features": []},
             "ms_per_million_values": None, "share": None},
        ],
    }  # fmt: skip
    table, words = ops_table(facts).renderables
    assert "not fitted" in list(table.columns[2].cells)  # type: ignore[union-attr]
    assert "feedline fit" in str(words)


def several(op: str, *inputs: FeatureInput, arguments: str = "{}", then: tuple[OpCall, ...] = ()) -> FeatureSpec:
    return FeatureSpec(name="f", group="dense", op=OpCall(op=op, arguments=arguments), inputs=inputs, ops=then)


@pytest.mark.parametrize(
    ("spec", "chain"),
    [
        (feature("dense", "f", "log1p", column="country"), "f: [log1p]: "),
        (feature("categorical", "f", "log1p", column="price"), "f: log1p → [categorical]: "),
        (feature("dense", "f", {"python": "my_features:f"}, column="price"), "f: [python my_features:f]: "),
        (
            several("id_overlap_count", FeatureInput(column="history"), FeatureInput(column="price")),
            "f: [id_overlap_count](history, price): ",
        ),
        (
            several(
                "id_overlap_count",
                FeatureInput(column="history"),
                FeatureInput(column="history", ops=(OpCall(op="first_x", arguments='{"": 0}'),)),
            ),
            "f (input history → first_x): [first_x]: ",
        ),
    ],
)
def test_errors_mark_the_op_in_its_chain(spec: FeatureSpec, chain: str) -> None:
    with pytest.raises(OpError) as caught:
        chains([spec], SCHEMA)
    assert caught.value.message.startswith(chain)
    with pytest.raises(OpError) as caught:
        compile_features([spec], SCHEMA)
    assert caught.value.message.startswith(chain)


def test_a_feature_that_is_not_fitted_has_no_cost(pipeline: Path) -> None:
    """Its target is read by the fit alone: no block has that column."""
    content = json.loads(pipeline.read_text())
    content["features"]["dense"]["rate"] = {
        "column": "price",
        "ops": [{"cast": "int64"}, {"target_encoding": {"target": "unread", "folds": 1}}],
    }
    pipeline.write_text(json.dumps(content))
    facts = describe_ops(Pipeline.from_yaml(pipeline).plan().source)
    costs = {one["name"]: one["ms_per_million_values"] for one in facts["features"]}
    assert costs["rate"] is None
    assert costs["price"] > 0
    assert facts["ms_per_million_rows"]["pass"] is None
