"""A state whose events have changed is refused with both generations of the history."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import StateError
from feedline.loader.state import state_of
from feedline.planning.plan import Plan
from feedline.planning.resolve import resolve_state


def write_events(folder: Path, items: list[int]) -> None:
    (folder / "events").mkdir(exist_ok=True)
    table = pa.table({"user": [1] * len(items), "ts": list(range(len(items))), "item": items})
    pq.write_table(table, folder / "events" / "part.parquet")


def pipeline(folder: Path, *ops: Any, names: tuple[str, ...] = ("events",)) -> Pipeline:
    if not (folder / "rows").exists():
        (folder / "rows").mkdir()
        pq.write_table(pa.table({"user": [1] * 8, "at": [9] * 8}), folder / "rows" / "part.parquet")
    return Pipeline.from_dict(document(folder, names, *ops))


def document(folder: Path, names: tuple[str, ...], *ops: Any) -> dict[str, Any]:
    feature = {"column": "item", "at": "at", "last": 3, "ops": list(ops)}
    return {
        "version": 1,
        "name": "generations",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "rows")},
        "histories": {name: {"table": str(folder / name), "key": "user", "time": "ts"} for name in names},
        "features": {"sparse": {f"items of {name}": {"history": name, **feature} for name in names}},
        "batch": {"size": 2},
    }


def generation(plan: Plan) -> str:
    [history] = plan.source.snapshot.histories
    return history.events[:12]


def resume(own: Pipeline, state: dict[str, Any]) -> Plan:
    return resolve_state(own.spec, state, fit=lambda snapshots: None)


def test_a_state_of_other_events_is_refused_with_both_generations(tmp_path: Path):
    write_events(tmp_path, [1, 2, 3])
    own = pipeline(tmp_path)
    before = own.complete_plan()
    state = state_of(before.facts(), 0, 1)
    assert resume(own, state).features_fingerprint == before.features_fingerprint
    write_events(tmp_path, [1, 2, 4])
    after = own.plan()
    assert generation(after) != generation(before)
    with pytest.raises(StateError) as caught:
        resume(own, state)
    read = f"history events reads generation {generation(after)} of {tmp_path / 'events'}"
    remedy = 'Pass features="changed" to load_state_dict to keep the position with the events as they are'
    assert f"{read}, the state's run read {generation(before)}. {remedy}, or restore" in str(caught.value)
    [record] = (tmp_path / "work" / "features").glob(f"{before.features_fingerprint}-histories.json")
    for content in (None, "no json", '{"generations": 3}'):  # lost, or damaged
        record.unlink() if content is None else record.write_text(content)
        with pytest.raises(StateError) as caught:
            resume(own, state)
        assert f"Features, or the events of histories, may have changed: {read}. {remedy}" in str(caught.value)


def test_other_ops_on_the_same_events_are_not_blamed_on_these(tmp_path: Path):
    write_events(tmp_path, [1, 2, 3])
    state = state_of(pipeline(tmp_path).complete_plan().facts(), 0, 1)
    with pytest.raises(
        StateError, match=r'another features: got .* Pass features="changed" to load_state_dict'
    ) as caught:
        resume(pipeline(tmp_path, {"modulo": 7}), state)
    assert "generation" not in str(caught.value)


def test_a_history_that_the_run_did_not_read_is_named(tmp_path: Path):
    write_events(tmp_path, [1, 2, 3])
    state = state_of(pipeline(tmp_path).complete_plan().facts(), 0, 1)
    shutil.copytree(tmp_path / "events", tmp_path / "more")
    other = pipeline(tmp_path, names=("events", "more"))
    with pytest.raises(StateError, match=r"history more reads generation \w{12} of .*, the state's run read no such"):
        resume(other, state)


def test_a_resumed_run_keeps_its_generation_while_its_files_are_there(tmp_path: Path):
    write_events(tmp_path, [1, 2, 3])
    own = pipeline(tmp_path)
    before = own.complete_plan()
    state = state_of(before.facts(), 0, 1)
    more = pa.table({"user": [1], "ts": [5], "item": [9]})
    pq.write_table(more, tmp_path / "events" / "more.parquet")
    after, resumed = own.complete_plan(), resume(own, state)
    assert generation(after) != generation(before) == generation(resumed)
    assert resumed.features_fingerprint == before.features_fingerprint
    name = "items of events"
    assert [batch.sparse[name].values.tolist() for batch in own.batches(plan=resumed, step=1)] == [[1, 2, 3] * 2] * 3
    assert [batch.sparse[name].values.tolist() for batch in own.batches(plan=after, step=1)] == [[2, 3, 9] * 2] * 3


def test_an_epoch_of_a_followed_table_reads_the_events_as_they_are(tmp_path: Path):
    def land(day: int) -> None:
        folder = tmp_path / f"rows/ds={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"user": [1] * 8, "at": [9] * 8}), folder / "part.parquet")
        (folder / "_SUCCESS").touch()

    write_events(tmp_path, [1, 2, 3])
    land(1)
    followed = Pipeline(
        load_spec(document(tmp_path, ("events",)), {"source.follow": {"landed": "_SUCCESS", "epoch": "new"}})
    )
    first = followed.complete_plan()
    pq.write_table(pa.table({"user": [1], "ts": [5], "item": [9]}), tmp_path / "events" / "more.parquet")
    land(2)
    second = followed.next_plan(first)
    assert second is not None
    assert generation(second) != generation(first)
    state = state_of(second.facts(), 1, 1)
    pq.write_table(pa.table({"user": [1], "ts": [6], "item": [10]}), tmp_path / "events" / "last.parquet")
    assert generation(resume(followed, state)) == generation(second)
