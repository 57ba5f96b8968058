"""States, snapshots, counts, rebases and artifacts that version 0.1.0 saved: do runs still go on with them, to the bit?

The files below `saved/place`, and what is expected of them, were written by `saved/generate.py`, which says how. They
name a place below /tmp, so one test at a time has a copy there.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from saved.generate import FEW, HERE, PLACE, digests, set_times

from feedline import Pipeline
from feedline.fit_sets import load_old_set
from feedline.golden import check
from feedline.plan import Plan
from feedline.spec import load_spec
from feedline.warehouse import snapshot as snapshots
from feedline.warehouse.snapshot import Snapshot, take_snapshot

EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
COUNTED_BY = "2.1.0"  # counts are those of a Polars version


@pytest.fixture(autouse=True)
def place() -> Iterator[Path]:
    """A copy of what was saved, where it was saved."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        shutil.copytree(HERE / "place", PLACE)
        set_times(PLACE)
        yield PLACE
        shutil.rmtree(PLACE)


def refuse(*_: object) -> Any:
    raise AssertionError("expected this to be known: it was saved")


def batches(pipeline: Pipeline, plan: Plan, step: int) -> list[dict[str, list[Any]]]:
    few = zip(range(FEW), pipeline.batches(step=step, plan=plan), strict=False)
    return [digests(batch) for _, batch in few]


@pytest.mark.parametrize("name", ["plain", "fitted"])
def test_a_state_goes_on(name: str):
    pipeline, expected = Pipeline.from_yaml(PLACE / f"{name}.yaml"), EXPECTED[name]
    plan = pipeline.plan_for(expected["state"], map=refuse if pl.__version__ == COUNTED_BY else None)
    assert plan.fingerprint == expected["plan"]
    assert plan.features.fingerprint == expected["features"]
    assert plan.snapshot.id == expected["snapshot"]
    assert int(plan.selection.rows.sum()) == expected["rows"]
    assert batches(pipeline, plan, 0) == expected["first"]
    assert batches(pipeline, plan, expected["state"]["step"]) == expected["after"]


def test_a_rebased_state_goes_on():
    pipeline, expected = Pipeline.from_yaml(PLACE / "plain.yaml"), EXPECTED["rebased"]
    plan = pipeline.plan_for(expected["state"])
    assert (plan.fingerprint, plan.snapshot_name) == (expected["plan"], expected["snapshot"])
    assert batches(pipeline, plan, expected["state"]["step"]) == expected["after"]


def test_a_state_is_rebased_as_it_was():
    pipeline, expected = Pipeline.from_yaml(PLACE / "plain.yaml"), EXPECTED["rebased"]
    shutil.rmtree(PLACE / "plain" / "rebases")
    plan = pipeline.rebase(expected["before"])
    assert plan.snapshot_name == expected["snapshot"]
    assert plan.state_after(expected["before"]) == expected["state"]
    assert batches(pipeline, plan, expected["state"]["step"]) == expected["after"]


def test_a_snapshot_is_found(monkeypatch: pytest.MonkeyPatch):
    """By the table, without reading a footer, and by its name."""
    fresh = take_snapshot(str(PLACE / "table"))
    monkeypatch.setattr(snapshots, "read_footers", lambda uri, files, map: refuse() if files else ())
    for work_dir in ("plain", "fitted"):
        found = take_snapshot(str(PLACE / "table"), work_dir=str(PLACE / work_dir))
        assert found.id == EXPECTED["fitted"]["snapshot"] == fresh.id
        loaded = Snapshot.load(str(PLACE / work_dir), fresh.id)
        assert (loaded.uri, loaded.schema, loaded.files, loaded.row_groups) == (
            fresh.uri,
            fresh.schema,
            fresh.files,
            fresh.row_groups,
        )
        for name in fresh.file_columns:
            facts = loaded.column_facts(name)
            assert isinstance(facts, pa.StructArray)
            assert facts.equals(fresh.column_facts(name)), name


def test_fits_are_found_and_prove_themselves():
    path = PLACE / "fitted.yaml"
    before = load_old_set(str(PLACE / "fitted" / "artifacts"))
    assert before is not None
    report = Pipeline.from_yaml(path).fit(missing=True)
    assert (report.made, report.manifest) == (0, before.manifest)
    checked = check(load_spec(path, {}), ulps=0)
    assert (checked.passed, checked.features) == (True, 7), checked.text()
