"""The channel between a feeder and its trainer: small messages over one UNIX SOCK_SEQPACKET connection.

Runs in: both. A message is one packet: a byte for its kind, then a few packed integers (the messages of each batch) or
JSON. A message too long for a packet travels as a sealed memfd. The death of either side is an EOF for the other.

    trainer -> feeder   json hello, begin, grow, epoch_done;  FREE generation slot
    feeder -> trainer   json welcome, facts, map (with the memfd), retire, full, warnings, error;  READY ...;  END ...;
                        REPORT ..., the JSON of the feeder's stats, and that of its quality counts
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import sys
import weakref
from collections import deque
from typing import Any

FREE = struct.Struct("<cII")  # kind, generation, slot
READY = struct.Struct("<cIIIIQQQ")  # kind, stream, generation, slot, rows, epoch, step, bytes of the batch
END = struct.Struct("<cIQ")  # kind, stream, epoch
REPORT = struct.Struct("<cII")  # kind, stream, bytes of the first of the two JSON strings that follow

# Linux refuses packets above the socket's buffer (208 KiB by default), and a short read truncates one silently.
_PACKET_BYTES = 64 * 1024
_INLINE_BYTES = 32 * 1024
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)  # one descriptor
# Combined once: arithmetic on enumerations takes microseconds, and a batch needs three packets.
_SEND, _SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_RECEIVE, _RECEIVE_NOW = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
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
    """One end of the connection. Not thread-safe, except `free`, which any thread or finalizer may call."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unsent: deque[bytes] = deque()
        self._packet = memoryview(bytearray(_PACKET_BYTES))  # the one received last
        _open_channels.add(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def shut_down(self) -> None:
        """Shut the connection down for both sides and wake a thread that waits on it; the descriptor stays open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def is_connected(self) -> bool:
        """Whether the other side is still connected. Reads nothing."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLRDHUP)
        return not poll.poll(0)

    def peer_uid(self) -> int:
        """The user id of the other side."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])

    def peer_pid(self) -> int:
        """The process id of the other side."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])

    def send(self, packet: bytes, fd: int | None = None, *, wait: bool = True) -> bool:
        """Send one packet, waiting for room in the socket's buffer; without `wait`, return False if there is none.

        Raises ChannelClosedError if the other side is gone.
        """
        flags = _SEND if wait else _SEND_NOW
        try:
            if fd is None:
                self._socket.send(packet, flags)
            else:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                self._socket.sendmsg([packet], ancillary, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        return True

    def send_json(self, message: dict[str, Any], fd: int | None = None, *, wait: bool = True) -> bool:
        """`send` a JSON message of any length."""
        packet = b"J" + json.dumps(message).encode()
        if fd is None:
            return self.send_long(packet, wait=wait)
        if len(packet) > _INLINE_BYTES:
            raise AssertionError("a message with a descriptor must be short")
        return self.send(packet, fd, wait=wait)

    def send_long(self, packet: bytes, *, wait: bool = True) -> bool:
        """`send` a packet of any length."""
        if len(packet) <= _INLINE_BYTES:
            return self.send(packet, wait=wait)
        with open(os.memfd_create("feedline-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as blob:
            blob.write(packet)
            blob.flush()
            fcntl.fcntl(blob, fcntl.F_ADD_SEALS, _SEALS)
            return self.send(b"L", blob.fileno(), wait=wait)

    def free(self, generation: int, slot: int) -> None:
        """Report a free slot without waiting; if the buffer is full, the next call or `flush` sends it."""
        self._unsent.append(FREE.pack(b"F", generation, slot))
        self.flush()

    def flush(self) -> None:
        """Send reports of free slots that found no room, as far as there is room now."""
        while self._unsent:
            try:
                packet = self._unsent.popleft()
            except IndexError:
                return  # another thread took the last one
            try:
                self._socket.send(packet, _SEND_NOW)
            except BlockingIOError:
                self._unsent.appendleft(packet)
                return
            except OSError:
                return  # the other side is gone

    def await_readiness(self) -> None:
        """Wait until a packet can be sent or received, or the other side is gone."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN | select.POLLOUT)
        poll.poll()

    def receive(self, *, wait: bool = True) -> tuple[bytes, dict[str, Any], Descriptor | None] | None:
        """The next packet as (packet, JSON or {}, descriptor); without `wait`, None if there is none.

        Raises ChannelClosedError at the end of the connection.
        """
        try:
            count, ancillary, _, _ = self._receive(_RECEIVE if wait else _RECEIVE_NOW)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not count:
            raise ChannelClosedError("end of the connection")
        packet = bytes(self._packet[:count])
        fd = Descriptor.from_ancillary(ancillary) if ancillary else None
        if packet[:1] == b"L":
            assert fd is not None
            with open(fd.number, "rb", closefd=False) as blob:
                blob.seek(0)
                packet, fd = blob.read(), None
        if packet[:1] == b"J":
            return packet[:1], json.loads(packet[1:]), fd
        return packet, {}, fd

    def _receive(self, flags: int) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        try:
            return self._socket.recvmsg_into([self._packet], _ANCILLARY_BYTES, flags)
        except ConnectionResetError:  # it ended with packets unread: raised once, before its own last packets
            return self._socket.recvmsg_into([self._packet], _ANCILLARY_BYTES, flags)


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
