"""Receive what a feeder has announced, lease its slots, and report them as free.

Runs in: the trainer; packets also in the feeder. Compiled (`_ring.c`) when the package is installed, if there is a C
compiler: a call then does what takes ten here, and nothing in it is interrupted. Without it, `COMPILED` is False, and
the functions of the same names below do the same.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

_compiled: Any = None
with suppress(ImportError):  # installed without a compiler
    from feedline.native import _ring as _compiled  # type: ignore[attr-defined,no-redef]

VERSION = 1  # of the functions: of an older build, left in a checkout, nothing is called
COMPILED = _compiled is not None and getattr(_compiled, "VERSION", 0) == VERSION

READY = struct.Struct("<cIIIIQQQ")  # kind, stream, generation, slot, rows, epoch, step, bytes of the batch
FREE = struct.Struct("<cII")  # kind, generation, slot
FORMS = {b"R"[0]: READY, b"F"[0]: FREE}
_REPORTS = 1024  # at most in one packet
# Combined once: arithmetic on enumerations takes microseconds.
_NOW, _SEND_NOW = int(socket.MSG_DONTWAIT), int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

# A message received: its kind, then its fields.
Arrival: TypeAlias = tuple[Any, ...]


class Lease(Protocol):
    """The bytes of a slot, as a buffer. Arrays over it keep it; with its last reference the slot is released."""

    @property
    def generation(self) -> Any:
        """What the slot belongs to."""

    @property
    def fences(self) -> list[Any]:
        """Handed to `release`."""

    def __len__(self) -> int: ...


class Generation(Protocol):
    """What leases need of a generation. tear: called after an error or an interrupt, which may have lost a slot."""

    number: int
    closed: bool

    def tear(self) -> None: ...


class Books(NamedTuple):
    """What the leases of a generation share.

    unsent: packed reports of free slots. A slot without fences is reported there, and all are sent over the connection
    once there are as many as arrivals in the queue. release: called with generation, slot and fences of a slot that has
    fences; in any thread, with errors written as in any finalizer.
    """

    generation: Generation
    leased: set[int]
    unsent: list[bytes]
    queue: deque[Arrival]
    connection: socket.socket
    release: Callable[[Any, int, list[Any]], None]


class Uncompiled:
    """The functions without compiled code."""

    now = 0  # counts calls of `forget_leases`

    @staticmethod
    def receive(connection: socket.socket, packet: bytearray, queue: deque[Arrival]) -> int:
        while True:
            try:
                size = connection.recv_into(packet, 0, _NOW)
            except BlockingIOError:
                return -1
            form = FORMS.get(packet[0]) if size else None
            if form is None:
                return size
            queue.extend(form.iter_unpack(memoryview(packet)[:size]))

    @staticmethod
    def send(connection: socket.socket, packet: bytes) -> bool:
        try:
            connection.send(packet, _SEND_NOW)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    def flush(connection: socket.socket, unsent: list[bytes]) -> None:
        while unsent:
            reports: list[bytes] = []
            with suppress(IndexError):  # another thread took the last one
                while len(reports) < _REPORTS:
                    reports.append(unsent.pop(0))
            if not reports:
                return  # an empty packet would be the end of the connection
            try:
                connection.send(b"".join(reports), _SEND_NOW)
            except BlockingIOError:
                unsent[:0] = reports
                return
            except OSError:
                return  # the other side is gone

    @staticmethod
    def lease(mapping: Any, start: int, nbytes: int, books: Books, slot: int) -> ArrayLease:
        lease = ArrayLease((nbytes,), np.uint8, mapping, start)
        books.leased.add(slot)
        lease.books, lease.fences, lease.time = books, [], Uncompiled.now
        lease.slot = slot  # last: an incomplete lease frees nothing
        return lease

    @staticmethod
    def forget_leases() -> None:
        Uncompiled.now += 1


class ArrayLease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A lease without compiled code."""

    books: Books
    fences: list[Any]
    slot = -1  # also of a slice of a lease, which frees nothing
    time = 0

    @property
    def generation(self) -> Any:
        return self.books.generation

    def __del__(self) -> None:
        if self.slot < 0 or self.time != Uncompiled.now:
            return
        generation, leased, unsent, queue, connection, release = self.books
        try:
            if self.fences:
                release(generation, self.slot, self.fences)
            elif not generation.closed:
                leased.discard(self.slot)
                unsent.append(FREE.pack(b"F", generation.number, self.slot))
                if len(unsent) >= len(queue):
                    flush(connection, unsent)
        except BaseException:
            generation.tear()
            raise


_functions: Any = _compiled if COMPILED else Uncompiled

# receive(connection, packet, queue): puts all READY and FREE that have come into the queue, as the tuples of their
# structs, up to a packet of another kind; returns the size of that packet, 0 at the end of the connection, -1 if no
# more has come. Raises OSError.
receive: Callable[[socket.socket, bytearray, deque[Arrival]], int] = _functions.receive
# send(connection, packet): sends a packet; False if there is no room now. Raises OSError.
send: Callable[[socket.socket, bytes], bool] = _functions.send
# flush(connection, unsent): sends reports, many in a packet; those that find no room stay. Errors are ignored.
flush: Callable[[socket.socket, list[bytes]], None] = _functions.flush
# lease(mapping, start, nbytes, books, slot): a lease of a slot, whose bytes begin there.
lease: Callable[[Any, int, int, Books, int], Lease] = _functions.lease
# forget_leases(): those that there are release nothing.
forget_leases: Callable[[], None] = _functions.forget_leases
