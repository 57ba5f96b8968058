"""Nothing on the feeder's loop waits for another process: a scheduler that answers nothing delays no batch."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster, get_worker
from loop_waits import no_waits
from pipelines import eventually
from ringless_trainers import PIPELINE, trainers_of, write_pipeline
from schedulers import local_cluster

from feedline.blocks.request import BlockResult
from feedline.errors import TableError
from feedline.loader.wire.ring_messages import Diagnose, Diagnosis
from feedline.service.cluster import attempts, scheduler_connection
from feedline.service.feeder import block_work, feeder
from feedline.service.feeder.delivery import Delivery
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder_status import StatusGatherer

STEPS = 12


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[AssertionError]:
    """What feeders' loops waited for; they look after their clusters in every turn."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setattr(feeder, "_TICK_S", 0.02)
    found: list[AssertionError] = []
    serve = Feeder.serve

    def watched(self: Feeder, *, until: Callable[[], bool]) -> None:
        try:
            with no_waits():
                serve(self, until=until)
        except AssertionError as error:
            found.append(error)

    monkeypatch.setattr(Feeder, "serve", watched)
    return found


def write(folder: Path, scheduler: LocalCluster) -> Path:
    path = write_pipeline(folder, steps=STEPS)
    cluster = f'{{scheduler: "{scheduler.scheduler_address}", window: {STEPS}, cpu: native}}'
    text = PIPELINE.replace("{threads: 1, dashboard: false}", cluster).replace(
        "table: table", "table: table, split_rows: 100"
    )
    path.write_text(text + "shuffle: off\n")
    return path


def silence(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the scheduler answers none of these questions, as if its process was stopped."""

    async def never(**_: Any) -> None:
        await asyncio.Event().wait()

    for name in ("identity", "ncores", "processing", "who_has", "call_stack", "feedline_report"):
        monkeypatch.setitem(cluster.scheduler.handlers, name, never)


def test_batches_come_while_the_scheduler_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[AssertionError]
):
    monkeypatch.setattr(scheduler_connection, "_ANSWER_S", 0.2)
    blocks = []
    keep = Delivery._keep
    monkeypatch.setattr(Delivery, "_keep", lambda *arguments: (keep(*arguments), blocks.append(1)))
    gatherers: list[StatusGatherer] = []
    gather = StatusGatherer._gather
    monkeypatch.setattr(StatusGatherer, "_gather", lambda self, _: (gatherers.append(self), gather(self, _))[1])
    with (
        local_cluster("feedline.service.scheduler.preload") as local,
        trainers_of(write(tmp_path, local), with_status=True) as (trainer,),
    ):
        trainer.begin(last=True)
        assert eventually(lambda: len(blocks) == STEPS), "the window holds all blocks"
        silence(local, monkeypatch)
        looks = len(gatherers)
        assert eventually(lambda: len(gatherers) > looks + 5)
        trainer.channel.send_message(Diagnose())
        assert trainer.read() == list(range(STEPS))
        assert gatherers[-1].status.dashboard == local.dashboard_link
    assert waits == []


def test_a_missing_block_is_described_while_the_scheduler_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[AssertionError]
):
    monkeypatch.setattr(scheduler_connection, "_ANSWER_S", 0.2)
    begun, end, run = threading.Event(), threading.Event(), attempts.run_block

    def work(*arguments: Any) -> BlockResult:
        begun.set()
        assert end.wait(60)
        return run(*arguments)

    monkeypatch.setattr(attempts, "run_block", work)
    with local_cluster() as local, trainers_of(write(tmp_path, local), with_status=True) as (trainer,):
        trainer.begin(last=True)
        assert begun.wait(60)
        with monkeypatch.context() as patch:
            silence(local, patch)
            trainer.channel.send_message(Diagnose())
            while not isinstance(answer := trainer.channel.receive()[1], Diagnosis):
                pass
        end.set()
        assert "is not known: the Dask scheduler does not answer" in answer.text
        assert trainer.read() == list(range(STEPS))
    assert waits == []


def test_a_file_that_workers_cannot_read_is_looked_at_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[AssertionError]
):
    """Each worker fails, one after the other; then the feeder opens the file itself."""

    def work(*_: Any) -> BlockResult:
        raise TableError(f"the table t does not exist on {get_worker().address}")

    opened: list[str] = []
    unreadable = block_work.unreadable
    monkeypatch.setattr(
        block_work,
        "unreadable",
        lambda fragment: (opened.append(threading.current_thread().name), unreadable(fragment))[1],
    )
    monkeypatch.setattr(attempts, "run_block", work)
    with local_cluster() as local, trainers_of(write(tmp_path, local), with_status=True) as (trainer,):
        trainer.begin(last=True)
        with pytest.raises(AssertionError, match=r"every worker that was tried .* cannot read the table"):
            trainer.read()
    assert set(opened) == {"feedline-explain"}
    assert waits == []


def test_the_profile_finds_what_waits(tmp_path: Path):
    """Files, events, answers of others: and neither memory nor what is there already."""
    done: Any = __import__("concurrent.futures").futures.Future()
    done.set_result(1)
    with no_waits():
        assert done.result() == 1
        sys.getsizeof(tmp_path)
    for wait in (
        lambda: threading.Event().wait(0.001),
        lambda: (tmp_path / "file").exists(),
        lambda: (tmp_path / "file").write_text("x"),
    ):
        with pytest.raises(AssertionError, match="the loop waits"), no_waits():
            wait()
