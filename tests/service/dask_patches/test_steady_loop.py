"""Dask's messages go on when the wall clock jumps."""

from __future__ import annotations

import asyncio
import inspect
import time
from types import SimpleNamespace
from typing import Any

import distributed.batched
import distributed.scheduler
import pytest
from distributed.batched import BatchedSend
from tornado.ioloop import IOLoop, PeriodicCallback

from feedline.service.dask_patches.steady_loop import steady, steady_clock


class Comm:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def closed(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    async def write(self, messages: list[Any], **_: Any) -> int:
        self.messages += messages
        return 1


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_message_soon_after_another_is_not_held_back(jump_s: int, monkeypatch: pytest.MonkeyPatch):
    async def send_two() -> list[Any]:
        loop = IOLoop.current()
        steady(loop)
        comm = Comm()
        stream = BatchedSend(interval="200ms", loop=loop)
        stream.start(comm)
        for number in (1, 2):
            stream.send(number)
            async with asyncio.timeout(30):
                while len(comm.messages) < number:
                    await asyncio.sleep(0)
        stream.abort()
        return comm.messages

    monkeypatch.setattr(distributed.batched, "time", lambda: time.time() + jump_s)
    assert asyncio.run(send_two()) == [1, 2]


def test_clocks_go_on_from_what_was_counted_by_before(monkeypatch: pytest.MonkeyPatch):
    """A process may have been suspended for hours, or its clock set, since it has loaded the module."""
    monkeypatch.setattr(distributed.batched, "time", time.time)
    loop = SimpleNamespace(time=lambda: 5e6)
    steady(loop)
    assert loop.time() == pytest.approx(5e6, abs=60)
    monkeypatch.setattr(time, "time", lambda: 7e6)
    assert steady_clock()() == pytest.approx(7e6, abs=60)


def test_dask_reads_the_clocks_that_are_replaced():
    assert "time() < self.next_deadline" in inspect.getsource(BatchedSend)
    assert "now = time()" in inspect.getsource(distributed.Scheduler.check_worker_ttl)
    assert "self.io_loop.time()" in inspect.getsource(PeriodicCallback)
    assert callable(distributed.scheduler.time)
