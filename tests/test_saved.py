"""A state, a snapshot, counts, a fit and a cache that were saved load to the bit.

`saved/generate.py` wrote the files below `saved/place`, with what is expected of them, and says how. They name a
directory below /tmp, so one test at a time has a copy there.
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
from saved.facts import first_batches, op_fingerprints, served_facts
from saved.generate import FILES, PLACE, STEP, set_times

from feedline import Pipeline
from feedline.blocks import compute
from feedline.config import load_spec
from feedline.serving.golden_check import check
from feedline.warehouse.snapshot import take
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

COUNTED_BY = "2.1.0"  # counts are those of a Polars version
EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text())


@pytest.fixture
def place() -> Iterator[Path]:
    """A copy of what was saved, where it was saved."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        shutil.copytree(FILES / "place", PLACE)
        set_times(PLACE)
        yield PLACE
        shutil.rmtree(PLACE)


def refuse(*_: object) -> Any:
    raise AssertionError("expected this to be known: it was saved")


def test_a_state_continues(place: Path):
    """It has the plan and the batches that it had, without a row being counted again."""
    pipeline, state = Pipeline.from_yaml(place / "saved.yaml"), EXPECTED["state"]
    plan = pipeline.plan_for(state, map=refuse if pl.__version__ == COUNTED_BY else None)
    assert (plan.fingerprint, plan.features_fingerprint) == (EXPECTED["plan"], EXPECTED["features"])
    assert plan.facts().rows == EXPECTED["rows"]
    assert first_batches(pipeline, plan, 0) == EXPECTED["first"]
    assert first_batches(pipeline, plan, STEP) == EXPECTED["after"]


def test_cached_features_are_found(monkeypatch: pytest.MonkeyPatch, place: Path):
    """In the environment that computed them, whatever this machine's is, and nothing is computed again."""
    monkeypatch.setattr(compute, "check_environment", lambda expected: None)

    def entries() -> list[Path]:
        return sorted(path.relative_to(place) for path in (place / "cache").rglob("*.entry"))

    pipeline = Pipeline.from_yaml(place / "saved.yaml")
    environment = tuple((name, value) for name, value in EXPECTED["environment"])
    plan, before = pipeline.plan_for(EXPECTED["state"]).in_environment(environment), entries()
    assert before
    assert first_batches(pipeline, plan, 0) == EXPECTED["first"]
    assert entries() == before


def test_a_snapshot_is_found(monkeypatch: pytest.MonkeyPatch, place: Path):
    """By the table, without reading a footer, and by its name."""
    fresh = take_snapshot(str(place / "table"))
    monkeypatch.setattr(take, "read_footers", lambda uri, files, map: refuse() if files else ())
    found = take_snapshot(str(place / "table"), work_dir=str(place / "work"))
    assert found.id == EXPECTED["snapshot"] == fresh.id
    loaded = Snapshot.load(str(place / "work"), fresh.id)
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


def test_a_fit_is_found_and_verified(place: Path):
    path = place / "saved.yaml"
    checked = check(load_spec(path, {}))  # a fit writes the vectors again where the processor is another one
    assert (checked.passed, [checked.rows, checked.features]) == (True, EXPECTED["golden"]), checked.text()
    report = Pipeline.from_yaml(path).fit(missing=True)
    assert (report.made, report.manifest) == (0, EXPECTED["manifest"])


def test_rows_are_served_without_a_table(place: Path):
    """With the artifact set and the types of columns that training saved."""
    shutil.rmtree(place / "table")
    assert served_facts(Pipeline.from_yaml(place / "saved.yaml")) == EXPECTED["served"]


def test_ops_keep_their_fingerprints(tmp_path: Path):
    found = op_fingerprints(tmp_path)
    assert {name: found.get(name) for name in EXPECTED["ops"]} == EXPECTED["ops"]
