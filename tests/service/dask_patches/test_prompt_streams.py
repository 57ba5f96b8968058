"""Dask's messages within a process arrive in their order, without timers, up to the end of their stream."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import distributed.client
import distributed.scheduler
import distributed.worker
import pytest
from distributed.batched import BatchedSend
from distributed.comm import CommClosedError, connect, listen

from feedline.service.dask_patches.prompt_streams import PromptSend, send_promptly


async def received(address: str, send: Any) -> list[Any]:
    """What the other end of a stream to such an address gets while `send` uses the stream."""
    lists: list[Any] = []
    ended = asyncio.Event()

    async def read(comm: Any) -> None:
        try:
            while True:
                lists.append(await comm.read())
        except CommClosedError:
            ended.set()

    async with listen(address, read) as listener:
        comm = await connect(listener.contact_address)
        stream = PromptSend(interval="1h")
        await send(stream, comm)
        async with asyncio.timeout(60):
            await ended.wait()
        assert stream.closed()
    return lists


@pytest.mark.parametrize("address", ["inproc://", "tcp://127.0.0.1:0"])
def test_what_is_sent_before_and_after_the_start_arrives_in_order(address: str):
    async def send(stream: PromptSend, comm: Any) -> None:
        stream.send(1)
        stream.send(2, 3)
        stream.start(comm)
        await asyncio.sleep(0)
        stream.send(4)
        stream.send(5)
        await stream.close()
        with pytest.raises(CommClosedError):
            stream.send(6)

    lists = asyncio.run(received(address, send))
    assert [each for messages in lists for each in messages] == [1, 2, 3, 4, 5]


def test_messages_of_a_turn_are_one_and_those_of_the_next_wait_for_nothing():
    async def send(stream: PromptSend, comm: Any) -> None:
        stream.start(comm)
        for turn in range(3):  # the interval is an hour
            stream.send((turn, 0))
            stream.send((turn, 1))
            await asyncio.sleep(0)
        await stream.close()

    assert asyncio.run(received("inproc://", send)) == [[(turn, 0), (turn, 1)] for turn in range(3)]


def test_an_aborted_stream_drops_what_was_not_sent():
    async def send(stream: PromptSend, comm: Any) -> None:
        stream.start(comm)
        stream.send(1)
        stream.abort()

    assert asyncio.run(received("inproc://", send)) == []


NODES = (distributed.client, distributed.scheduler, distributed.worker)


def test_dask_makes_its_streams_of_what_is_replaced(monkeypatch: pytest.MonkeyPatch):
    for module in NODES:
        monkeypatch.setattr(module, "BatchedSend", BatchedSend)  # restored afterwards; fails where there is none
        assert "BatchedSend(interval=" in inspect.getsource(module)
    assert {"start", "send", "close", "abort"} <= vars(BatchedSend).keys()
    send_promptly()
    assert all(module.BatchedSend is PromptSend for module in NODES)
