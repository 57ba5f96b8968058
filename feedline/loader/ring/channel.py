"""The channel between a feeder and its trainer: small messages over one UNIX SOCK_SEQPACKET connection.

Runs in: both. A message is one packet: a byte for its kind, then a few packed integers (the messages of each batch) or
JSON (`wire/ring_messages.py`). A message too long for a packet travels as a sealed memfd. The death of either side is
an EOF for the other.

    trainer -> feeder   messages of FROM_TRAINER;  FREE generation slot ...
    feeder -> trainer   messages of FROM_FEEDER;  READY ...;  END ...;  REPORT ..., the feeder's packed stats, and the
                        bytes of its quality counts

A packet of READY or FREE may hold several, back to back. A packet with a descriptor follows one that says so, since
receiving without room for descriptors is cheaper.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from feedline.errors import FeederError
from feedline.loader.wire.codec import pack, unpack_kind
from feedline.loader.wire.ring_messages import KINDS, MESSAGES
from feedline.native import ring as native
from feedline.native.ring import FREE, Arrival

END = struct.Struct("<cIQ")  # kind, stream, epoch
REPORT = struct.Struct("<cII")  # kind, stream, bytes of the stats that follow; the rest are `EpochCounts`

# Linux refuses packets above the socket's buffer (208 KiB by default), and a short read truncates one silently.
_PACKET_BYTES = 64 * 1024
_INLINE_BYTES = 32 * 1024
_LONGEST_BYTES = 2**30  # of a message: memory may have a size without pages, which reading it would fill
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)  # one descriptor
_DESCRIPTOR_FOLLOWS = b"D"
# Combined once: arithmetic on enumerations takes microseconds.
_SEND, _SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_RECEIVE_NOW = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE if hasattr(fcntl, "F_SEAL_SHRINK") else 0


# A forked child of the trainer inherits its descriptors, and would hide the trainer's death from the feeder.
_open_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


class ChannelClosedError(ConnectionError):
    """The other side is gone."""


class Descriptor:
    """A descriptor received with a message, closed with its last reference: an interrupt may drop it anywhere."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def from_ancillary(cls, ancillary: list[tuple[int, int, bytes]]) -> Descriptor:
        """The descriptor in a packet's ancillary data."""
        return cls(int.from_bytes(ancillary[0][2][:4], sys.byteorder))

    def close(self) -> None:
        """Close it now."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


class Channel:
    """One end of the connection. Not thread-safe, except `free`, which any thread or finalizer may call.

    A trainer uses `send` and `free`. A feeder, which serves several trainers in one thread, uses `post`, which never
    waits: what finds no room goes to an outbox, which `deliver` empties in order when the socket has room again.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.unsent: list[bytes] = []  # reports of free slots, until `flush`
        # READY and FREE that have come and were not taken; a trainer adds END. In an `Arrival` the kind is followed by
        # the fields of READY, END or FREE, the bytes of REPORT, or a message and its `Descriptor` or None.
        self.queue: deque[Arrival] = deque()
        self._outbox: deque[tuple[bytes, Descriptor | None]] = deque()  # posted packets that found no room
        self._packet = bytearray(_PACKET_BYTES)  # the one received last
        self._descriptor_follows = False  # one of the next packets received has a descriptor
        self._announced_descriptor = False  # the same of the next ones sent
        _open_channels.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._outbox.clear()
        self._socket.close()

    def shut_down(self) -> None:
        """Shut the connection down for both sides and wake a thread that waits on it; the descriptor stays open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_connected(self) -> bool:
        """Whether the other side is still connected. Reads nothing."""
        return not self._await(select.POLLRDHUP, 0)

    def peer_uid(self) -> int:
        """The user id of the other side."""
        return self._peer()[1]

    def peer_pid(self) -> int:
        """The process id of the other side."""
        return self._peer()[0]

    def _peer(self) -> tuple[int, ...]:
        """Process, user and group of the other side."""
        return struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

    def send(self, packet: bytes, fd: int | None = None, *, wait: bool = True) -> bool:
        """Send one packet, waiting for room in the socket's buffer; without `wait`, return False if there is none.

        Raises ChannelClosedError if the other side is gone.
        """
        flags = _SEND if wait else _SEND_NOW
        try:
            if fd is None and not wait:
                return native.send(self._socket, packet)
            if fd is None:
                self._socket.send(packet, flags)
            else:
                if not self._announced_descriptor:
                    self._socket.send(_DESCRIPTOR_FOLLOWS, flags)
                    self._announced_descriptor = True
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._socket.sendmsg([packet], ancillary, flags)
                self._announced_descriptor = False
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        return True

    def send_message(self, message: object, fd: int | None = None, *, wait: bool = True) -> bool:
        """`send` a message of any length."""
        packet = _packed(message)
        if fd is not None:
            return self.send(_short(packet), fd, wait=wait)
        if len(packet) <= _INLINE_BYTES:
            return self.send(packet, wait=wait)
        blob = _sealed(packet)
        try:
            return self.send(b"L", blob.number, wait=wait)
        finally:
            blob.close()

    def post(self, packet: bytes, fd: int | None = None) -> None:
        """Send one packet of any length now, or, if the socket has no room, when `deliver` finds some.

        Raises ChannelClosedError if the other side is gone.
        """
        if len(packet) > _INLINE_BYTES:
            assert fd is None
            packet, descriptor = b"L", _sealed(packet)
        elif fd is None:
            if not self._outbox and self.send(packet, wait=False):
                return
            descriptor = None
        else:
            descriptor = Descriptor(os.dup(fd))
        self._outbox.append((packet, descriptor))
        self.deliver()

    def post_message(self, message: object, fd: int | None = None) -> None:
        """`post` a message."""
        packet = _packed(message)
        self.post(packet if fd is None else _short(packet), fd)

    def deliver(self) -> None:
        """Send posted packets in order, as far as the socket has room. Raises ChannelClosedError as `post`."""
        while self._outbox:
            packet, descriptor = self._outbox[0]
            if not self.send(packet, None if descriptor is None else descriptor.number, wait=False):
                return
            self._outbox.popleft()

    @property
    def has_posted(self) -> bool:
        """Whether posted packets wait for room."""
        return bool(self._outbox)

    def free(self, generation: int, slot: int) -> None:
        """Report a free slot without waiting; if the buffer is full, the next call or `flush` sends it."""
        self.unsent.append(FREE.pack(b"F", generation, slot))
        self.flush()

    def report(self, generation: int, slot: int) -> None:
        """Report a free slot, with others once there are as many as announced slots wait."""
        self.unsent.append(FREE.pack(b"F", generation, slot))
        if len(self.unsent) >= len(self.queue):
            self.flush()

    def books(self, generation: Any, leased: set[int], release: Callable[[Any, int, list[Any]], None]) -> native.Books:
        """What leases of a generation need to report their slots."""
        return native.Books(generation, leased, self.unsent, self.queue, self._socket, release)

    def flush(self) -> None:
        """Send the reports of free slots, many in one packet, as far as there is room now."""
        native.flush(self._socket, self.unsent)

    def await_packet(self, seconds: float | None) -> bool:
        """Wait until a packet can be received, or the other side is gone; False after so many seconds."""
        return self._await(select.POLLIN, seconds)

    def await_readiness(self) -> None:
        """Wait until a packet can be sent or received, or the other side is gone."""
        self._await(select.POLLIN | select.POLLOUT, None)

    def _await(self, events: int, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def receive(self, *, wait: bool = True) -> Arrival | None:
        """The next message; without `wait`, None if there is none.

        Raises ChannelClosedError at the end of the connection, FeederError for a malformed message.
        """
        queue = self.queue
        while not queue:
            try:
                arrival = self.receive_other()
            except ChannelClosedError:
                if not queue:
                    raise
                break
            if arrival is not None:
                queue.append(arrival)
            elif not queue:
                if not wait:
                    return None
                self.await_packet(None)
        return queue.popleft()

    def receive_other(self) -> Arrival | None:
        """Put READY and FREE into the queue, up to the next message of another kind, which is returned; None if no more
        has come. Raises ChannelClosedError at the end of the connection."""
        packet, fd = self._packet, None
        while True:
            try:
                if self._descriptor_follows:
                    count, fd = self._receive_descriptor()
                else:
                    count = native.receive(self._socket, packet, self.queue)
            except BlockingIOError:
                return None
            except ConnectionResetError:  # it ended with packets unread: raised once, before its own last packets
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if count < 0:
                return None
            if not count:
                raise ChannelClosedError("end of the connection")
            kind = packet[0]
            if kind == _DESCRIPTOR_FOLLOWS[0]:
                self._descriptor_follows = True
            elif kind in native.FORMS:  # between the two
                self.queue.extend(native.FORMS[kind].iter_unpack(memoryview(packet)[:count]))
            else:
                return _parse(bytes(packet[:count]), fd)

    def _receive_descriptor(self) -> tuple[int, Descriptor | None]:
        """The size of the next packet, and its descriptor."""
        count, ancillary, _, _ = self._socket.recvmsg_into([self._packet], _ANCILLARY_BYTES, _RECEIVE_NOW)
        if not ancillary:
            return count, None  # sent by a finalizer between the two
        self._descriptor_follows = False
        return count, Descriptor.from_ancillary(ancillary)


def _packed(message: object) -> bytes:
    return b"J" + pack(message, KINDS[type(message)])


def _short(packet: bytes) -> bytes:
    if len(packet) > _INLINE_BYTES:
        raise AssertionError("a message with a descriptor must be short")
    return packet


def _sealed(packet: bytes) -> Descriptor:
    """A sealed memfd that holds a packet too long for the socket."""
    blob = Descriptor(os.memfd_create("feedline-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    with open(blob.number, "wb", closefd=False) as file:
        file.write(packet)
    fcntl.fcntl(blob.number, fcntl.F_ADD_SEALS, _SEALS)
    return blob


def _parse(packet: bytes, fd: Descriptor | None) -> Arrival:
    if packet[:1] == b"L":
        if fd is None:
            raise FeederError("a message is malformed: got a long one without its memory")
        if (nbytes := os.fstat(fd.number).st_size) > _LONGEST_BYTES:
            raise FeederError(f"a message is too long: got {nbytes:,} bytes, expected at most {_LONGEST_BYTES:,}")
        with open(fd.number, "rb", closefd=False) as blob:
            blob.seek(0)
            packet, fd = blob.read(), None
    kind = packet[:1]
    if kind == b"J":
        return kind, unpack_kind(MESSAGES, packet[1:]), fd
    if kind == b"E" and len(packet) != END.size:
        raise FeederError(f"a message is malformed: got {len(packet)} bytes of END, expected {END.size}")
    return END.unpack(packet) if kind == b"E" else (kind, packet)


def pair() -> tuple[Channel, socket.socket]:
    """A connected pair: our channel, and the socket for a child process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), theirs


def adopt(fd: int) -> Channel:
    """The channel over a descriptor inherited from the parent process."""
    return Channel(socket.socket(fileno=fd))


def _close_in_forked_child() -> None:
    for channel in list(_open_channels):
        channel.close()


os.register_at_fork(after_in_child=_close_in_forked_child)
