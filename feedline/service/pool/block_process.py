"""Compute blocks in a worker process of a feeder, which hands them over in shared memory.

Runs in: processes that a feeder's zygote forks, or that import for themselves. Each connection is a seat, served by one
thread: it takes one request after the other, in their order. The end of a connection is the end of its seat, and that
of the last one of the process.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from feedline.dataclass import dataclass
from feedline.resources.result_memory import lay_results
from feedline.service.pool.segments import Writer

LENGTH = struct.Struct("<Q")  # of a request, before it
RESULT, PART = b"R", b"P"

# Computes what a request asks for; gets the request's arguments, and what hands a part over.
Compute = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRequest:
    """One task for a seat. arguments: of what computes it. parts: whether it hands over parts before its result.
    released: segments that are free again. inline: why results are to come through the socket."""

    arguments: tuple[Any, ...]
    parts: int
    released: Sequence[int]
    inline: str | None

    def pack(self) -> bytes:
        data = pickle.dumps(self, protocol=5)
        return LENGTH.pack(len(data)) + data


def serve_seats(compute: Compute, descriptors: Sequence[int]) -> None:
    """Serve the seats of a process until the feeder closes their connections."""
    seats = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for seat in seats[1:]:
        threading.Thread(target=_serve, args=(compute, seat), name="feedline-block", daemon=True).start()
    _serve(compute, seats[0])


def _serve(compute: Compute, connection: socket.socket) -> None:
    with connection, suppress(EOFError, ConnectionError):
        requests, writer = _Requests(connection), Writer(connection)
        requests.on_request = partial(_prepare, writer)
        lay_results(writer.memory)
        while True:
            request = requests.next()
            hand_over = partial(writer.send, PART) if request.parts else None
            value = compute(*request.arguments, request.parts, hand_over)
            requests.read_waiting()  # segments may be free again
            writer.send(RESULT, value)
            del value  # before the next block needs memory


def _prepare(writer: Writer, request: SeatRequest) -> None:
    writer.segments.release(request.released)
    writer.inline = writer.inline or request.inline


class _Requests:
    """The requests that come over a connection. on_request: called with each as it is read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._waiting: deque[SeatRequest] = deque()
        self.on_request: Callable[[SeatRequest], None] = lambda request: None

    def next(self) -> SeatRequest:
        """The next request, once it has come. Raises EOFError at the end of the connection."""
        if not self._waiting:
            self._read()
        return self._waiting.popleft()

    def read_waiting(self) -> None:
        """Read what has come."""
        while self._poll.poll(0):
            self._read()

    def _read(self) -> None:
        [length] = LENGTH.unpack(self._receive(LENGTH.size))
        request: SeatRequest = pickle.loads(self._receive(length))
        self.on_request(request)
        self._waiting.append(request)

    def _receive(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view = memoryview(data)
        while view:
            received = self._connection.recv_into(view)
            if not received:
                raise EOFError
            view = view[received:]
        return data
