"""All ranks of one start read one snapshot, and a later start sees what is new."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished
from processes import running

from feedline import FeedlineDataset, Pipeline
from feedline.errors import PlanError
from feedline.loader.wire.facts import Hello
from feedline.planning.agreement import RunStart, choose_once, launch_name, verify_agreement

JOB = "f" * 64


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    shutil.copytree(clicks, tmp_path / "clicks")
    with furnished(tmp_path, tmp_path / "clicks") as place:
        yield place


def grow(place: Place, name: str) -> int:
    """Another file lands in the table; its rows."""
    added = pq.read_table(next(iter(place.table.rglob("*.parquet"))), partitioning=None)
    ids = pc.add(added["request_id"], 1_000_000)
    draft = place.folder / name
    pq.write_table(added.set_column(added.schema.get_field_index("request_id"), "request_id", ids), draft)
    draft.rename(place.table / "ds=2026-01-02" / name)
    return len(added)


class Starts:
    """Ranks that start one after the other; each would take a snapshot of its own."""

    def __init__(self, work_dir: object) -> None:
        self.work_dir = str(work_dir)
        self.taken = 0
        self.now_s = 1000.0
        self.last: dict[int, RunStart] = {}  # by rank

    def start(
        self,
        rank: int,
        world_size: int,
        job: str = JOB,
        connected: bool = False,
        group: str = "",
        lanes: int = 4,
        **environment: str,
    ) -> str:
        begun = self.last[rank] = RunStart(
            job=job, rank=rank, world_size=world_size, connected=connected, column_group=group, lanes=lanes
        )
        return choose_once(begun, self.work_dir, self.take, environment=environment, now_s=lambda: self.now_s)

    def verify(self, rank: int) -> bool:
        return verify_agreement(self.last[rank], self.work_dir, now_s=lambda: self.now_s)

    def take(self) -> str:
        self.taken += 1
        return f"s{self.taken}"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_the_first_rank_chooses_and_the_others_follow(tmp_path: Path, form: str):
    starts = Starts(form.format(tmp_path / "work"))
    assert [starts.start(rank, 3) for rank in (1, 0, 2)] == ["s1"] * 3
    assert [starts.start(rank, 3) for rank in (2, 0, 1)] == ["s2"] * 3, "a rank that is there already starts over"


def test_column_groups_agree_whatever_their_launchers_and_world_sizes(tmp_path: Path):
    """Each has ranks of its own; one that starts over takes the others along, or ends them."""
    starts = Starts(tmp_path / "work")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert starts.start(0, 1, group="dense (1)") == "s1"
    assert [starts.start(rank, 2, group="sparse (2)", **slurm) for rank in (1, 0)] == ["s1"] * 2
    assert starts.start(0, 1, group="label (3)", lanes=1) == "s2", "another plan"
    assert starts.start(0, 1) == "s3", "a reader of all features joins no groups"
    assert starts.start(0, 1, group="dense (1)", job="e" * 64) == "s4"
    sparse = starts.last[1]
    assert starts.start(0, 1, group="dense (1)") == "s5", "it is listed, and starts over"
    message = "got s1 on rank 1 of sparse \\(2\\), .* expected s5 as on rank 0 of dense .* Restart all column groups"
    with pytest.raises(PlanError, match=message):
        verify_agreement(sparse, starts.work_dir, now_s=lambda: starts.now_s)
    assert [starts.start(rank, 2, group="sparse (2)") for rank in (1, 0)] == ["s5"] * 2
    starts.now_s += 601
    assert starts.start(0, 1, group="new (4)") == "s6", "after ten minutes nobody joins"


def test_a_group_that_torch_connects_agrees_with_those_that_it_does_not(tmp_path: Path):
    """Two launchers, each with a process group of its own: the rank 0 of each takes part, and looks again."""
    starts = Starts(tmp_path / "work")
    assert starts.start(0, 2, connected=True, group="dense (1)", TORCHELASTIC_RUN_ID="a") == "s1"
    dense = starts.last[0]
    assert starts.start(0, 4, connected=True, group="sparse (2)", TORCHELASTIC_RUN_ID="b") == "s1"
    assert starts.start(0, 4, connected=True, group="sparse (2)", TORCHELASTIC_RUN_ID="b") == "s2"
    with pytest.raises(PlanError, match=r"got s1 on rank 0 of dense .* expected s2 as on rank 0 of sparse \(2\)"):
        verify_agreement(dense, starts.work_dir, now_s=lambda: starts.now_s)


def test_column_groups_without_locks_are_refused():
    start = RunStart(job=JOB, rank=0, world_size=1, column_group="dense (1)")
    with pytest.raises(PlanError, match="column groups cannot agree on what they read: work_dir is memory://"):
        choose_once(start, "memory://work", lambda: "s", environment={})


def test_a_single_rank_needs_no_agreement(tmp_path: Path):
    starts = Starts(tmp_path / "work")
    assert [starts.start(0, 1) for _ in range(2)] == ["s1", "s2"]
    assert not (tmp_path / "work").exists()


def test_jobs_and_world_sizes_do_not_mix(tmp_path: Path):
    starts = Starts(tmp_path)
    assert starts.start(0, 2) == "s1"
    assert starts.start(1, 4) == "s2"
    assert starts.start(1, 2, job="e" * 64) == "s3"
    assert starts.start(1, 2) == "s1"


def test_yesterdays_half_start_is_not_joined(tmp_path: Path):
    starts = Starts(tmp_path)
    assert starts.start(0, 2) == "s1"
    starts.now_s += 599
    assert starts.start(1, 2) == "s1"
    assert starts.start(0, 2) == "s2"
    starts.now_s += 601
    assert starts.start(1, 2) == "s3"


def test_a_launchers_name_distinguishes_starts(tmp_path: Path):
    starts = Starts(tmp_path)
    torchrun = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert starts.start(0, 2, **torchrun) == "s1"
    assert starts.start(1, 2, **{**torchrun, "TORCHELASTIC_RESTART_COUNT": "1"}) == "s2"
    starts.now_s += 3500
    assert starts.start(1, 2, **torchrun) == "s1", "slow ranks of a named start join it"
    assert starts.start(0, 2, **torchrun) == "s3"
    starts.now_s += 3601
    assert starts.start(1, 2, **torchrun) == "s4", "a name that is used again is another start"
    assert launch_name({"TORCHELASTIC_RUN_ID": "none"}) is None
    assert launch_name({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}) == "7_0"
    requeued = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "2"}
    assert launch_name(requeued) == "7_0_2", "a job that is requeued keeps its id"
    assert launch_name({}) is None


def test_ranks_that_joined_a_failed_start_are_told(tmp_path: Path):
    starts = Starts(tmp_path)
    assert [starts.start(rank, 4) for rank in (0, 1)] == ["s1", "s1"]  # and it fails
    assert [starts.start(rank, 4) for rank in (2, 0, 1, 3)] == ["s1", "s2", "s2", "s2"]
    assert all(starts.verify(rank) for rank in (0, 1, 3))
    with pytest.raises(PlanError, match=r"got s1 on rank 2, .* expected s2 as on rank 0, 1, 3 .*Restart all ranks"):
        starts.verify(2)
    starts.now_s += 601
    assert not any(starts.verify(rank) for rank in range(4)), "what other ranks do later is another start"


def test_a_rank_that_starts_twice_is_in_both_starts(tmp_path: Path):
    starts = Starts(tmp_path)
    assert [starts.start(rank, 2) for rank in (0, 1)] == ["s1", "s1"]
    first = dict(starts.last)
    assert [starts.start(rank, 2) for rank in (0, 1)] == ["s2", "s2"], "the ranks open a second dataset"
    starts.last = first
    assert starts.verify(0)
    assert starts.verify(1)


def test_ranks_that_are_connected_compare_their_plans_themselves(tmp_path: Path):
    starts = Starts(tmp_path)
    assert [starts.start(rank, 2, connected=True) for rank in (0, 1, 0)] == ["s1", "s1", "s2"]
    assert not starts.verify(1)


def test_a_store_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feedline.warehouse.storage.content_store.is_local", lambda filesystem: False)
    starts = Starts(tmp_path)
    with pytest.raises(PlanError, match=r"2 ranks cannot agree on what they read: work_dir is .*torch.distributed"):
        starts.start(0, 2)
    assert [starts.start(0, 1), starts.start(0, 2, connected=True)] == ["s1", "s2"], "these need no locks"


@pytest.mark.slow
def test_a_rank_that_joined_a_failed_start_ends_its_epoch(place: Place):
    path = place.write(features={"extra": ["request_id"]}, batch={"size": 1000, "tail": "pad"})
    for rank in (0, 1):  # a start of three ranks that fails before the last one is there
        with FeedlineDataset(path, rank=rank, world_size=3) as dataset:
            assert len(dataset) > 0
    grow(place, "part-late.parquet")
    with ExitStack() as stack:
        ranks = {rank: stack.enter_context(FeedlineDataset(path, rank=rank, world_size=3)) for rank in (2, 0, 1)}
        lengths = [len(ranks[rank]) for rank in (2, 0, 1)]  # rank 2 comes first, and finds the failed start
        assert lengths[1] == lengths[2] > lengths[0]
        assert len(_ids(ranks[0])) > 0
        snapshots = [ranks[rank].facts["snapshot"] for rank in (2, 0)]
        with pytest.raises(PlanError, match=r"got {} on rank 2.*{}".format(*snapshots)):
            list(map(_ids, [ranks[2]] * 1000))


def test_a_damaged_agreement_is_replaced(tmp_path: Path):
    starts = Starts(tmp_path)
    starts.start(0, 2)
    (entry,) = (tmp_path / "runs").glob("*.json")
    for text in ("", "{", "[]", '{"snapshot": "s1"}'):
        entry.write_text(text)
        before = starts.taken
        assert starts.start(1, 2) == f"s{before + 1}"


def test_ranks_at_once_take_one_snapshot(tmp_path: Path):
    starts = Starts(tmp_path)
    barrier = threading.Barrier(8)

    def start(rank: int) -> str:
        barrier.wait()
        return starts.start(rank, 8)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1
    assert starts.taken == 1


def _ids(dataset: FeedlineDataset) -> set[int]:
    return {each for batch in dataset for each in batch.extra["request_id"][batch.valid].tolist()}


def test_a_file_between_two_ranks_starts_changes_nothing(place: Place):
    pipeline = Pipeline.from_yaml(place.write())
    zero = pipeline.resolve(Hello(rank=0, world_size=2), job=JOB)
    assert zero.facts().rows == 20_000
    added = grow(place, "part-late.parquet")
    one = pipeline.resolve(Hello(rank=1, world_size=2), job=JOB)
    assert (one.snapshot_name, one.facts()) == (zero.snapshot_name, zero.facts())
    ids = [
        set(np.concatenate([batch.extra["request_id"] for batch in pipeline.batches(0, rank, 2, plan=plan)]).tolist())
        for rank, plan in enumerate((zero, one))
    ]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 20_000 - zero.facts().rows_dropped
    alone = pipeline.resolve(Hello(rank=0, world_size=1), job=JOB)
    assert alone.facts().rows == 20_000 + added, "a later start sees it"


@pytest.mark.slow
@pytest.mark.nightly
def test_ranks_that_torch_distributed_connects(place: Place, tmp_path: Path):
    path = place.write(features={"extra": ["request_id"]})
    meeting = tmp_path / "meeting"
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                running(sys.executable, Path(__file__).with_name("ranked.py"), rank, meeting, place.folder)
            )
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.wait(100) == 0, rank.text  # six feeders start one after the other
    said = [_scenes(rank.text) for rank in ranks]
    epochs = [scenes["an epoch"] for scenes in said]
    assert {epoch["source"] for epoch in epochs} == {"torch.distributed"}
    assert epochs[0]["state"] == epochs[1]["state"]
    assert not set(epochs[0]["ids"]) & set(epochs[1]["ids"])
    for rank, epoch in enumerate(epochs):
        batches = list(Pipeline.from_yaml(path).batches(0, rank, 2))
        ids = [each for batch in batches for each in batch.extra["request_id"].tolist()]
        assert epoch["ids"] == ids
        assert said[rank]["resumed"]["ids"] == ids[30 * 256 :]
    for scene, error, texts in (
        ("another step on rank 1", "PlanError", ["epoch 0, step 4 on rank 1", "epoch 0, step 10 as on rank 0"]),
        ("another state on rank 1", "StateError", ["rank 1: ", "0" * 32, epochs[0]["state"]["plan"]]),
        ("another seed on rank 1", "PlanError", ["do not agree on the plan", "on rank 1", epochs[0]["state"]["plan"]]),
        ("an error on rank 0", "NoStepError", ["fewer rows than one global step"]),
    ):
        for scenes in said:
            assert scenes[scene]["error"] == error, scenes[scene]
            for text in texts:
                assert text in scenes[scene]["message"]


def _scenes(text: str) -> dict[str, Any]:
    reports = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {each["scene"]: each["outcome"] for each in reports}
