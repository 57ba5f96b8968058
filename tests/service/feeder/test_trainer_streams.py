"""The epochs after the one that a trainer reads: which of their blocks are submitted, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pipelines import PATIENCE_S, eventually
from ringless_trainers import Trainer, trainers_of, write_pipeline

from feedline.errors import DataError, PlanError
from feedline.loader.wire.ring_messages import Diagnose, Diagnosis, FeederFailure
from feedline.planning.plan import Plan
from feedline.service.cluster import attempts
from feedline.service.cluster.open_cluster import LocalCluster
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.feeder.delivery import Delivery

WINDOW, STEPS = 3, 40  # an epoch is a single block, and has more steps than the ring has slots
ALL = list(range(STEPS))


class Submitted:
    """The epochs of the blocks in the order of their submission, and the blocks in flight after each."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.in_flight: list[int] = []

    def settled_at(self, epochs: list[int]) -> bool:
        """Whether these epochs' blocks are submitted in the end, and no others."""
        return bool(eventually(lambda: len(self.epochs) >= len(epochs))) and self.epochs == epochs


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    found, submit = Submitted(), Delivery._submit

    def record(delivery: Delivery, work: Any, *arguments: Any, **options: Any) -> None:
        found.epochs.append(epoch_of(work.request))
        found.in_flight.append(delivery._window.in_flight)
        submit(delivery, work, *arguments, **options)

    monkeypatch.setattr(Delivery, "_submit", record)
    return found


def epoch_of(request: Any) -> int:
    return int(request.permutation[2])


@contextmanager
def trainer_of(folder: Path, *, window: int = WINDOW) -> Iterator[Trainer]:
    path = write_pipeline(folder, steps=STEPS)
    path.write_text(path.read_text().replace("dashboard: false", f"dashboard: false, window: {window}"))
    with trainers_of(path) as (trainer,):
        yield trainer


def error_of(trainer: Trainer) -> str:
    """The error that ends the session."""
    while True:
        arrival = trainer.channel.receive()
        assert arrival is not None
        if isinstance(failure := arrival[1], FeederFailure):
            return failure.message


def test_the_next_epochs_blocks_are_submitted_within_the_window_before_a_step_is_taken(
    tmp_path: Path, submitted: Submitted
):
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2]), "the trainer has read nothing"
        for epoch in range(4):
            assert trainer.read() == ALL
            assert eventually(lambda epoch=epoch: len(submitted.epochs) == epoch + 1 + WINDOW)
            trainer.begin(last=False)
        assert trainer.read() == ALL
    assert submitted.epochs == sorted(submitted.epochs), "one block per epoch, in their order"
    assert len(submitted.epochs) == len(set(submitted.epochs)), "none twice"
    assert max(submitted.in_flight) <= WINDOW


def test_a_window_of_one_block_has_no_room_for_the_next_epoch_before_the_end(tmp_path: Path, submitted: Submitted):
    with trainer_of(tmp_path, window=1) as trainer:
        for _ in range(3):
            trainer.begin(last=False)
            assert trainer.read() == ALL
        assert submitted.settled_at([0, 1, 2, 3])
    assert max(submitted.in_flight) == 1


def test_nothing_is_computed_beyond_the_last_epoch(tmp_path: Path, submitted: Submitted):
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=True)
        assert trainer.read() == ALL
        trainer.channel.send_message(Diagnose())  # the feeder's loop has gone on
        while not isinstance(trainer._receive()[1], Diagnosis):
            pass
    assert submitted.epochs == [0]


def test_a_trainer_that_repeats_an_epoch_gets_nothing_ahead_until_it_goes_on(tmp_path: Path, submitted: Submitted):
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2])
        for _ in range(2):
            trainer.begin(epoch=0, last=False)
            assert trainer.read() == ALL
        assert submitted.settled_at([0, 1, 2, 0, 0])
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2, 0, 0, 1, 2, 3])
        assert trainer.read() == ALL


def test_a_trainer_that_skips_an_epoch_gets_the_later_one_that_is_there(tmp_path: Path, submitted: Submitted):
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2])
        trainer.begin(epoch=2, last=False)
        assert trainer.read() == ALL
        assert submitted.epochs == [0, 1, 2]


@pytest.mark.parametrize(("epoch", "step"), [(7, 0), (1, 3), (0, 5)])
def test_a_trainer_that_begins_elsewhere_gets_what_it_asked_for(
    tmp_path: Path, submitted: Submitted, epoch: int, step: int
):
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2])
        trainer.begin(epoch=epoch, step=step, last=True)
        assert trainer.read() == ALL[step:]
    assert submitted.epochs == [0, 1, 2, epoch]


def test_the_schedules_error_of_an_epoch_is_raised_if_the_trainer_asks_for_it(
    tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
):
    schedule = Plan.schedule

    def fail(plan: Plan, epoch: int) -> Any:
        if epoch == 2:
            raise PlanError("epoch 2 has no step")
        return schedule(plan, epoch)

    monkeypatch.setattr(Plan, "schedule", fail)
    with trainer_of(tmp_path) as trainer:
        for _ in range(2):
            trainer.begin(last=False)
            assert trainer.read() == ALL
        trainer.begin(epoch=3, last=False)
        assert trainer.read() == ALL
        trainer.begin(epoch=1, last=False)
        assert trainer.read() == ALL
        trainer.begin(last=False)
        assert error_of(trainer) == "epoch 2 has no step"


def test_a_blocks_error_is_raised_if_the_trainer_asks_for_its_epoch(
    tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
):
    run = attempts.run_block

    def fail(job: Any, request: Any, *arguments: Any) -> Any:
        if epoch_of(request) == 1:
            raise DataError("a block of epoch 1 is bad")
        return run(job, request, *arguments)

    monkeypatch.setattr(attempts, "run_block", fail)
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=False)
        assert submitted.settled_at([0, 1, 2])
        assert trainer.read() == ALL
        trainer.begin(epoch=2, last=False)
        assert trainer.read() == ALL
        trainer.begin(epoch=1, last=False)
        assert "a block of epoch 1 is bad" in error_of(trainer)


def test_the_scheduler_is_asked_once_until_it_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However often a trainer asks why there is no batch; each question is answered."""
    run, begun, release = attempts.run_block, threading.Event(), threading.Event()
    asked: list[Future[TaskPlaces | None]] = []

    def wait(job: Any, request: Any, *arguments: Any) -> Any:
        begun.set()
        release.wait(PATIENCE_S)
        return run(job, request, *arguments)

    def places_of(*_: Any, **__: Any) -> Future[TaskPlaces | None]:
        asked.append(Future())
        return asked[-1]

    monkeypatch.setattr(attempts, "run_block", wait)
    monkeypatch.setattr(LocalCluster, "places_of", places_of)
    with trainer_of(tmp_path) as trainer:
        trainer.begin(last=True)
        assert begun.wait(PATIENCE_S)
        for number in range(2):
            for _ in range(50):
                trainer.channel.send_message(Diagnose())
            assert eventually(lambda number=number: len(asked) == number + 1)
            assert not eventually(lambda number=number: len(asked) > number + 1, within_s=0.2)
            asked[-1].set_result(TaskPlaces({}, {}))
            texts = {trainer.channel.receive()[1].text for _ in range(50)}
            assert ["waiting for a free worker" in text for text in texts] == [True], texts
        release.set()
        assert trainer.read() == ALL
