"""What dies with SIGKILL costs time, and not one row: the stream goes on identically, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import psutil
import pytest
import torch
from pipelines import Place, eventually, furnished, image, oracle
from processes import DaskCluster, all_gone, feedline, trainer

from feedline import FeedlineDataset, Pipeline
from feedline.errors import FeederError
from feedline.loader.batch import Batch

STEPS = 26  # 6,666 rows in batches of 256, the rest dropped


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks / "ds=2026-01-01") as place:
        yield place


# -- the feeder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaths", [((12,), ()), pytest.param(((2, 12), (18,), (1, 22)), marks=pytest.mark.nightly)])
def test_a_feeder_dies_again_and_again(
    place: Place, caplog: pytest.LogCaptureFixture, deaths: tuple[tuple[int, ...], ...]
):
    """Before its first batch, in mid-epoch, with batches held, and between two epochs."""
    path = place.write()
    with FeedlineDataset(path) as dataset:
        dataset._feed._connection._feeder._process.kill()
        for epoch, steps in enumerate(deaths):
            seen, held = [], []
            for batch in dataset:
                seen.append(image(batch))
                held = [*held[-2:], batch]
                if batch.step in steps:
                    psutil.Process(_feeder(dataset)).kill()
                assert [image(each) for each in held] == seen[-len(held) :]
            assert seen == oracle(path, epoch=epoch)
            if epoch == 0:  # what dead feeders had not reported is missing, and what two delivered counts once
                assert (STEPS - 1 - max(steps)) * 256 <= dataset.quality["clicked"]["rows"] <= 6_666
            facts = dataset.facts
            assert facts["feeder"] == _feeder(dataset), "the one that serves now"
            assert Path(facts["log"]).exists()
            psutil.Process(_feeder(dataset)).kill()
        killed = len(deaths) + sum(map(len, deaths))  # the last one's successor is not needed
        assert dataset.stats().feeders == 1 + killed
        assert dataset.stats().rows == len(deaths) * STEPS * 256
    words = [record.message for record in caplog.records if "the feeder died" in record.message]
    assert len(words) == killed
    assert all("exit status -9" in word for word in words)


@pytest.mark.parametrize("edit", ["saved half", "another batch size", pytest.param("gone", marks=pytest.mark.nightly)])
def test_a_pipeline_that_is_edited_meanwhile_does_not_count(place: Place, monkeypatch: pytest.MonkeyPatch, edit: str):
    """A feeder that takes over has the spec that its trainer holds, with the environment variables of its start."""
    monkeypatch.setenv("CLICKS", str(place.table))
    path = place.write(source={"table": "${CLICKS}"})
    expected = oracle(path)
    with FeedlineDataset(path) as dataset:
        seen = []
        for batch in dataset:
            seen.append(image(batch))
            if batch.step == 12:
                if edit == "gone":
                    path.unlink()
                else:
                    text = place.write(batch={"size": 128}).read_text()
                    path.write_text(text[:60] if edit == "saved half" else text)
                monkeypatch.delenv("CLICKS")
                psutil.Process(_feeder(dataset)).kill()
        assert dataset.stats().feeders == 2
    assert seen == expected


def test_three_deaths_without_a_batch_raise_with_the_last_words(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho the disk is on fire >&2\nexit 7\n")
    broken.chmod(0o700)
    path = place.write()
    with FeedlineDataset(path) as dataset:
        monkeypatch.setenv("FEEDLINE_COMMAND", str(broken))
        iterator = iter(dataset)
        seen = [image(next(iterator)) for _ in range(9)]
        psutil.Process(_feeder(dataset)).kill()
        for _ in range(2):  # asking again is allowed, and answered the same
            with pytest.raises(FeederError, match=r"died 3 times(?s:.*)the disk is on fire(?s:.*)exit status 7"):
                list(iterator)
        monkeypatch.undo()
        seen += [image(batch) for batch in iterator]
        expected = oracle(path)
        assert seen[:9] + seen[-8:] == expected[:9] + expected[-8:]


def _feeder(dataset: FeedlineDataset) -> int:
    feeder = dataset._feed._connection._feeder
    return 0 if feeder is None else feeder.pid


# -- the worker, the scheduler ------------------------------------------------------------------------------------


def test_worker_processes_die_and_go_with_their_feeder(place: Place):
    """Of one worker, another takes the place, which makes the blocks that are left."""
    path = place.write(cluster={"workers": 1, "threads": 1}, source={"split_rows": 256}, shuffle={"window_rows": 256})
    with FeedlineDataset(path) as dataset:
        for epoch in range(2):
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                if (epoch, batch.step) not in ((0, 3), (1, 8)):
                    continue
                family = psutil.Process(_feeder(dataset)).children(recursive=True)
                [worker] = [each for each in family if "spawn_main" in " ".join(each.cmdline())]
                if epoch == 0:
                    worker.kill()
                else:
                    assert dataset.stats().feeders == 1
                    psutil.Process(_feeder(dataset)).kill()
                    assert all_gone(family)
            assert seen == oracle(path, epoch=epoch)
            if epoch == 0:
                assert {measures["rows"] for measures in dataset.quality.values()} == {6_666}, "none counts twice"
        assert dataset.stats().feeders == 2


@pytest.mark.nightly  # test_log_lines.py has a scheduler that dies and comes back to its worker
def test_a_scheduler_dies_with_its_workers_and_comes_back(place: Place, tmp_path: Path):
    with DaskCluster(tmp_path / "dask") as dask:
        small = {"source": {"split_rows": 256}, "shuffle": {"window_rows": 256}}
        path = place.write(cluster={"scheduler": dask.address, "wait_s": 60}, **small)
        with FeedlineDataset(path) as dataset:
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                if batch.step == 10:
                    dask.kill()
                    dask.start()
            assert seen == oracle(path)
            assert dataset.stats().feeders == 1


# -- the trainer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"threads": 1}, id="threads"),
        pytest.param({"workers": 1, "threads": 1}, id="workers", marks=pytest.mark.nightly),
    ],
)
def test_a_trainer_dies_and_resumes(place: Place, tmp_path: Path, cluster: dict):
    path = place.write(cluster=cluster)
    state = tmp_path / "state.pt"
    with trainer(path, state, "--epochs", 2, "--stop-after", 32) as first:
        first.line("feeder .* own")
        first.line("^1 5 ")
        family = first.descendants()
        first.kill()
        assert all_gone(family)
        assert eventually(lambda: not place.left(), within_s=15), place.left()
        seen = [line for line in first.lines if re.match(r"\d", line)]
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(torch.load(state, weights_only=True))
        seen += [_line(batch) for batch in dataset]
    assert seen == [_line(batch) for epoch in range(2) for batch in Pipeline.from_yaml(path).batches(epoch)]


def _line(batch: Batch) -> str:
    """What the program says of a batch."""
    return f"{batch.epoch} {batch.step} {sha256(image(batch)).hexdigest()}\n"


def test_a_trainer_dies_while_its_feeder_starts(place: Place, tmp_path: Path):
    path = place.write()
    with trainer(path, tmp_path / "state.pt") as made:
        made.line("made")
        assert eventually(lambda: bool(made.descendants()))
        family = made.descendants()
        made.kill()
        assert all_gone(family)
        assert eventually(lambda: not place.left(), within_s=15), place.left()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"processes": 1}, id="processes"),
        pytest.param({"workers": 1, "threads": 1}, id="workers", marks=pytest.mark.nightly),
    ],
)
def test_a_trainer_is_interrupted(place: Place, tmp_path: Path, cluster: dict):
    """Ctrl-C reaches the whole family; the trainer's `with` block ends it."""
    path = place.write(cluster=cluster)
    with trainer(path, tmp_path / "state.pt", "--epochs", 100_000) as program:
        program.line("^1 ")
        family = program.descendants()
        for process in [*family, psutil.Process(program.pid)]:
            process.send_signal(signal.SIGINT)
        assert program.wait(20) == -signal.SIGINT
        assert "KeyboardInterrupt" in program.text
        assert "died" not in program.text
        assert all_gone(family)


# -- feedline run -------------------------------------------------------------------------------------------------


def test_deaths_without_progress_end_a_run_and_others_do_not(place: Place):
    path = place.write(epochs=100)
    with feedline("run", path) as run:
        run.line("waiting for a trainer")
        with FeedlineDataset(path) as dataset:
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                if batch.step == 12:
                    assert dataset._feed.attached
                    psutil.Process(_feeder(dataset)).kill()
            assert dataset._feed.attached
            assert dataset.stats().feeders == 2
        assert seen == oracle(path)
        assert "feeder died (exit status -9), starting another" in run.text
        run.line("trainer left")
        for _ in range(2):  # without a batch in between: the third death of all, the second of these
            run.descendants()[0].kill()
            run.line("feeder died .* starting another")
            run.line("waiting for a trainer")
        run.descendants()[0].kill()
        assert run.wait(20) == 1
        assert "died 3 times without delivering a batch" in run.text
        assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_a_run_dies_under_its_trainer(place: Place, monkeypatch: pytest.MonkeyPatch):
    """The trainer goes on with a feeder of its own; the run's feeders end with it."""
    from feedline.loader.ring import rendezvous

    monkeypatch.setattr(rendezvous, "_SUCCESSOR_S", 0.5)
    path = place.write()
    with feedline("run", path, "--world-size", 2) as run:
        for _ in range(2):
            run.line("rank [01]: waiting for a trainer")
        family = run.descendants()
        with FeedlineDataset(path, rank=0, world_size=2) as dataset:
            iterator = iter(dataset)
            seen = [image(next(iterator)) for _ in range(5)]
            assert dataset._feed.attached
            run.kill()
            seen += [image(batch) for batch in iterator]
            assert not dataset._feed.attached
        assert seen == oracle(path, world_size=2)
        assert all_gone(family)
        assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_a_run_that_dies_as_it_starts_leaves_no_feeder(place: Place):
    path = place.write()
    with feedline("run", path) as run:
        family = eventually(run.descendants)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        assert all_gone(family)
        assert eventually(lambda: not place.left(), within_s=15), place.left()
