"""Break connections to a scheduler that carry nothing (docs/decisions/0025-half-open-connections.md).

Runs in: the feeder, on the event loop of Dask's client. It regularly asks for an echo that takes both of the client's
connections: it subscribes to a topic through the stream of tasks, asks for an event by a call, and expects the event
from the stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from concurrent.futures import Future as Handle
from typing import Any

from distributed import Client

logger = logging.getLogger(__name__)

_EVERY_S = 5.0
# Rounds are counted, not seconds: a process that was suspended finds its answers waiting when it goes on.
_ROUND_S, _ROUNDS = 2.5, 5
_SUBSCRIBED_S = 0.05  # time for the subscription to overtake the call, so that one round is enough
_TOPIC = "feedline-echo"  # of all clients: a scheduler keeps topics for good


class SchedulerEcho:
    """Asks for echoes, and breaks the connections of a client that gets none: it then connects again by itself."""

    def __init__(self) -> None:
        self._asking: Handle[None] | None = None
        self._numbers = itertools.count()

    def look(self, client: Client) -> None:
        """Ask for an echo some seconds after the last one. Never blocks."""
        if self._asking is None or self._asking.done():
            loop: Any = client.loop
            self._asking = asyncio.run_coroutine_threadsafe(self._ask(client), loop.asyncio_loop)

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, client: Client) -> None:
        await asyncio.sleep(_EVERY_S)
        stream = client.scheduler_comm
        if stream is not None and not await self._is_heard(client) and stream is client.scheduler_comm:
            logger.warning(
                "the Dask scheduler at %s has not answered for %.0f s, although its connection is open: connecting "
                "again",
                _address_of(client),
                _ROUND_S * _ROUNDS,
            )
            sever(client)

    async def _is_heard(self, client: Client) -> bool:
        """Whether an echo arrives. True if the connection breaks meanwhile, which the client notices itself."""
        scheduler: Any = client.scheduler
        message, heard = f"{client.id} {next(self._numbers)}", asyncio.Event()

        def hear(event: tuple[float, str]) -> None:
            if event[1] == message:
                heard.set()

        client.subscribe_topic(_TOPIC, hear)
        try:
            await asyncio.sleep(_SUBSCRIBED_S)
            for _ in range(_ROUNDS):
                try:
                    async with asyncio.timeout(_ROUND_S):
                        await scheduler.log_event(topic=_TOPIC, msg=message)
                        await heard.wait()
                        return True
                except TimeoutError:
                    continue
        except OSError:
            return True
        else:
            return False
        finally:
            if heard.is_set() and client.status == "running":  # else the subscription ends with the connection
                client.unsubscribe_topic(_TOPIC)


def sever(client: Client) -> None:
    """Break all connections to the scheduler, on the client's event loop."""
    client.rpc.remove(_address_of(client))
    stream = client.scheduler_comm
    if stream is not None:
        stream.comm.abort()


def _address_of(client: Client) -> str:
    scheduler: Any = client.scheduler
    return str(scheduler.address)
