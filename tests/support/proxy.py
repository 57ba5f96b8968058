"""A TCP proxy on loopback that delays, breaks or half-opens the connections that it carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

_CHUNK = 1 << 18
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


@dataclass(eq=False)
class _Pair:
    """A connection: the client's side and ours to the target. swallows: what comes is read and dropped."""

    streams: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    swallows: bool = False


class Proxy:
    """Passes connections of `port` on to a port of this machine, and does to them what networks do."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._pairs: list[_Pair] = []
        self._hold_until_s = 0.0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def connections(self) -> int:
        """How many connections there are."""
        return self._call(lambda: len(self._pairs))

    def cut(self) -> int:
        """Reset the connections there are; how many."""
        return self._call(self._cut)

    def half_open(self) -> int:
        """Drop the bytes of the connections there are, in both directions, and keep them open; how many."""

        def swallow() -> int:
            for pair in self._pairs:
                pair.swallows = True
            return len(self._pairs)

        return self._call(swallow)

    def delay(self, seconds: float) -> int:
        """Pass nothing on for a while; how many connections there are."""

        def hold() -> int:
            self._hold_until_s = self._loop.time() + seconds
            return len(self._pairs)

        return self._call(hold)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def _call(self, act: Callable[[], int]) -> int:
        async def call() -> int:
            return act()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _cut(self) -> int:
        for pair in self._pairs:
            for stream in pair.streams:
                with contextlib.suppress(OSError):  # one that has just been closed
                    stream.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                stream.transport.abort()
        return len(self._pairs)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        server = await asyncio.start_server(self._connect, sock=self._server)
        self._ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            self._cut()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, other = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair((writer, other))
        self._pairs.append(pair)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
                await asyncio.gather(self._pump(reader, other, pair), self._pump(theirs, writer, pair))
        finally:
            self._pairs.remove(pair)
            for stream in pair.streams:
                stream.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                while (left_s := self._hold_until_s - self._loop.time()) > 0:
                    await asyncio.sleep(left_s)
                if not pair.swallows:
                    writer.write(data)
                    await writer.drain()
        if not pair.swallows:
            writer.close()
