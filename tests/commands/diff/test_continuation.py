"""Whether a run continues with another pipeline, judged by loading its state there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import CLICKS, Place, furnished

from feedline import Pipeline
from feedline.commands.diff.continuation import describe_continuation
from feedline.errors import StateError
from feedline.loader.state import state_of
from feedline.planning.plan import Plan


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, shutil.copytree(clicks, tmp_path / "table")) as place:
        yield place


def loads(pipeline: Pipeline, state: dict[str, Any]) -> bool:
    try:
        pipeline.plan_for(state)
    except StateError:
        return False
    return True


FEATURES = {**CLICKS["features"], "dense": {"dense_0": [{"fill_null": 7}]}}


@pytest.mark.parametrize(
    ("overrides", "resume"),
    [
        ({"epochs": 5, "memory": "32MiB"}, "as it is"),
        ({"features": FEATURES}, "with changed features"),
        ({"batch.size": 128}, "refused"),
        ({"source.where": "dense_2 > 0.5"}, "refused"),
        ({"shuffle.seed": 9}, "refused"),
        ({"lanes": 2}, "refused"),
        ({"lanes": 1}, "as it is"),
        ({"work_dir": "elsewhere"}, "as it is"),
    ],
)
def test_a_run_continues_if_its_state_can_be_loaded(place: Place, overrides: dict[str, Any], resume: str):
    path = place.write()
    a, other = Pipeline.from_yaml(path).plan(), Pipeline.from_yaml(path, overrides)
    b = other.plan()
    assert isinstance(a, Plan)
    assert isinstance(b, Plan)
    state = state_of(a.facts(), 0, 3)
    found = describe_continuation(a, b)
    assert found.resume == resume
    assert loads(other, state) == (resume == "as it is")
    assert loads(other, {**state, "features": b.features_fingerprint}) == (resume != "refused")
    assert found.rebase == ("refused" if resume == "refused" else "not needed")
    if resume == "refused":
        assert any(key.split(".")[0] in found.resume_why for key in overrides)


@pytest.mark.parametrize(
    ("overrides", "rebase"),
    [({"source.row_key": ["request_id"]}, "possible"), ({}, "possible"), ({"shuffle.weights": "clicked"}, "refused")],
)
def test_after_a_change_of_the_table_a_run_continues_on_its_snapshot_or_by_a_rebase(
    place: Place, overrides: dict[str, Any], rebase: str
):
    path = place.write()
    pipeline = Pipeline.from_yaml(path, overrides)
    a = pipeline.plan()
    state = state_of(a.facts(), 0, 3)
    first = sorted(place.table.rglob("*.parquet"))[0]
    shutil.copy(first, first.with_name("another.parquet"))
    b = pipeline.plan()
    assert isinstance(a, Plan)
    assert isinstance(b, Plan)
    found = describe_continuation(a, b)
    assert (found.resume, found.rebase) == ("as it is", rebase)
    assert a.snapshot.id[:12] in found.resume_why
    assert loads(pipeline, state)
    if rebase == "possible":
        assert pipeline.rebase(state).snapshot_name != a.snapshot_name
    else:
        with pytest.raises(StateError) as refused:
            pipeline.rebase(state)
        assert str(refused.value) == found.rebase_why
    assert ("without source.row_key" in found.rebase_why) == (rebase == "possible" and not overrides)


def test_a_table_that_lacks_a_column_is_refused(place: Place, tmp_path: Path):
    """The other pipeline's features are looked for in the state's snapshot."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "wide").mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [1, 0]}), tmp_path / "wide" / "part.parquet")
    path = place.write()
    narrow = {"source": {"table": str(tmp_path / "wide")}, "features": {"dense": {"x": []}, "label": {"y": []}}}
    a, b = Pipeline.from_yaml(path).plan(), Pipeline.from_yaml(path, {**narrow, "batch.size": 1}).plan()
    assert isinstance(a, Plan)
    assert isinstance(b, Plan)
    found = describe_continuation(a, b)
    assert found.resume == "refused"
    assert found.resume_why.startswith("B cannot read the state's snapshot")
