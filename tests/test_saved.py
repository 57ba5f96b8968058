"""States, snapshots, counts, rebases, row identities, artifacts and usage that earlier commits saved load to the bit.

`saved/generate.py` wrote the files of each edition below `saved`, with what is expected of them, and says how. They
name a directory below /tmp, so one test at a time has a copy there.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from saved.facts import (
    FEW,
    digests,
    first_batches,
    op_fingerprints,
    plan_json,
    rebase_facts,
    remaining_requests,
    schema_digests,
    served_facts,
    short_digest,
    stream_digest,
)
from saved.generate import FIRST, FOURTH, SECOND, STEP, THIRD, WINDOW, Edition, rewrite_table, set_times

from feedline import FeedlineDataset, Pipeline
from feedline.artifacts.artifact_sets import load_old_set
from feedline.commands.plan.report import describe
from feedline.loader.state import state_of
from feedline.serving.golden_check import check
from feedline.spec import load_spec
from feedline.warehouse.optimize.usage import load_uses
from feedline.warehouse.snapshot import footer_waves
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot

COUNTED_BY = "2.1.0"  # counts are those of a Polars version
OLD: dict[str, Any] = json.loads((FIRST.files / "expected.json").read_text())
NEW: dict[str, Any] = json.loads((SECOND.files / "expected.json").read_text())
MIXED: dict[str, Any] = json.loads((THIRD.files / "expected.json").read_text())["mixed"]
BY_BYTES: dict[str, Any] = json.loads((FOURTH.files / "expected.json").read_text())


@contextmanager
def copied(edition: Edition) -> Iterator[Path]:
    """A copy of what was saved, where it was saved."""
    with edition.place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(edition.place, ignore_errors=True)
        shutil.copytree(edition.files / "place", edition.place)
        set_times(edition.place)
        yield edition.place
        shutil.rmtree(edition.place)


@pytest.fixture
def first() -> Iterator[Path]:
    with copied(FIRST) as place:
        yield place


@pytest.fixture
def second() -> Iterator[Path]:
    with copied(SECOND) as place:
        yield place


@pytest.fixture
def third() -> Iterator[Path]:
    with copied(THIRD) as place:
        yield place


@pytest.fixture
def fourth() -> Iterator[Path]:
    with copied(FOURTH) as place:
        yield place


def refuse(*_: object) -> Any:
    raise AssertionError("expected this to be known: it was saved")


def goes_on(path: Path, expected: dict[str, Any]) -> None:
    """A state has the plan and the batches that it had, without a row being counted again."""
    pipeline, state = Pipeline.from_yaml(path), expected["state"]
    plan = pipeline.plan_for(state, map=refuse if pl.__version__ == COUNTED_BY else None)
    assert plan.fingerprint == expected["plan"]
    assert plan.features.fingerprint == expected["features"]
    assert plan.snapshot.id == expected["snapshot"]
    assert int(plan.selection.rows.sum()) == expected["rows"]
    assert first_batches(pipeline, plan, 0) == expected["first"]
    assert first_batches(pipeline, plan, state["step"]) == expected["after"]


def goes_on_rebased(path: Path, expected: dict[str, Any]) -> None:
    pipeline, state = Pipeline.from_yaml(path), expected["state"]
    plan = pipeline.plan_for(state)
    assert (plan.fingerprint, plan.snapshot_name) == (expected["plan"], expected["snapshot"])
    assert first_batches(pipeline, plan, state["step"]) == expected["after"]


def snapshot_is_found(monkeypatch: pytest.MonkeyPatch, place: Path, work_dirs: tuple[str, ...], id: str) -> None:
    """By the table, without reading a footer, and by its name."""
    fresh = take_snapshot(str(place / "table"))
    monkeypatch.setattr(footer_waves, "read_footers", lambda uri, files, map: refuse() if files else ())
    for work_dir in work_dirs:
        found = take_snapshot(str(place / "table"), work_dir=str(place / work_dir))
        assert found.id == id == fresh.id
        loaded = Snapshot.load(str(place / work_dir), fresh.id)
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


# -- the first edition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "fitted"])
def test_a_state_continues(first: Path, name: str):
    goes_on(first / f"{name}.yaml", OLD[name])


def test_a_rebased_state_continues(first: Path):
    goes_on_rebased(first / "plain.yaml", OLD["rebased"])


def test_a_state_is_rebased_as_it_was(first: Path):
    pipeline, expected = Pipeline.from_yaml(first / "plain.yaml"), OLD["rebased"]
    shutil.rmtree(first / "plain" / "rebases")
    plan = pipeline.rebase(expected["before"])
    assert plan.snapshot_name == expected["snapshot"]
    assert plan.state_after(expected["before"]) == expected["state"]
    assert first_batches(pipeline, plan, expected["state"]["step"]) == expected["after"]


def test_a_snapshot_is_found(monkeypatch: pytest.MonkeyPatch, first: Path):
    snapshot_is_found(monkeypatch, first, ("plain", "fitted"), OLD["fitted"]["snapshot"])


def test_fits_are_found_and_verified(first: Path):
    path = first / "fitted.yaml"
    before = load_old_set(str(first / "fitted" / "artifacts"))
    assert before is not None
    report = Pipeline.from_yaml(path).fit(missing=True)
    assert (report.made, report.manifest) == (0, before.manifest)
    checked = check(load_spec(path, {}), ulps=0)
    assert (checked.passed, checked.features) == (True, 7), checked.text()


# -- the second edition -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keyless", "keyed", "fitted"])
def test_a_state_of_a_dataset_continues(second: Path, name: str):
    expected = NEW[name]
    goes_on(second / f"{name}.yaml", expected)
    plan = Pipeline.from_yaml(second / f"{name}.yaml").plan_for(expected["state"])
    environment = expected["state"]["environment"]
    state = state_of(plan.facts(), 0, STEP)
    assert {**state, "environment": environment} == expected["state"]
    assert [part.split()[0] for part in state["environment"].split(", ")] == [
        part.split()[0] for part in environment.split(", ")
    ]


@pytest.mark.slow
def test_a_dataset_continues(second: Path):
    expected = NEW["keyed"]
    with FeedlineDataset(second / "keyed.yaml") as dataset, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the state was saved in another environment")
        dataset.load_state_dict(expected["state"])
        assert [digests(batch) for batch in islice(dataset, FEW)] == expected["after"]
        state = dataset.state_dict()
    environment = {"environment": state["environment"]}
    assert state == {**expected["state"], **environment, "step": STEP + FEW}


@pytest.mark.filterwarnings("ignore:1 bad file left out of the plan")
def test_a_state_without_a_bad_file_continues(second: Path):
    goes_on(second / "skipping.yaml", NEW["skipping"])
    plan = Pipeline.from_yaml(second / "skipping.yaml").plan_for(NEW["skipping"]["state"])
    assert [[Path(bad.file).name, bad.rows] for bad in plan.skipped] == NEW["skipping"]["skipped"]


@pytest.mark.parametrize("name", ["keyless", "keyed"])
def test_a_rebased_state_of_a_dataset_continues(second: Path, name: str):
    rewrite_table(second)
    goes_on_rebased(second / f"{name}.yaml", NEW[name]["rebased"])


@pytest.mark.parametrize("name", ["keyless", "keyed"])
def test_recorded_identities_still_rebase(second: Path, name: str):
    """The same rows remain of the epoch. Their order, and the name of the rebase, are those of the rebasing version."""
    pipeline, state, expected = Pipeline.from_yaml(second / f"{name}.yaml"), NEW[name]["state"], NEW[name]["rebased"]
    shutil.rmtree(second / name / "rebases")
    rewrite_table(second)
    plan = pipeline.rebase(state)
    assert plan.snapshot.id == expected["snapshot"].partition("+")[0]
    assert rebase_facts(plan) == {"rest": expected["rest"], "rows": expected["rows"]}
    remaining = remaining_requests(pipeline, plan, state["step"])
    assert [len(remaining), short_digest("\n".join(remaining))] == expected["remaining"]


def test_a_snapshot_of_the_second_edition_is_found(monkeypatch: pytest.MonkeyPatch, second: Path):
    snapshot_is_found(monkeypatch, second, ("keyless", "keyed", "fitted"), NEW["fitted"]["snapshot"])


def test_an_artifact_set_is_found_and_verified(second: Path):
    path = second / "fitted.yaml"
    checked = check(load_spec(path, {}))  # a fit writes the vectors again where the processor is another one
    found = {"rows": checked.rows, "features": checked.features}
    assert (checked.passed, found) == (True, NEW["fitted"]["golden"]), checked.text()
    report = Pipeline.from_yaml(path).fit(missing=True)
    assert (report.made, report.manifest) == (0, NEW["fitted"]["manifest"])


@pytest.mark.parametrize("name", ["fitted", "shared"])
def test_rows_are_served_without_a_table(second: Path, name: str):
    """With the artifact set and the types of columns that training saved."""
    shutil.rmtree(second / "table")
    assert served_facts(Pipeline.from_yaml(second / f"{name}.yaml")) == NEW["served"][name]


@pytest.mark.parametrize("name", ["keyless", "keyed", "fitted"])
def test_plans_are_described_as_before(second: Path, name: str):
    """The plan of a state; that of a new run is of a newer version, which reads the same rows."""
    path, expected = second / f"{name}.yaml", NEW[name]["json"]
    plan = Pipeline.from_yaml(path).plan_for(NEW[name]["state"])
    facts = json.loads(json.dumps(describe(plan, world_size=1)))
    facts["counted"] = {key: facts["counted"][key] for key in ("row_groups", "rows")}
    assert {key: facts[key] for key in expected} == expected
    newest = plan_json(path)
    same = expected.keys() - {"plan", "splits", "blocks_per_lane", "bytes"}
    assert {key: newest[key] for key in same} == {key: expected[key] for key in same}
    assert newest["plan"] != expected["plan"]


@pytest.mark.parametrize("name", ["keyless", "keyed"])
def test_usage_is_found(second: Path, name: str):
    (use,) = load_uses(str(second / name), str(second / "table"))
    assert json.loads(json.dumps(dataclasses.asdict(use))) == NEW[name]["usage"]


# -- what needs no files ----------------------------------------------------------------------------------------------


def test_ops_keep_their_fingerprints(tmp_path: Path):
    found = op_fingerprints(tmp_path)
    assert {name: found.get(name) for name in NEW["ops"]} == NEW["ops"]


def test_the_json_schema_keeps_its_parts():
    """A change of what pipeline.yaml may say is named here, by section, definition or op; prose may change."""
    schema = Pipeline.json_schema()
    for section in ("shuffle", "fit", "artifacts"):
        assert schema["properties"][section].pop("default") == {}, "stated later than the sections were saved"
    found = schema_digests(schema)
    changed = {
        "definition ClusterSpec",  # limits of workers, classes of clusters, shares
        "section cluster",
        "definition BatchSpec",  # balance, and buckets of lengths
        "definition SourceSpec",  # `format: auto`
        "definition SampleSpec",  # `rest`
        "definition FitSpec",  # without `golden: synthetic`
        "definition feature",  # `dedup`
        "definition features_of_a_range",
        "definition ShuffleSpec",  # the default of `window_rows` depends on the plan's version
        "op python",  # `per_value`
    }
    same = NEW["schema"].keys() - changed
    assert {name: found.get(name) for name in same} == {name: NEW["schema"][name] for name in same}


# -- the third edition ------------------------------------------------------------------------------------------------


def test_a_state_of_plan_version_2_continues_on_the_same_streams(third: Path):
    path, state = third / "mixed.yaml", MIXED["state"]
    goes_on(path, MIXED)
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.plan_for(state)
    assert plan.version == MIXED["version"] == 2
    assert [stream_digest(pipeline, plan, epoch) for epoch in (0, 1)] == MIXED["streams"]


# -- the fourth edition -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["narrow", "wide"])
def test_a_state_of_plan_version_3_continues_on_the_same_streams(fourth: Path, name: str):
    path, expected = fourth / f"{name}.yaml", BY_BYTES[name]
    goes_on(path, expected)
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.plan_for(expected["state"])
    assert plan.version == expected["version"] == 3
    assert dataclasses.asdict(plan.window) == expected["window"]
    assert (plan.window == WINDOW) == (name == "wide")
    assert [stream_digest(pipeline, plan, epoch) for epoch in (0, 1)] == expected["streams"]
