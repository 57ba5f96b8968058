"""Does a state continue the stream exactly: anywhere, on any number of ranks, and never on another plan?"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pipelines import Place, furnished, image, oracle

from feedline import FeedlineDataset, Pipeline
from feedline.errors import FeedlineError, PlanError, StateError, TableError

STEPS = 19  # 20,000 rows on 4 lanes of 256


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def path(place: Place) -> Path:
    return place.write(lanes=4)


@pytest.fixture(scope="module")
def epochs(path: Path) -> list[list[bytes]]:
    return [oracle(path, epoch=epoch) for epoch in range(3)]


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[FeedlineDataset]:
    with FeedlineDataset(path) as dataset:
        held = list(islice(dataset, 12))  # from now on the ring is as large as any test needs it
        del held
        yield dataset


@pytest.fixture(scope="module")
def fresh(shared: FeedlineDataset) -> dict[str, Any]:
    """The state of a dataset that nobody has iterated."""
    return {**shared.state_dict(), "epoch": 0, "step": 0}


def at(state: dict[str, Any], epoch: int, step: int) -> dict[str, Any]:
    return {**state, "epoch": epoch, "step": step}


def test_the_state_is_a_few_plain_values(shared: FeedlineDataset, fresh: dict[str, Any], tmp_path: Path):
    shared.load_state_dict(fresh)
    state = shared.state_dict()
    assert state == fresh
    assert list(state) == [
        *("version", "plan_version", "snapshot", "plan", "features", "epoch", "step"),
        *("seed", "lanes", "batch_size", "window_rows", "window_blocks", "environment"),
    ]
    assert {type(value) for value in state.values()} == {int, str}
    assert json.loads(json.dumps(state)) == state
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    assert len(json.dumps(state)) < 600


@pytest.mark.parametrize("step", [0, 1, 9, STEPS - 1])
def test_from_any_step_the_rest_follows(
    shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]], step: int
):
    shared.load_state_dict(at(fresh, 1, step))
    assert shared.state_dict() == at(fresh, 1, step), "load, then save"
    assert [image(batch) for batch in shared] == epochs[1][step:]
    assert shared.state_dict() == at(fresh, 2, 0)
    assert [image(batch) for batch in shared] == epochs[2]


def test_the_state_says_what_was_handed_out(shared: FeedlineDataset, fresh: dict[str, Any]):
    shared.load_state_dict(fresh)
    assert shared.state_dict() == at(fresh, 0, 0)
    iterator = iter(shared)
    assert shared.state_dict() == at(fresh, 0, 0)
    for step, _batch in enumerate(iterator, 1):
        assert shared.state_dict() == at(fresh, *((0, step) if step < STEPS else (1, 0)))
    assert shared.state_dict() == at(fresh, 1, 0), "after StopIteration, once and twice"
    assert next(iterator, None) is None
    assert shared.state_dict() == at(fresh, 1, 0)


def test_a_state_saved_at_the_very_end_starts_the_next_epoch(
    shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]
):
    """Saved in the loop's last round, before the iterator said that it ended; or by a step that is not there."""
    for state in (at(fresh, 0, STEPS), at(fresh, 1, 0)):
        shared.load_state_dict(state)
        assert shared.state_dict() == at(fresh, 1, 0)
        assert len(shared) == STEPS
        assert [image(batch) for batch in shared] == epochs[1]


def test_the_state_is_right_under_prefetching(
    shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]
):
    shared.load_state_dict(fresh)
    ahead: deque = deque()
    iterator = iter(shared)
    for _ in range(5):
        ahead.append(next(iterator))
    for done in range(3):
        state = shared.state_dict(after=ahead.popleft())
        assert state == at(fresh, 0, done + 1)
        assert shared.state_dict()["step"] == 5 + done
        ahead.append(next(iterator))
    ahead.clear()
    shared.load_state_dict(state)
    assert [image(batch) for batch in shared] == epochs[0][3:]
    shared.load_state_dict(at(fresh, 0, STEPS - 1))
    (last,) = shared
    assert shared.state_dict(after=last) == at(fresh, 1, 0)


def test_loading_twice_and_in_mid_epoch(shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]):
    shared.load_state_dict(at(fresh, 2, 3))
    shared.load_state_dict(at(fresh, 1, 7))
    iterator = iter(shared)
    assert image(next(iterator)) == epochs[1][7]
    shared.load_state_dict(at(fresh, 0, 2))
    with pytest.raises(FeedlineError, match="this iterator was replaced"):
        next(iterator)
    assert [image(batch) for batch in shared] == epochs[0][2:]


def test_set_epoch_of_a_loaded_state_keeps_its_step(
    shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]
):
    """As a DistributedSampler's loop calls it, before each epoch: it must not undo the resume."""
    shared.load_state_dict(at(fresh, 1, 7))
    shared.set_epoch(1)
    iter(shared)
    shared.set_epoch(1)
    assert shared.state_dict() == at(fresh, 1, 7)
    assert image(next(iter(shared))) == epochs[1][7]
    shared.set_epoch(1)  # the state was continued: this starts the epoch over
    assert shared.state_dict() == at(fresh, 1, 0)
    assert image(next(iter(shared))) == epochs[1][0]


def test_set_epoch_of_another_epoch_starts_at_its_step_0(
    shared: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]
):
    for other in (0, 2):
        shared.load_state_dict(at(fresh, 1, 7))
        shared.set_epoch(other)
        assert shared.state_dict() == at(fresh, other, 0)
        assert image(next(iter(shared))) == epochs[other][0]
    shared.load_state_dict(at(fresh, 1, 7))
    shared.set_epoch(2)
    shared.set_epoch(1)
    assert image(next(iter(shared))) == epochs[1][0], "the state's step is forgotten"


@pytest.mark.parametrize(
    "world_size", [2, pytest.param(1, marks=pytest.mark.nightly), pytest.param(4, marks=pytest.mark.nightly)]
)
def test_on_another_number_of_ranks(path: Path, fresh: dict[str, Any], epochs: list[list[bytes]], world_size: int):
    """A state of one rank continues on 1, 2 and 4; each global step holds the same rows, lane by lane."""
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(FeedlineDataset(path, rank=rank, world_size=world_size)) for rank in range(world_size)
        ]
        for dataset in ranks:
            dataset.load_state_dict(at(fresh, 0, 5))
        for epoch, first in ((0, 5), (1, 0)):
            wanted = iter(Pipeline.from_yaml(path).batches(epoch, step=first))
            for batches in zip(*ranks, strict=True):
                whole = next(wanted)
                assert {(batch.epoch, batch.step) for batch in batches} == {(whole.epoch, whole.step)}
                assert torch.equal(
                    torch.cat([batch.extra["request_id"] for batch in batches]), whole.extra["request_id"]
                )
                assert torch.equal(torch.cat([batch.dense for batch in batches]), whole.dense)
                values = torch.cat([batch.sparse["hist_0"].values for batch in batches])
                assert torch.equal(values, whole.sparse["hist_0"].values)
                if world_size == 1:
                    assert image(batches[0]) == epochs[epoch][whole.step]
            assert next(wanted, None) is None
        assert len({json.dumps(dataset.state_dict()) for dataset in ranks}) == 1, "any rank's copy is right for all"
        assert ranks[0].state_dict() == at(fresh, 2, 0)


def test_lanes_of_the_state_serve_where_the_file_names_none(place: Place, fresh: dict[str, Any]):
    """A run that began on 4 ranks goes on on one; one that began on one cannot go on on two."""
    path = place.write("free.yaml", lanes=None)
    with FeedlineDataset(path, rank=1, world_size=2) as dataset:
        dataset.load_state_dict(at(fresh, 0, 5))
        assert [image(batch) for batch in dataset] == oracle(place.write("lanes.yaml", lanes=4), rank=1, world_size=2)[
            5:
        ]
    with FeedlineDataset(path) as dataset:
        alone = dataset.state_dict()
        assert alone["lanes"] == 1
    with (
        FeedlineDataset(path, rank=0, world_size=2) as dataset,
        pytest.raises(PlanError, match="got 2 ranks for 1 lanes"),
    ):
        dataset.load_state_dict(alone)


# -- refusals -----------------------------------------------------------------------------------------------------


def test_another_plan_is_refused_with_both_values_and_nothing_changes(
    path: Path, fresh: dict[str, Any], epochs: list[list[bytes]]
):
    with FeedlineDataset(path) as dataset:
        _refuse_another_plan(dataset, fresh, epochs)


def _refuse_another_plan(dataset: FeedlineDataset, fresh: dict[str, Any], epochs: list[list[bytes]]) -> None:
    dataset.load_state_dict(fresh)
    iterator = iter(dataset)
    seen = [image(next(iterator)) for _ in range(3)]
    for key, value, text in (
        ("seed", 4, "its seed is 4, pipeline.yaml's is 3"),
        ("batch_size", 128, "its batch_size is 128, pipeline.yaml's is 256"),
        ("lanes", 2, "its lanes is 2, pipeline.yaml's is 4"),
        ("plan", "0" * 32, f"another plan: got {'0' * 32}, expected {fresh['plan']}"),
    ):
        with pytest.raises(StateError) as caught:
            dataset.load_state_dict({**fresh, key: value})
        assert text in str(caught.value)
    assert dataset.state_dict() == at(fresh, 0, 3)
    seen += [image(batch) for batch in iterator]
    assert seen == epochs[0], "the stream goes on as if nobody had asked"


def test_other_features_are_refused_unless_asked_for(place: Place, fresh: dict[str, Any]):
    more = {"dense": {"dense_0": [{"fill_null": 1}]}, "label": {"clicked": []}, "extra": ["request_id"]}
    path = place.write("more.yaml", lanes=4, features=more)
    with FeedlineDataset(path) as dataset:
        with pytest.raises(StateError, match=f"another features: got {fresh['features']}") as caught:
            dataset.load_state_dict(at(fresh, 0, 4))
        assert 'features="changed"' in str(caught.value)
        dataset.load_state_dict(at(fresh, 0, 4), features="changed")
        assert [image(batch) for batch in dataset] == oracle(path, step=4)
        state = dataset.state_dict()
        assert state["features"] != fresh["features"]
        dataset.load_state_dict(state)
        with pytest.raises(StateError, match="features is unknown: got 'yes'"):
            dataset.load_state_dict(state, features="yes")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 1}, "the state's version is not supported: got 1, expected 2"),
        ({"plan_version": 3}, "the state's plan_version is not supported: got 3, expected 4"),
        ({"window_rows": -1}, "window_rows must be a non-negative integer: got -1"),
        ({"window_blocks": 2.5}, "window_blocks must be a non-negative integer: got 2.5"),
        ({"step": -1}, "step must be a non-negative integer: got -1"),
        ({"epoch": "1"}, "epoch must be a non-negative integer: got '1'"),
        ({"lanes": True}, "lanes must be a non-negative integer: got True"),
        ({"epoch": 1 << 63}, "epoch is too large: got 9223372036854775808, expected at most 9223372036854775807"),
        ({"step": 1 << 63}, "step is too large: got 9223372036854775808"),
        ({"step": 10**6}, "step is beyond its epoch: got step 1000000 of epoch 0, expected at most [0-9]+, its number"),
        ({"plan": None}, "plan must be a string: got None"),
        ({"snapshot": 7}, "snapshot must be a string: got 7"),
    ],
)
def test_damaged_states_are_refused(shared: FeedlineDataset, fresh: dict[str, Any], change: dict, text: str):
    with pytest.raises(StateError, match=text):
        shared.load_state_dict({**fresh, **change})


def test_a_step_beyond_its_epoch_is_refused_without_a_feeder(path: Path, fresh: dict[str, Any]):
    pipeline = Pipeline.from_yaml(path)
    steps = pipeline.plan_for(fresh).facts().steps
    assert pipeline.plan_for({**fresh, "step": steps}).fingerprint == fresh["plan"]
    for plan in (pipeline.plan_for, pipeline.rebase):
        with pytest.raises(StateError, match=f"beyond its epoch: got step {steps + 1} of epoch 3, expected at most"):
            plan({**fresh, "epoch": 3, "step": steps + 1})


def test_incomplete_states_are_refused(shared: FeedlineDataset, fresh: dict[str, Any]):
    with pytest.raises(StateError, match="lacks plan, step"):
        shared.load_state_dict({key: value for key, value in fresh.items() if key not in ("plan", "step")})
    with pytest.raises(StateError, match="got nothing"):
        shared.load_state_dict({})


def test_a_snapshot_that_is_not_there(path: Path, fresh: dict[str, Any]):
    with FeedlineDataset(path) as dataset:
        for name in ("0" * 64, "../../etc/passwd"):
            with pytest.raises((StateError, TableError), match=name):
                dataset.load_state_dict({**fresh, "snapshot": name})


# -- the table grows meanwhile ------------------------------------------------------------------------------------


def test_a_new_file_between_save_and_resume_changes_nothing(place: Place, clicks: Path, tmp_path: Path):
    table = tmp_path / "clicks"
    shutil.copytree(clicks, table)
    path = place.write("grown.yaml", source={"table": str(table)})
    snapshot = Pipeline.from_yaml(path).snapshot()
    before = oracle(path, snapshot=snapshot)
    with FeedlineDataset(path) as dataset:
        seen = [image(batch) for batch in islice(dataset, 10)]
        state = dataset.state_dict()
        assert state["snapshot"] == snapshot.id
    added = pq.read_table(next(iter(table.rglob("*.parquet"))), partitioning=None)
    pq.write_table(added, table / "ds=2026-01-02" / "part-late.parquet")
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state)
        seen += [image(batch) for batch in dataset]
        assert seen == before
        assert dataset.facts["rows"] == 20_000
    with FeedlineDataset(path) as dataset:
        assert dataset.facts["rows"] == 20_000 + len(added), "a fresh start sees it"
        with pytest.raises(FeedlineError, match="belongs to another plan"):
            dataset.load_state_dict({**state, "snapshot": dataset.state_dict()["snapshot"]})


def test_states_are_continued_with_a_cache_and_without(path: Path, tmp_path: Path, epochs: list[list[bytes]]):
    """No fingerprint in a state names the cache."""
    cached = {"cache": str(tmp_path / "finished")}
    for first, then in (({}, cached), (cached, {})):
        with FeedlineDataset(path, set=first) as dataset:
            batches = iter(dataset)
            assert [image(next(batches)) for _ in range(3)] == epochs[0][:3]
            state = dataset.state_dict()
        with FeedlineDataset(path, set=then) as dataset:
            dataset.load_state_dict(state)
            assert [image(batch) for batch in dataset] == epochs[0][3:]
