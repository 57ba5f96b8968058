"""Hand the results of Dask's tasks over in shared memory, where a worker runs on the feeder's host.

Runs in: the feeder (`SharedResults`) and Dask workers (`seat_at`). The feeder listens on an abstract UNIX socket of a
random name, which travels with each task. A worker in another network namespace, so on another host, finds nobody
there. Else each of its threads connects once, and sends a result before its task ends. For Dask nothing changes: the
worker keeps the result until the feeder releases the task, and whoever did not get it otherwise fetches it.

    worker -> feeder   the secret of the address; then results, as `pool/segments.py` sends values
    feeder -> worker   numbers of segments that are free again
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from feedline.blocks.request import BlockResult
from feedline.dataclass import dataclass
from feedline.loader.wire.codec import WIRE_VERSION
from feedline.service.pool.block_process import RESULT
from feedline.service.pool.segments import LOST, NoSegmentError, Reader, Segments, Writer

logger = logging.getLogger(__name__)

Arrived: TypeAlias = Callable[[str, BlockResult], None]  # takes the key and the result, in any thread

# An address: the random part of the socket's name, then a secret, which shows that the worker got a task.
_NAME_BYTES, _SECRET_BYTES = 12, 16
_SEGMENT = struct.Struct("<I")
_PEER = struct.Struct("3i")  # pid, user, group
_BACKLOG = 4096  # threads of all workers that connect at once
# A feeder that is stopped takes nothing from its sockets: its results are then fetched as others.
_SEND_S = 5


def _name(address: bytes) -> str:
    return f"\0feedline-results-{WIRE_VERSION}-{address[:_NAME_BYTES].hex()}"


def _user(connection: socket.socket) -> int:
    """The user on the other side, or who listens there."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])


# --------------------------------------------------------------------------------------------------------------------
# The feeder's side.


@dataclass(slots=True, eq=False)
class ExpectedResult:
    """The result of a task, until it has come in one way or the other. handed_over: it came in shared memory."""

    key: str
    arrived: Arrived
    handed_over: bool = False
    is_open: bool = True


@dataclass(slots=True, eq=False)
class _Seat:
    """A thread of a worker. greeting: what has come of the secret. unsent: numbers of free segments."""

    connection: socket.socket
    reader: Reader
    greeting: bytes = b""
    unsent: bytes = b""


class SharedResults:
    """Receives results. address: for the arguments of tasks (None: no worker can connect). Its methods may be called by
    any thread; none of them waits for a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll = select.epoll()
        self._seats: dict[int, _Seat] = {}  # by descriptor
        self._expected: dict[str, list[ExpectedResult]] = {}
        self._door: socket.socket | None = None
        self.address: bytes | None = secrets.token_bytes(_NAME_BYTES + _SECRET_BYTES)
        try:
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._door.setblocking(False)
            self._door.bind(_name(self.address))
            self._door.listen(_BACKLOG)
            self._epoll.register(self._door, select.EPOLLIN)
        except OSError as error:
            self._shut(f"this process cannot listen on a UNIX socket: {error}")

    def fileno(self) -> int:
        """A descriptor that is readable when `advance` has something to take."""
        return self._epoll.fileno()

    def expect(self, key: str, arrived: Arrived) -> ExpectedResult:
        """Expect the result of a task that is started now. arrived: called with it in the thread that takes it."""
        expected = ExpectedResult(key, arrived)
        with self._lock:
            self._expected.setdefault(key, []).append(expected)
            self._release()
        return expected

    def settle(self, expected: ExpectedResult) -> bool:
        """Expect it no longer. Returns whether it had not come, and was not settled."""
        with self._lock:
            if not expected.is_open:
                return False
            expected.is_open = False
            others = self._expected[expected.key]
            others.remove(expected)
            if not others:
                del self._expected[expected.key]
            return True

    def advance(self) -> None:
        """Take what has come: all results whose tasks have ended by now, if they come this way."""
        results: list[BlockResult] = []
        arrivals: list[tuple[ExpectedResult, BlockResult]] = []
        with self._lock:
            ready = [] if self._epoll.closed else [descriptor for descriptor, _ in self._epoll.poll(0)]
            if self._door is not None and self._door.fileno() in ready:
                ready += self._admit(self._door)
            for seat in [self._seats[each] for each in ready if each in self._seats]:
                results += self._receive(seat)
            while results:  # of keys that nobody expects any more, too: their segments are free at once
                result = results.pop()
                for expected in self._expected.pop(result.key, ()):
                    expected.is_open, expected.handed_over = False, True
                    arrivals.append((expected, result))
                del result
            self._release()
        for expected, result in arrivals:
            expected.arrived(expected.key, result)

    def close(self) -> None:
        """Close all connections. Results that have come stay."""
        with self._lock:
            for seat in [*self._seats.values()]:
                self._part(seat)
            self._shut(None)
            self._epoll.close()

    def _admit(self, door: socket.socket) -> list[int]:
        """The seats of those who wait at the door: what they have sent may be a result whose task has ended."""
        seats: list[int] = []
        try:
            while True:
                connection, _ = door.accept()
                if _user(connection) != os.geteuid():
                    connection.close()
                    continue
                connection.setblocking(False)
                self._seats[connection.fileno()] = _Seat(connection, Reader(connection))
                self._epoll.register(connection, select.EPOLLIN)
                seats.append(connection.fileno())
        except BlockingIOError:
            pass
        except OSError as error:  # those who wait shall notice
            self._shut(f"no connection of a worker can be accepted: {error}")
        return seats

    def _receive(self, seat: _Seat) -> list[BlockResult]:
        results: list[BlockResult] = []
        try:
            if not self._is_greeted(seat):
                return results
            while (arrival := seat.reader.receive()) is not None:
                if arrival[1] is LOST:
                    logger.warning(
                        "a worker of this host sends its blocks over TCP, not in shared memory: %s", seat.reader.refused
                    )
                    self._part(seat)  # by which its thread learns it
                    break
                results.append(arrival[1])
        except (EOFError, OSError):
            self._part(seat)
        return results

    def _is_greeted(self, seat: _Seat) -> bool:
        """Whether the worker's thread has shown the secret. Raises EOFError where it shows another one."""
        while (missing := _SECRET_BYTES - len(seat.greeting)) > 0:
            try:
                data = seat.connection.recvmsg(missing)[0]
            except BlockingIOError:
                return False
            seat.greeting += data
            if not data or not secrets.compare_digest(seat.greeting, self._secret[: len(seat.greeting)]):
                raise EOFError
        return True

    @property
    def _secret(self) -> bytes:
        return b"" if self.address is None else self.address[_NAME_BYTES:]

    def _release(self) -> None:
        """Tell workers which segments are free."""
        for seat in self._seats.values():
            released = seat.reader.released
            # finalizers append to it meanwhile
            numbers = [released.pop() for _ in range(len(released))]
            seat.unsent += b"".join(map(_SEGMENT.pack, numbers))
            if seat.unsent:
                try:
                    sent = seat.connection.send(seat.unsent, socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    continue
                except OSError:  # `_receive` finds the end of the connection
                    sent = len(seat.unsent)
                seat.unsent = seat.unsent[sent:]

    def _part(self, seat: _Seat) -> None:
        del self._seats[seat.connection.fileno()]
        self._epoll.unregister(seat.connection)
        seat.reader.close()

    def _shut(self, why: str | None) -> None:
        """Admit no more workers: those that are here stay. why: for the log."""
        if why is not None:
            logger.warning("workers of this host send blocks over TCP, not in shared memory: %s", why)
            self.address = None
        if self._door is not None:
            self._door.close()
            self._door = None


# --------------------------------------------------------------------------------------------------------------------
# The worker's side.


class WorkerSeat:
    """The connection of a worker's thread to a feeder. refuse: called when it cannot be used, with why."""

    def __init__(self, connection: socket.socket, refuse: Callable[[str | None], None]) -> None:
        self._connection, self._refuse = connection, refuse
        self._writer = Writer(connection, or_raise=True)
        self._rest = b""
        self._lock = threading.Lock()  # its thread sends, and `_Seats` closes
        self.is_open = True

    def fileno(self) -> int:
        return self._connection.fileno()

    def hand_over(self, result: BlockResult) -> None:
        """Send a result, if the feeder is still there."""
        with self._lock:
            if not self.is_open:
                return
            try:
                self._read_released()
                self._writer.send(RESULT, result)
            except EOFError:
                why = None
            except NoSegmentError as error:
                why = str(error)
            except OSError as error:
                why = f"the feeder takes none: {error}"
            else:
                return
            self._free()
            self._refuse(why)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)  # `_Seats` finds its end, and closes it

    def close(self) -> None:
        """Close the connection, and free the segments; what the feeder has of them stays there."""
        with self._lock:
            self._free()
            self._connection.close()

    def _free(self) -> None:
        self.is_open = False
        self._writer.segments = Segments()

    def _read_released(self) -> None:
        while True:
            try:
                data = self._connection.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise EOFError
            data = self._rest + data
            whole = len(data) - len(data) % _SEGMENT.size
            self._writer.segments.release([number for (number,) in _SEGMENT.iter_unpack(data[:whole])])
            self._rest = data[whole:]


class _Seats:
    """The seats of this process. A thread finds out when feeders end, and frees what they got: theirs may be idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats: dict[tuple[int, bytes], WorkerSeat] = {}  # by thread and address
        self._refused: set[bytes] = set()
        self._ends: select.epoll | None = None  # while there are seats

    def at(self, address: bytes) -> WorkerSeat | None:
        """This thread's seat; None if results cannot be handed over there. It is tried once."""
        key = threading.get_ident(), address
        if (seat := self._seats.get(key)) is not None and seat.is_open:
            return seat
        if address in self._refused:
            return None
        try:
            connection = _connect(address)
        except OSError as error:
            self._refuse(address, None if isinstance(error, ConnectionRefusedError) else str(error))
            return None
        with self._lock:
            seat = self._seats[key] = WorkerSeat(connection, partial(self._refuse, address))
            if self._ends is None:
                self._ends = select.epoll()
                threading.Thread(target=self._watch, args=(self._ends,), name="feedline-seats", daemon=True).start()
            self._ends.register(seat, select.EPOLLRDHUP)
        return seat

    def _refuse(self, address: bytes, why: str | None) -> None:
        """Let results go over TCP. why: for the log (None: the feeder is on another host, or has ended)."""
        if why is not None and address not in self._refused:
            logger.warning("blocks for a feeder of this host are sent over TCP, not in shared memory: %s", why)
        self._refused.add(address)

    def _watch(self, ends: select.epoll) -> None:
        """Close seats whose connections have ended, as long as there are any."""
        while True:
            ended = {descriptor for descriptor, _ in ends.poll()}
            with self._lock:
                for key, seat in [*self._seats.items()]:
                    if seat.fileno() in ended:
                        del self._seats[key]
                        self._refuse(key[1], None)
                        seat.close()
                if not self._seats:
                    self._ends = None
                    ends.close()
                    return


def _connect(address: bytes) -> socket.socket:
    """A connection to a feeder of this host and user. Raises OSError, ConnectionRefusedError where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        connection.connect(_name(address))
        is_ours = _user(connection) == os.geteuid()
        if is_ours:
            connection.sendall(address[_NAME_BYTES:], socket.MSG_NOSIGNAL)
    except OSError:
        connection.close()
        raise
    if not is_ours:
        connection.close()
        raise PermissionError("it belongs to another user")
    return connection


_SEATS = _Seats()
seat_at = _SEATS.at
