"""Hand values over to another process of this host, their arrays in shared memory that is used again.

Runs in: worker processes, which write; the feeder, which reads. A value is pickled (protocol 5); its buffers and the
pickle lie in one segment, a memfd without a name whose descriptor is sent once. The reader maps it, and what it
unpickles are views of the mapping. A segment is written again only when the reader has said that its last view is gone:
leases are counted per value, for the life of a segment, and nothing resets them. Arrays that are made for a value
(`result_memory`) are in its segment from the outset. Where a segment cannot be made or received, the same bytes travel
through the socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.resources.result_memory import LEAST_BYTES

_ALIGNMENT = 64
# Segments are larger than the value that they are made for, so that others fit: untouched pages cost nothing.
_SPARE, _GRAIN = 2, 2 * 2**20
_ENTRY = np.dtype("<u8")

# Of a message: its kind, the segment, the bytes of a new segment (0: it is known; else its descriptor is attached), the
# bytes of the value, the buffers it has, and the bytes that follow through the socket (0: they are in the segment).
HEAD = struct.Struct("<cIQQIQ")


class NoSegmentError(Exception):
    """A segment cannot be made here: send the bytes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A value as buffers, aligned: its own, then its pickle, then where each lies. laid: the bytes at the beginning of
    the memory that they are for, at `address`; buffers of those stay where they are, the others follow."""

    buffers: Sequence[NDArray[np.uint8]]
    starts: Sequence[int]
    nbytes: int
    laid: int

    @classmethod
    def of(cls, value: object, address: int = 0, laid: int = 0) -> Packed:
        buffers: list[NDArray[np.uint8]] = []

        def set_apart(buffer: pickle.PickleBuffer) -> bool:
            """Whether a buffer belongs into the pickle: what a reader keeps of a value, such as its counts, would keep
            a segment."""
            if (memory := buffer.raw()).nbytes < LEAST_BYTES:
                return True
            buffers.append(np.frombuffer(memory, np.uint8))
            return False

        head = pickle.dumps(value, protocol=5, buffer_callback=set_apart)
        buffers.append(np.frombuffer(head, np.uint8))
        # Buffers of 100 and 8 bytes, a pickle of 70: they start at 0, 128 and 192, the table of 3 entries at 320.
        starts, nbytes = [], laid
        for each in buffers:
            place = each.ctypes.data - address
            if place >= 0 and place + each.nbytes <= laid:
                starts.append(place)
                continue
            starts.append(nbytes)
            nbytes += -(-each.nbytes // _ALIGNMENT) * _ALIGNMENT
        table = np.array([starts, [each.nbytes for each in buffers]], _ENTRY).T.copy().view(np.uint8).ravel()
        return cls([*buffers, table], [*starts, nbytes], nbytes + table.nbytes, laid)

    def write(self, target: NDArray[np.uint8]) -> None:
        """Write what is not there yet. target: all of the memory."""
        for start, each in zip(self.starts, self.buffers, strict=True):
            if start >= self.laid:
                target[start : start + each.nbytes] = each


def unpack(memory: pa.Buffer, nbytes: int, count: int) -> Any:
    """The value of `Packed` bytes, as views of them. memory: whose views keep it; count: its buffers."""
    entries = (count + 1) * 2 * _ENTRY.itemsize
    table = np.frombuffer(memory.slice(nbytes - entries, entries), _ENTRY).reshape(-1, 2).tolist()
    *buffers, head = [memory.slice(start, size) for start, size in table]
    return pickle.loads(head, buffers=buffers)


# --------------------------------------------------------------------------------------------------------------------

_PROT_READ, _PROT_WRITE, _MAP_SHARED = 1, 2, 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MADV_POPULATE_WRITE = 23


class Mapping:
    """The memory of a segment in this process, until the last reference goes. Unlike `mmap.mmap`, it keeps no
    descriptor. Raises OSError."""

    __slots__ = ("address", "nbytes")

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.nbytes = 0
        address = _libc.mmap(None, nbytes, _PROT_READ | _PROT_WRITE, _MAP_SHARED, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
        self.address, self.nbytes = address, nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """All bytes as an array, to be written, which keeps the mapping."""
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,), "data": (self.address, False)}

    def populate(self, nbytes: int) -> None:
        """Map the first pages before they are written: a fault for each of them takes twice as long."""
        _libc.madvise(self.address, nbytes, _MADV_POPULATE_WRITE)  # from Linux 5.14 on; else they are mapped one by one

    def __del__(self) -> None:
        if self.nbytes:
            _libc.munmap(self.address, self.nbytes)


# --------------------------------------------------------------------------------------------------------------------
# The writer's side.


@dataclass(slots=True)
class Segments:
    """The segments of one connection. dropped: given back to the system since the reader was last told."""

    dropped: list[int] = field(default_factory=list)
    _all: dict[int, Mapping] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _unsent: dict[int, int] = field(default_factory=dict)  # descriptors
    _made: int = 0

    def release(self, numbers: Sequence[int]) -> None:
        """The reader has no view of these any more."""
        self._free += numbers

    def take(self, nbytes: int) -> tuple[int, Mapping]:
        """A segment of at least so many bytes: its number and its memory. The one that came back last is taken, whose
        pages are there. Free ones that are all too small, and those of which this process still has an array, are given
        back to the system first. Raises NoSegmentError."""
        for number in reversed(self._free):
            # Referred to by `_all`, and as an argument: a view of an earlier value is never overwritten.
            if self._all[number].nbytes >= nbytes and sys.getrefcount(self._all[number]) <= 2:
                self._free.remove(number)
                return number, self._all[number]
        for number in self._free:
            del self._all[number]
            if (descriptor := self.descriptor(number)) is not None:
                os.close(descriptor)
        self.dropped += self._free
        self._free.clear()
        mapping, descriptor = _make(nbytes)
        number, self._made = self._made, self._made + 1
        self._all[number], self._unsent[number] = mapping, descriptor
        return number, mapping

    def descriptor(self, number: int) -> int | None:
        """The descriptor of a segment that the reader does not know, once; the caller closes it."""
        return self._unsent.pop(number, None)


def _make(nbytes: int) -> tuple[Mapping, int]:
    """A segment whose first pages are there; to have all of them made at once takes half the time of one by one."""
    descriptor = -1
    try:
        descriptor = os.memfd_create("feedline-block", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size := -(-nbytes * _SPARE // _GRAIN) * _GRAIN)
        os.posix_fallocate(descriptor, 0, nbytes)
        mapping = Mapping(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise NoSegmentError(str(error)) from error
    mapping.populate(nbytes)
    return mapping, descriptor


class Writer:
    """Sends values over a blocking stream socket. inline: why no segments are used (None: they are). or_raise: where a
    segment cannot be made, raise NoSegmentError instead of sending bytes."""

    def __init__(self, connection: socket.socket, *, or_raise: bool = False) -> None:
        self._connection = connection
        self._or_raise = or_raise
        self._begun: tuple[int, Mapping] | None = None  # the segment of the next value
        self._laid = 0  # bytes of it that arrays were made of
        self._last_nbytes = 0
        self.segments = Segments()
        self.inline: str | None = None

    def memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        """Bytes for an array of the next value. None: the segment is full, or how large it has to be is not known."""
        if self._begun is None:
            if self.inline is not None or not self._last_nbytes:
                return None
            try:
                self._begun = self.segments.take(self._last_nbytes)
            except NoSegmentError:  # `send` will tell
                return None
        start, mapping = self._laid, self._begun[1]
        if start + nbytes > mapping.nbytes:
            return None
        self._laid += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return np.asarray(mapping)[start : start + nbytes]

    def send(self, kind: bytes, value: object) -> None:
        begun, laid, self._begun, self._laid = self._begun, self._laid, None, 0
        packed = Packed.of((self.segments.dropped, value), 0 if begun is None else begun[1].address, laid)
        if begun is not None and (self.inline is not None or packed.nbytes > begun[1].nbytes):
            self.segments.release([begun[0]])
            begun, packed = None, Packed.of((self.segments.dropped, value))
        self.segments.dropped = []
        self._last_nbytes = packed.nbytes
        if self.inline is None:
            try:
                number, memory = begun or self.segments.take(packed.nbytes)
            except NoSegmentError as error:
                if self._or_raise:
                    raise
                self.inline = str(error)
            else:
                packed.write(np.asarray(memory))
                self._send_segment(kind, number, memory, packed)
                return
        body = np.empty(packed.nbytes, np.uint8)
        packed.write(body)
        self._connection.sendall(HEAD.pack(kind, 0, 0, packed.nbytes, len(packed.buffers) - 2, packed.nbytes))
        self._connection.sendall(body.data)

    def _send_segment(self, kind: bytes, number: int, memory: Mapping, packed: Packed) -> None:
        descriptor = self.segments.descriptor(number)
        new_bytes = 0 if descriptor is None else memory.nbytes
        head = HEAD.pack(kind, number, new_bytes, packed.nbytes, len(packed.buffers) - 2, 0)
        if descriptor is None:
            self._connection.sendall(head)
            return
        try:
            socket.send_fds(self._connection, [head], [descriptor], socket.MSG_NOSIGNAL)
        finally:
            os.close(descriptor)


# --------------------------------------------------------------------------------------------------------------------
# The reader's side.


class _Lease:
    """What the views of one value keep: with the last of them, the segment is free."""

    __slots__ = ("_memory", "_number", "_released")

    def __init__(self, memory: Mapping, number: int, released: list[int]) -> None:
        self._memory, self._number, self._released = memory, number, released

    def __del__(self) -> None:  # in any thread
        self._released.append(self._number)


LOST = object()


class Reader:
    """Receives values from a non-blocking stream socket. released: segments that are free again, for the writer; filled
    by any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mappings: dict[int, Mapping] = {}
        self._head = b""
        self._descriptor: int | None = None
        self._body: tuple[NDArray[np.uint8], int] | None = None  # that is received, and how much of it has come
        self.released: list[int] = []
        self.refused: str | None = None  # why a segment could not be received, and its value was lost

    def receive(self) -> tuple[bytes, Any] | None:
        """The next kind and value; LOST if its segment could not be received (`refused`). None while it has not come
        whole. Raises EOFError at the end of the connection."""
        if self._body is None and not self._receive_head():
            return None
        kind, number, new_bytes, nbytes, count, inline = HEAD.unpack(self._head)
        if inline:
            if self._body is None:
                self._body = np.empty(inline, np.uint8), 0
            body, received = self._body
            while received < inline:
                try:
                    more = self._connection.recv_into(body[received:].data)
                except BlockingIOError:
                    self._body = body, received
                    return None
                except OSError as error:  # reset: its process was killed, and had not read all that was sent to it
                    raise EOFError from error
                if not more:
                    raise EOFError
                received += more
            self._head, self._body = b"", None
            return kind, self._unpack(pa.py_buffer(body), nbytes, count)
        self._head = b""
        if (new_bytes and not self._map(number, new_bytes)) or number not in self._mappings:
            return kind, LOST
        memory = self._mappings[number]
        lease = _Lease(memory, number, self.released)
        return kind, self._unpack(pa.foreign_buffer(memory.address, nbytes, base=lease), nbytes, count)

    def _unpack(self, memory: pa.Buffer, nbytes: int, count: int) -> Any:
        dropped, value = unpack(memory, nbytes, count)
        for number in dropped:
            self._mappings.pop(number, None)  # views of it are gone
        return value

    def _receive_head(self) -> bool:
        while (missing := HEAD.size - len(self._head)) > 0:
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    self._connection, missing, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return False
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            if descriptors:
                self._descriptor = descriptors[0]
            elif flags & socket.MSG_CTRUNC:
                self.refused = "no descriptor is left"
            self._head += data
        return True

    def _map(self, number: int, nbytes: int) -> bool:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            self.refused = self.refused or "the descriptor did not come"
            return False
        try:
            self._mappings[number] = Mapping(descriptor, nbytes)
        except OSError as error:
            self.refused = str(error)
            return False
        finally:
            os.close(descriptor)
        return True

    def close(self) -> None:
        """Close the connection. Values that were received stay."""
        self._mappings.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self._connection.close()
