"""Are entries named by everything that decides their bytes, and by nothing else?"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_modules import own_modules

from feedline import Pipeline
from feedline.blocks.cache.entry_names import SEGMENT_ROWS, EntryNames, Segment, segments
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.planning.plan import Plan
from feedline.warehouse.parquet.stored_names import StoredField, StoredNames
from feedline.warehouse.reading.fragment import Fragment

SEGMENT = Segment(0, 10, 0, 10)


def pipeline_of(folder: Path, source: dict[str, Any] | None = None, **changes: Any) -> Pipeline:
    table = folder / "table"
    if not table.exists():
        table.mkdir()
        pq.write_table(pa.table({"price": [0.5] * 10, "item": [*range(10)], "label": [1.0] * 10}), table / "a.parquet")
    features = {"dense": {"price": ["log1p"]}, "categorical": {"item": [{"modulo": 7}]}, "label": {"label": []}}
    spec: dict[str, Any] = {
        "version": 1,
        "name": "names",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table), **(source or {})},
        "features": features,
        "batch": {"size": 2},
    }
    return Pipeline.from_dict(spec | changes)


def plan_of(folder: Path, source: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return pipeline_of(folder, source, **changes).plan()


def names_of(plan: Plan) -> EntryNames:
    return EntryNames(plan.source.job, compile_job(plan.source.job))


def fragment_of(plan: Plan) -> Fragment:
    return plan.request(next(iter(plan.source.schedule(0).blocks(0))), 0).pieces[0].fragment


def digest_of(plan: Plan) -> str:
    return names_of(plan).group(fragment_of(plan), SEGMENT).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": {"seed": 7}},
        {"shuffle": "off"},
        {"batch": {"size": 5}},
        {"lanes": 2},
        {"name": "another"},
    ],
)
def test_what_does_not_decide_bytes_is_not_named(changes: dict[str, Any], tmp_path: Path) -> None:
    one, other = plan_of(tmp_path), plan_of(tmp_path, **changes)
    assert names_of(one).columns == names_of(other).columns
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    "source",
    [{"where": "item < 9"}, {"sample": {"fraction": 0.9, "seed": 1}}, {"sample": {"fraction": 0.9, "seed": 2}}],
)
def test_the_selected_rows_are_named(source: dict[str, Any], tmp_path: Path) -> None:
    assert digest_of(plan_of(tmp_path)) != digest_of(plan_of(tmp_path, source))
    assert digest_of(plan_of(tmp_path, {"where": "item < 8"})) != digest_of(plan_of(tmp_path, source))


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 1},
        {"mtime_ns": 1},
        {"footer_digest": b"x"},
        {"path": "b.parquet"},
        {"table": "/elsewhere"},
        {"row_groups": (3,)},
        {"partition": (("day", 1),)},
        {"partition": (("day", "1"),)},
        {"stored_names": StoredNames.of([StoredField("price", "x", None)], by_id=False)},
    ],
)
def test_the_file_and_its_row_group_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    other = names_of(plan).group(replace(fragment_of(plan), **change), SEGMENT)
    assert other.digest != digest_of(plan)


def test_a_decoder_that_was_chosen_is_named(tmp_path: Path) -> None:
    """Who leaves decoding to pyarrow does not get what the kernel has decoded."""
    one, other = plan_of(tmp_path), plan_of(tmp_path, {"decoder": "arrow"})
    assert names_of(one).columns == names_of(other).columns
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(plan_of(tmp_path, {"decoder": "auto"}))


def test_the_environment_is_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for index, (name, _) in enumerate(plan.source.job.environment):
        environment = (*plan.source.job.environment[:index], (name, "other"), *plan.source.job.environment[index + 1 :])
        names = EntryNames(replace(plan.source.job, environment=environment), compile_job(plan.source.job))
        assert names.group(fragment_of(plan), SEGMENT).digest != digest_of(plan)


@pytest.mark.parametrize(
    "feature",
    [
        ["log"],
        [{"clip": {"min": 0, "max": 1}}, "log1p"],
        {"column": "item"},
        {"column": "price", "on_nonfinite": "error"},
    ],
)
def test_a_feature_is_named_by_its_chain_and_no_other(feature: object, tmp_path: Path) -> None:
    one = names_of(plan_of(tmp_path)).columns
    changed = {"dense": {"price": feature}, "categorical": {"item": [{"modulo": 7}]}, "label": {"label": []}}
    other = names_of(plan_of(tmp_path, features=changed)).columns
    assert other["price"] != one["price"]
    assert {name: other[name] for name in ("item", "label")} == {name: one[name] for name in ("item", "label")}


def coded_plan(folder: Path) -> Plan:
    """A plan of which `price` calls a function beside pipeline.yaml."""
    plan_of(folder)
    function = {"function": "named_ops:twice", "gives": "float64"}
    features = {"dense": {"price": [{"python": function}]}, "label": {"label": []}}
    spec = {"version": 1, "name": "names", "work_dir": "work", "source": {"table": "table"}, "batch": {"size": 2}}
    spec |= {"features": features, "allow_code": True, "cache": {"dir": str(folder / "cache"), "mode": "features"}}
    (folder / "pipeline.yaml").write_text(json.dumps(spec))
    return Pipeline.from_yaml(folder / "pipeline.yaml").plan()


def coded(folder: Path) -> EntryNames:
    """Its names in a new process."""
    with own_modules(folder):
        return names_of(coded_plan(folder))


def test_users_functions_are_named_with_what_they_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_ops.py").write_text("from helper import BY\ndef twice(x): return x * BY\n")
    (tmp_path / "helper.py").write_text("BY = 2\n")
    names = coded(tmp_path)
    assert names.obstacles == {}
    assert coded(tmp_path).columns == names.columns
    (tmp_path / "helper.py").write_text("BY = 3\n")
    changed = coded(tmp_path)
    assert changed.columns["price"] != names.columns["price"]
    assert changed.columns["label"] == names.columns["label"]
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    assert coded(tmp_path).columns["price"] != changed.columns["price"]


def test_nothing_is_kept_of_functions_that_were_reloaded(tmp_path: Path) -> None:
    """As notebooks do, which change functions in place: a job that runs computes something else from then on."""
    module = tmp_path / "named_ops.py"
    module.write_text("def twice(x): return x * 2\n")
    with own_modules(tmp_path):
        plan = coded_plan(tmp_path)
        names = names_of(plan)
        assert names.is_current()
        [block, *_] = plan.source.schedule(0).blocks(0)
        run_block(plan.source.job, plan.request(block, 0), "block", False)
        [entry] = (tmp_path / "cache").rglob("*.entry")
        entry.unlink()
        module.write_text("def twice(x): return x * 22\n")
        sys.path.append(str(tmp_path))
        try:
            importlib.reload(sys.modules["named_ops"])
        finally:
            sys.path.remove(str(tmp_path))
        assert not names.is_current()
        run_block(plan.source.job, plan.request(block, 0), "block", False)
    assert not [*(tmp_path / "cache").rglob("*.entry")]


def test_users_functions_that_no_name_covers_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "named_ops.py").write_text("def twice(x): return eval('x * 2')\n")
    names = coded(tmp_path)
    assert set(names.columns) == {"label"}
    assert names.obstacles == {"price": "named_ops: eval in line 1 may load any code"}


def test_types_are_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other" / "table").mkdir(parents=True)
    table = pa.table({"price": pa.array([0.5] * 10, pa.float32()), "item": [*range(10)], "label": [1.0] * 10})
    pq.write_table(table, tmp_path / "other" / "table" / "a.parquet")
    assert (
        names_of(plan_of(tmp_path / "one")).columns["price"] != names_of(plan_of(tmp_path / "other")).columns["price"]
    )


@pytest.mark.parametrize("dedup", [{}, {"dedup": {"g": {"columns": ["item", "user"]}}, "shuffle": "off"}])
def test_types_of_what_decides_which_rows_a_fit_has_seen_are_named(tmp_path: Path, dedup: dict[str, Any]) -> None:
    """0.1 as float32 is above 0.1 once a file has made the column float64."""
    (tmp_path / "table").mkdir()

    def add(name: str, dtype: pa.DataType) -> EntryNames:
        columns = {"item": [1, 2] * 5, "label": [0.0, 1.0] * 5, "user": [*range(10)]}
        table = pa.table({**columns, "price": pa.array([0.1, 0.5] * 5, dtype)})
        pq.write_table(table, tmp_path / "table" / name)
        op = {"target_encoding": {"target": "label", "fold_by": "user", "folds": 2}}
        features = {"dense": {"rate": {"op": op, "inputs": ["item"]}}, "label": {"label": []}}
        pipeline = pipeline_of(tmp_path, features=features, fit={"where": "price > 0.1"}, **dedup)
        if not manifests:
            pipeline.fit()
        plan = pipeline.plan()
        assert plan.source.job.artifacts.manifest is not None
        assert compile_job(plan.source.job).read.marks
        manifests.add(plan.source.job.artifacts.manifest)
        return names_of(plan)

    manifests: set[str] = set()
    narrow, wide = add("a.parquet", pa.float32()), add("b.parquet", pa.float64())
    assert len(manifests) == 1, "the fit is the same"
    assert narrow.columns["label"] == wide.columns["label"]
    assert narrow.columns["rate"] != wide.columns["rate"]
    assert set(narrow.runs) == set(dedup.get("dedup", {}))
    assert not set(narrow.runs.values()).intersection(wide.runs.values())


def test_features_of_groups_are_named_by_their_runs(tmp_path: Path) -> None:
    """By what is compared, and not by the group's other features."""
    changes: dict[str, Any] = {"dedup": {"g": {"columns": ["price", "item"]}}, "shuffle": "off"}
    plain, grouped = names_of(plan_of(tmp_path, shuffle="off")), names_of(plan_of(tmp_path, **changes))
    assert not plain.runs
    assert grouped.columns["label"] == plain.columns["label"]
    assert not {*grouped.columns.values(), *grouped.runs.values()}.intersection(
        {plain.columns["price"], plain.columns["item"]}
    )
    more = {"dense": {"price": ["log1p"]}, "categorical": {"item": [{"modulo": 8}]}, "label": {"label": []}}
    other = names_of(plan_of(tmp_path, **changes, features=more))
    assert (other.runs, other.columns["price"]) == (grouped.runs, grouped.columns["price"])
    by = names_of(plan_of(tmp_path, **{**changes, "shuffle": {"by": "item"}}))
    fewer = names_of(plan_of(tmp_path, **changes, features={**more, "categorical": {}}))
    for names in (by, fewer):
        assert names.runs["g"] != grouped.runs["g"]
        assert names.columns["price"] != grouped.columns["price"]


def test_segments_hold_the_rows_that_are_needed() -> None:
    kept = 2 * SEGMENT_ROWS + 10
    found = [*segments(kept, SEGMENT_ROWS - 3, kept)]
    assert found == [
        Segment(0, SEGMENT_ROWS, SEGMENT_ROWS - 3, SEGMENT_ROWS),
        Segment(SEGMENT_ROWS, SEGMENT_ROWS, 0, SEGMENT_ROWS),
        Segment(2 * SEGMENT_ROWS, 10, 0, 10),
    ]
    assert [each.is_whole for each in found] == [False, True, True]
