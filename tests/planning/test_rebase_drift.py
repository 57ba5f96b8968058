"""Rebasing where more than rows changed: types of keys and columns, columns that files lack, the saved snapshot."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from rewritten import Rewritten, state_at, steps

from feedline import Pipeline
from feedline.errors import SpecError, StateError, StoreError
from feedline.loader.wire.facts import Hello
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.reading.fragment import fragment_at
from feedline.warehouse.rebase.recorded_rows import Records


def rebased(pipeline: Pipeline, state: dict[str, Any]) -> list[int]:
    """What is left of the epoch, delivered by the plan that the rebased state names."""
    after = pipeline.rebase(state).state_after(state)
    return steps(pipeline, pipeline.plan_for(after), after["epoch"], after["step"])


# -- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "added"),
    [
        ({}, {}, "month=all"),
        ({"partitions": {"month": "int"}}, {"partitions": {"month": "string"}}, None),
        ({"partitions": {"month": "string"}}, {}, None),
    ],
    ids=["a folder that is no number", "declared otherwise", "declared no more"],
)
def test_a_partition_key_that_changed_its_type(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], added: str | None
):
    """The rewritten files are still those of the same partition: no row comes twice."""
    place = Rewritten(tmp_path)
    for month in range(1, 4):
        place.write(f"month=0{month}/a.parquet", place.new_ids(60))
    plan = place.pipeline(source=first).plan()
    before = steps(place.pipeline(source=first), plan, 0, 0, 3)
    for month in range(1, 4):
        rows = place.files[f"month=0{month}/a.parquet"]
        place.remove(f"month=0{month}/a.parquet")
        place.write(f"month=0{month}/b.parquet", rows[::-1][:50])
    if added is not None:
        place.write(f"{added}/a.parquet", place.new_ids(20))
    pipeline = place.pipeline(source=then)
    assert before
    after = rebased(pipeline, state_at(plan, 0, 3))
    assert after
    assert Counter(after) == Counter(set(place.ids) - set(before))


def test_a_partition_key_that_files_no_longer_refine(tmp_path: Path):
    """The files' own string column made the key a string; the new files lack it, and the key is an integer."""
    place = Rewritten(tmp_path)

    def write(name: str, rows: list[int], *, key: bool) -> None:
        place.write(name, rows)
        table = pq.read_table(place.table / name, partitioning=None)
        if key:
            pq.write_table(table.append_column("month", pa.array(["01"] * len(rows))), place.table / name)

    write("month=01/a.parquet", place.new_ids(100), key=True)
    pipeline = place.pipeline()
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 2)
    place.remove("month=01/a.parquet")
    write("month=01/b.parquet", list(range(90)), key=False)
    assert Counter(rebased(pipeline, state_at(plan, 0, 2))) == Counter(set(range(90)) - set(before))


# -- columns --------------------------------------------------------------------------------------------------------


def cast(place: Rewritten, name: str, column: str, kind: pa.DataType) -> None:
    table = pq.read_table(place.table / name, partitioning=None)
    index = table.schema.get_field_index(column)
    table = table.set_column(index, column, table[column].cast(kind))
    pq.write_table(table, place.table / name, row_group_size=64)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"where": "x < 12.3 or keep != 0"}, "'x', which source.where uses, .* got double, expected float"),
        (
            {"sample": {"fraction": 0.5, "where": "x < 12.3"}},
            "'x', which source.sample.where uses, .* got double, expected float",
        ),
    ],
)
def test_a_filter_whose_literals_change_their_meaning(tmp_path: Path, source: dict[str, Any], message: str):
    place = Rewritten(tmp_path)
    place.fill()
    pipeline = place.pipeline(source=source)
    plan = pipeline.plan()
    steps(pipeline, plan, 0, 0, 5)
    place.write("ds=9/0.parquet", place.new_ids(30))
    cast(place, "ds=9/0.parquet", "x", pa.float64())
    with pytest.raises(StateError, match=message):
        pipeline.rebase(state_at(plan, 0, 5))


@pytest.mark.parametrize(
    "source",
    [{"where": "keep * 100 != 0"}, {"sample": {"fraction": 0.5, "key": ["x", "keep"]}}],
    ids=["where", "sample"],
)
def test_widths_that_make_no_difference(tmp_path: Path, source: dict[str, Any]):
    place = Rewritten(tmp_path)
    place.fill()
    features = {"extra": {"id": [], "name": []}}
    pipeline = place.pipeline(source=source, features=features)
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 5)
    place.delete("ds=1/0.parquet")
    cast(place, "ds=1/0.parquet", "keep", pa.int64())
    if "sample" in source:
        cast(place, "ds=1/0.parquet", "x", pa.float64())
    after = rebased(pipeline, state_at(plan, 0, 5))
    assert Counter(after) == Counter(set(steps(pipeline, pipeline.plan(), 0, 0)) - set(before))


def keyless(place: Rewritten, name: str) -> None:
    """A file of the time before there was a key."""
    table = pq.read_table(place.table / name, partitioning=None)
    pq.write_table(table.drop_columns(["key"]), place.table / name, row_group_size=64)


def keyed(place: Rewritten, name: str, rows: list[int]) -> None:
    place.write(name, rows)
    table = pq.read_table(place.table / name, partitioning=None)
    pq.write_table(table.append_column("key", table["id"]), place.table / name, row_group_size=64)


@pytest.fixture
def drifted(tmp_path: Path) -> Rewritten:
    place = Rewritten(tmp_path)
    for day in range(3):
        keyed(place, f"ds={day}/0.parquet", place.new_ids(64))
    keyless(place, "ds=0/0.parquet")
    return place


def test_rows_without_a_key_refuse_a_rebase(drifted: Rewritten):
    place = drifted
    pipeline = place.pipeline(source={"row_key": "key"}, shuffle="off", lanes=1)
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 12)
    assert before == list(range(96))
    state = state_at(plan, 0, 12)
    keyed(place, "ds=0/0.parquet", list(range(60)))
    keyless(place, "ds=0/0.parquet")
    keyed(place, "ds=1/0.parquet", list(range(70, 128))[::-1])
    with pytest.raises(StateError, match=r"nulls in source.row_key, for 60 rows of ds=0/0.parquet"):
        pipeline.rebase(state)


def test_rewritten_files_without_the_key(drifted: Rewritten):
    place = drifted
    pipeline = place.pipeline(source={"row_key": "key"}, shuffle="off", lanes=1)
    plan = pipeline.plan()
    assert steps(pipeline, plan, 0, 0, 12) == list(range(96))
    state = state_at(plan, 0, 12)
    keyless(place, "ds=1/0.parquet")
    with pytest.raises(StateError, match=r"nulls in source.row_key, for 64 rows of ds=1/0.parquet"):
        pipeline.rebase(state)


def test_rows_without_a_key_of_which_none_was_delivered(drifted: Rewritten):
    """Every delivered row is found by its key, so the others are known to remain."""
    place = drifted
    keyed(place, "ds=1/1.parquet", place.new_ids(64))
    keyless(place, "ds=1/1.parquet")
    pipeline = place.pipeline(source={"row_key": "key"}, shuffle="off", lanes=1)
    plan = pipeline.plan()
    assert steps(pipeline, plan, 0, 0, 12) == list(range(96))
    keyed(place, "ds=1/0.parquet", list(range(64, 128))[::-1])
    keyed(place, "ds=1/1.parquet", list(range(192, 250)))
    keyless(place, "ds=1/1.parquet")
    assert sorted(rebased(pipeline, state_at(plan, 0, 12))) == list(range(96, 250))


def test_a_row_key_has_to_be_in_every_file(drifted: Rewritten):
    source = {"row_key": "key", "schema": {"missing": "error"}}
    with pytest.raises(SpecError, match=r"column 'key' is not in .*ds=0/0.parquet: got 1 files without it"):
        drifted.pipeline(source=source).plan()
    keyed(drifted, "ds=0/0.parquet", list(range(64)))
    assert drifted.pipeline(source=source).plan().source.split_rows.sum() == 192


# -- the saved snapshot ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_bad_file", ["error", "skip"])
def test_a_rebase_ignores_the_saved_snapshot(tmp_path: Path, on_bad_file: str):
    place = Rewritten(tmp_path)
    place.fill()
    freeze(place.pipeline().spec, str(tmp_path / "frozen"))
    pipeline = place.pipeline(source={"snapshot": str(tmp_path / "frozen"), "on_bad_file": on_bad_file})
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 7)
    state = state_at(plan, 0, 7)
    place.delete("ds=1/0.parquet")
    alive = set(place.ids)
    if on_bad_file == "skip":
        alive -= set(place.files["ds=2/0.parquet"])
        (place.table / "ds=2" / "0.parquet").write_bytes(b"PAR1 and no more PAR1")
    new = pipeline.rebase(state)
    assert new.source.snapshot.id != plan.source.snapshot.id
    assert len(new.source.skipped) == (on_bad_file == "skip")
    after = new.state_after(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the bad file
        assert Counter(rebased(pipeline, state)) == Counter(alive - set(before))
    hello = {key: after[key] for key in ("snapshot", "plan", "features", "seed", "lanes", "batch_size")}
    resumed = pipeline.resolve(Hello(rank=0, world_size=1, **hello), job="0" * 64)
    assert resumed.snapshot_name == new.snapshot_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert Counter(steps(pipeline, resumed, 1, 0)) == Counter(alive)
    assert pipeline.plan().source.snapshot.id == plan.source.snapshot.id, "runs that begin read the saved one"


# -- records --------------------------------------------------------------------------------------------------------


def test_records_that_cannot_be_listed_count_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    place = Rewritten(tmp_path)
    place.fill()
    pipeline = place.pipeline()
    plan = pipeline.plan()
    assert plan.source.job.record is not None
    steps(pipeline, plan, 0, 0)

    def refuse(operation: object, filesystem: pafs.FileSystem, name: str, **options: object) -> None:
        raise StoreError(f"{name} could not be listed: gave up")

    monkeypatch.setattr("feedline.warehouse.rebase.recorded_rows.with_retries", refuse)
    place.delete("ds=1/0.parquet")
    with caplog.at_level(logging.WARNING):
        gone = fragment_at(plan.source.snapshot, 0, np.arange(1), np.array([3]))
        known = Records(str(tmp_path / "work"), plan.source.job.record.identity).of(gone)
    assert not known[0].present.any()
    assert "it is not known which rows were delivered" in caplog.text
    with pytest.raises(StateError, match="got no record of their identities"):
        pipeline.rebase(state_at(plan, 0, 7))
