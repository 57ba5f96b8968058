"""Rebasing where people do it: a dataset with its feeder, ranks that have to agree, the command."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pipelines import furnished
from processes import ended_here, running
from rewritten import Rewritten, state_at, steps

from feedline import FeedlineDataset
from feedline.errors import StateError
from feedline.loader.state import checked_state
from feedline.loader.wire.facts import Hello


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Rewritten]:
    with furnished(tmp_path, tmp_path / "job" / "t"):
        (tmp_path / "job").mkdir()
        place = Rewritten(tmp_path / "job")
        place.fill()
        yield place


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.extra["id"][batch.valid].tolist()]


def test_a_dataset(place: Rewritten, capsys: pytest.CaptureFixture[str]):
    pipeline = place.pipeline(cluster={"threads": 1, "dashboard": False}, memory="64MiB")
    path = place.folder / "p.yaml"
    with FeedlineDataset(path) as dataset:
        whole = len(dataset)
        before = ids(islice(dataset, whole // 2))
        state = dataset.state_dict()
        dataset.load_state_dict(state, snapshot="rebase")
        assert dataset.state_dict() == state
        assert "feedline: rebase: the table has not changed" in capsys.readouterr().err

        place.delete("ds=1/0.parquet")
        place.delete("ds=2/0.parquet", shuffled=False)
        dataset.load_state_dict(state, snapshot="rebase")
        assert "feedline: rebase: delivered: " in capsys.readouterr().err
        rebased = dataset.state_dict()
        rest = dataset.facts["rest"]
        assert (rebased["epoch"], rebased["step"]) == (0, whole // 2) == (rest["epoch"], rest["first_step"])
        assert len(dataset) == rest["steps"] <= whole
        plan = pipeline.plan_for(rebased)
        expected = steps(pipeline, plan, 0, whole // 2)
        iterator = iter(dataset)
        first = ids(islice(iterator, 2))
        middle = dataset.state_dict()
        assert middle == {**rebased, "step": whole // 2 + 2}
        assert first + ids(iterator) == expected
        assert set(expected) == set(place.ids) - set(before)
        assert dataset.state_dict() == {**rebased, "epoch": 1, "step": 0}

        assert len(dataset) == dataset.facts["steps"] == len(list(dataset))
        dataset.set_epoch(0)
        assert ids(dataset) == expected, "the rebased epoch starts where it was rebased"
    with FeedlineDataset(path) as dataset:  # another day
        dataset.load_state_dict(middle)
        iterator = iter(dataset)
        third = ids(islice(iterator, 1))
        os.kill(dataset.facts["feeder"], signal.SIGKILL)
        assert first + third + ids(iterator) == expected


def test_worker_processes(place: Rewritten):
    """Workers record what they deliver, tell the new files' rows apart, and deliver the rest."""
    pipeline = place.pipeline(cluster={"workers": 1, "threads": 1, "dashboard": False}, memory="64MiB")
    with FeedlineDataset(place.folder / "p.yaml") as dataset:
        before = ids(islice(dataset, len(dataset) // 2))
        state = dataset.state_dict()
        place.delete("ds=1/0.parquet")
        place.delete("ds=2/0.parquet")
        dataset.load_state_dict(state, snapshot="rebase")
        rebased = dataset.state_dict()
        after = ids(dataset)
    assert sorted(after) == sorted(set(place.ids) - set(before))
    assert after == steps(pipeline, pipeline.plan_for(rebased), rebased["epoch"], rebased["step"])


def test_a_rebase_that_is_refused(place: Rewritten):
    place.pipeline(cluster={"threads": 1, "dashboard": False}, memory="64MiB")
    with FeedlineDataset(place.folder / "p.yaml") as dataset:
        before = ids(islice(dataset, len(dataset) // 2))
        state = dataset.state_dict()
    records = place.forget()  # which blocks of the next epoch would write again
    place.delete("ds=1/0.parquet")
    with FeedlineDataset(place.folder / "p.yaml") as dataset:
        with pytest.raises(StateError, match="got no record of their identities"):
            dataset.load_state_dict(state, snapshot="rebase")
        with pytest.raises(StateError, match='snapshot is unknown: got \'new\', expected "same" or "rebase"'):
            dataset.load_state_dict(state, snapshot="new")  # type: ignore[arg-type]
        records.rename(place.folder / "work" / "rows")
        dataset.load_state_dict(state, snapshot="rebase")
        assert set(ids(dataset)) == set(place.ids) - set(before)


def test_ranks_that_start_one_after_the_other(place: Rewritten):
    """The second rank loads what the first one made, though the table has changed again."""
    pipeline = place.pipeline(lanes=4)
    plan = pipeline.plan()
    steps(pipeline, plan, 0, 0, 6)
    state = state_at(plan, 0, 6)
    place.delete("ds=1/0.parquet")
    asked = state
    hello = {key: state[key] for key in ("snapshot", "plan", "features", "seed", "lanes", "batch_size")}
    found = []
    for rank in range(2):
        found.append(pipeline.resolve(Hello(rank=rank, world_size=2, rebase=asked, **hello), job="0" * 64))
        place.delete("ds=1/0.parquet")
    assert found[0].snapshot_name == found[1].snapshot_name
    assert found[0].fingerprint == found[1].fingerprint


def test_ranks_that_torch_distributed_connects(place: Rewritten):
    pipeline = place.pipeline(cluster={"threads": 1, "dashboard": False}, memory="64MiB", lanes=2)
    table = place.folder / "t" / "ds=1" / "0.parquet"
    whole, kept = table.read_bytes(), place.files["ds=1/0.parquet"][::3]
    place.write("ds=1/0.parquet", kept)
    smaller = place.folder / "smaller"
    smaller.write_bytes(table.read_bytes())
    table.write_bytes(whole)
    with ExitStack() as stack:
        arguments = (place.folder / "meeting", place.folder / "p.yaml", table, smaller)
        ranks = [
            stack.enter_context(running(sys.executable, Path(__file__).with_name("rebased_ranks.py"), rank, *arguments))
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.wait() == 0, rank.text
    said = [json.loads(next(line for line in rank.text.splitlines() if line.startswith("{"))) for rank in ranks]
    assert said[0]["state"] == said[1]["state"]
    assert said[0]["steps"] == said[1]["steps"]
    before, after = ([*said[0][key], *said[1][key]] for key in ("before", "after"))
    assert sorted(after) == sorted(set(place.ids) - set(before))
    plan = pipeline.plan_for(said[0]["state"])
    assert sorted(after) == sorted(steps(pipeline, plan, 0, plan.facts().rest.first_step))


def test_the_command(place: Rewritten, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place.folder)
    pipeline = place.pipeline()
    plan = pipeline.plan()
    before = steps(pipeline, plan, 0, 0, 7)
    state = place.folder / "state.json"
    state.write_text(json.dumps(state_at(plan, 0, 7)))
    place.delete("ds=1/0.parquet")
    done = ended_here("rebase", "p.yaml", state, "--output", "new.json")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "rows of epoch 0 before step 7" in done.stderr
    new = checked_state(json.loads((place.folder / "new.json").read_text()))
    after = steps(pipeline, pipeline.plan_for(new), 0, 7)
    assert sorted(after) == sorted(set(place.ids) - set(before))

    printed = ended_here("rebase", "p.yaml", state)
    assert json.loads(printed.stdout) == new
    both = json.loads(ended_here("rebase", "p.yaml", state, "--json").stdout)
    assert both["state"] == new
    assert both["rest"]["rows"] == len(after)
    again = ended_here("rebase", "p.yaml", "new.json")
    assert json.loads(again.stdout) == new
    assert again.stderr == "the table has not changed\n"


def test_the_command_refuses(place: Rewritten, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place.folder)
    pipeline = place.pipeline()
    plan = pipeline.plan()
    steps(pipeline, plan, 0, 0, 12)
    state = place.folder / "state.json"
    state.write_text(json.dumps(state_at(plan, 0, 12)))
    place.forget()
    place.delete("ds=1/0.parquet")
    for words, status, text in (
        (("p.yaml",), 2, "the state's version is not supported: got 1, expected 2"),
        (("nowhere.json",), 2, "is not a state in JSON"),
        ((state,), 2, "cannot be matched with those delivered"),
        ((state, "--rewritten", "skip"), 2, "No such option: --rewritten"),
    ):
        done = ended_here("rebase", "p.yaml", *words)
        assert done.returncode == status, done.stdout
        assert text in done.stderr
        assert "Traceback" not in done.stderr
