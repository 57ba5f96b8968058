"""Packets filed and slots leased by compiled code and by Python: the same results, nothing lost or freed twice."""

from __future__ import annotations

import gc
import mmap
import random
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ring_forms import use

from feedline.native import ring

READY = struct.Struct("<cIIIIQQQ")  # as docs of the protocol have it, apart from `ring.READY`
FREE = struct.Struct("<cII")


@pytest.fixture(params=["compiled", "python"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use(request.param, monkeypatch)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


class Leases:
    """A mapping whose slots are leased."""

    def __init__(self, connection: socket.socket) -> None:
        self.mapping = mmap.mmap(-1, 1 << 16)
        self.torn = 0
        self.generation = SimpleNamespace(number=7, closed=False, tear=self._tear)
        self.released: list[tuple[Any, int, list[Any]]] = []
        self.books = ring.Books(self.generation, set(), [], deque(), connection, self._release)

    def _release(self, *slot: Any) -> None:
        self.released.append(slot)

    def _tear(self) -> None:
        self.torn += 1

    def lease(self, slot: int, nbytes: int = 1000) -> ring.Lease:
        return ring.lease(self.mapping, slot * 4096, nbytes, self.books, slot)


def freed(connection: socket.socket) -> list[list[tuple[Any, ...]]]:
    """The reports that came, by packet."""
    packets = []
    connection.setblocking(False)
    while True:
        try:
            packets.append(list(FREE.iter_unpack(connection.recv(1 << 16))))
        except BlockingIOError:
            return packets


def test_all_that_was_announced_is_filed_up_to_another_message(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    rng = random.Random(3)
    expected: list[tuple[Any, ...]] = []
    for count in (1, 3, 4, 1):
        slots = [(b"R", *(rng.getrandbits(32) for _ in range(4)), *(rng.getrandbits(64) for _ in "123"))] * count
        expected += slots
        theirs.send(b"".join(READY.pack(*slot) for slot in slots))
    theirs.send(b"Jmessage")
    frees = [(b"F", rng.getrandbits(32), rng.getrandbits(32)) for _ in range(5)]
    theirs.send(b"".join(FREE.pack(*slot) for slot in frees))
    packet, queue = bytearray(1 << 16), deque([(b"E", 1, 2)])
    assert ring.receive(ours, packet, queue) == 8
    assert packet[:8] == b"Jmessage"
    assert list(queue) == [(b"E", 1, 2), *expected]
    assert ring.receive(ours, packet, queue) == -1
    assert list(queue)[len(expected) + 1 :] == frees
    theirs.send(READY.pack(*expected[0]))
    theirs.close()
    assert ring.receive(ours, packet, queue) == 0, "the end comes after what was sent before it"
    assert queue[-1] == expected[0]
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ring.receive(ours, packet, queue)
    with pytest.raises(OSError, match="Bad file descriptor"):
        ring.send(ours, b"J")


def test_reports_are_sent_together_and_those_without_room_stay(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    unsent = [FREE.pack(b"F", 1, slot) for slot in range(50_000)]
    ring.flush(ours, unsent)
    assert 0 < len(unsent) < 50_000
    packets: list[list[tuple[Any, ...]]] = []
    while unsent:
        packets += freed(theirs)
        ring.flush(ours, unsent)
    packets += freed(theirs)
    assert [slot for packet in packets for slot in packet] == [(b"F", 1, slot) for slot in range(50_000)]
    assert max(map(len, packets)) > 100
    theirs.close()
    unsent.append(FREE.pack(b"F", 1, 2))
    ring.flush(ours, unsent)
    assert not unsent, "nobody needs to know any more"
    ours.close()
    unsent.append(FREE.pack(b"F", 1, 2))
    ring.flush(ours, unsent)
    assert not unsent


def test_a_lease_is_the_bytes_of_its_slot_and_is_reported_after_its_last_view(
    ends: tuple[socket.socket, socket.socket],
):
    ours, theirs = ends
    leases = Leases(ours)
    leases.mapping[3 * 4096 : 3 * 4096 + 4] = b"slot"
    lease = leases.lease(3)
    assert len(lease) == 1000
    assert bytes(memoryview(lease)[:4]) == b"slot"  # type: ignore[arg-type]
    assert leases.books.leased == {3}
    views: list[Any] = [
        np.ndarray((4,), np.uint8, lease, 0),  # type: ignore[arg-type]
        torch.from_numpy(np.ndarray((2, 5), np.int64, lease, 16, (8, 16)))[1:],  # type: ignore[arg-type]
        torch.frombuffer(lease, dtype=torch.float32, count=3),
        np.frombuffer(lease, np.uint8)[5:].view(np.uint8),  # type: ignore[call-overload]
        memoryview(lease)[1:2],  # type: ignore[arg-type]
    ]
    views[0][0] = ord("S")
    assert leases.mapping[3 * 4096] == ord("S")
    del lease
    for _ in range(len(views)):
        assert freed(theirs) == []
        views.pop()
    assert freed(theirs) == [[(b"F", 7, 3)]]
    assert leases.books.leased == set()
    leases.mapping.close()  # nothing keeps it


def test_reports_wait_for_others_while_announced_slots_wait(ends: tuple[socket.socket, socket.socket]):
    ours, theirs = ends
    leases = Leases(ours)
    leases.books.queue.extend([(b"R",)] * 3)
    for slot in range(2):
        leases.lease(slot)
    assert freed(theirs) == []
    assert len(leases.books.unsent) == 2
    leases.lease(2)
    assert freed(theirs) == [[(b"F", 7, 0), (b"F", 7, 1), (b"F", 7, 2)]]
    leases.lease(3)
    leases.books.queue.clear()
    leases.lease(4)
    assert freed(theirs) == [[(b"F", 7, 3), (b"F", 7, 4)]]
    assert not leases.books.unsent


def test_fenced_slots_are_released_and_those_of_closed_generations_forgotten(
    ends: tuple[socket.socket, socket.socket],
):
    ours, theirs = ends
    leases = Leases(ours)
    lease, unfenced = leases.lease(1), leases.lease(2)
    fence = object()
    lease.fences.append(fence)
    assert lease.generation is leases.generation
    del lease
    assert leases.released == [(leases.generation, 1, [fence])]
    assert leases.books.leased == {1, 2}, "only an event frees it"
    leases.generation.closed = True
    del unfenced
    assert freed(theirs) == []
    assert leases.books.leased == {1, 2}


def test_leases_that_are_forgotten_release_nothing_as_those_of_a_forked_child(
    ends: tuple[socket.socket, socket.socket],
):
    ours, theirs = ends
    leases = Leases(ours)
    lease, fenced = leases.lease(1), leases.lease(2)
    fenced.fences.append(1)
    ring.forget_leases()
    later = leases.lease(3)
    del lease, fenced
    assert (freed(theirs), leases.released) == ([], [])
    del later
    assert freed(theirs) == [[(b"F", 7, 3)]]
    leases.mapping.close()


def test_an_error_in_release_is_written_and_does_not_disturb_another(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
):
    errors: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_value))
    leases = Leases(ours := ends[0])
    failing = leases.books._replace(release=lambda *_: 1 / 0)
    lease = ring.lease(leases.mapping, 0, 10, failing, 1)
    lease.fences.append(1)
    with pytest.raises(KeyError, match="another"):  # noqa: PT012 -- the lease dies while it is raised
        try:
            raise KeyError("another")
        finally:
            del lease
    assert ([type(error) for error in errors], leases.torn) == ([ZeroDivisionError], 1)
    leases.mapping.close()
    assert ours.fileno() >= 0


@pytest.mark.parametrize(("start", "nbytes"), [(0, (1 << 16) + 1), (1 << 16, 1), ((1 << 16) - 9, 10)])
def test_a_slot_outside_its_mapping_is_refused(ends: tuple[socket.socket, socket.socket], start: int, nbytes: int):
    leases = Leases(ends[0])
    with pytest.raises((ValueError, TypeError)):
        ring.lease(leases.mapping, start, nbytes, leases.books, 0)
    assert (freed(ends[1]), leases.books.leased) == ([], set())
    leases.mapping.close()


def test_slots_freed_by_several_threads_and_by_the_collector_are_each_reported_once(
    ends: tuple[socket.socket, socket.socket],
):
    ours, theirs = ends
    leases = Leases(ours)
    leases.books.queue.extend([(b"R",)] * 5)
    threads = 4
    made: list[list[Any]] = [[] for _ in range(threads)]
    gc.freeze()  # the collector finds the leases among few objects; what is frozen stays so, as that of conftest.py
    for slot in range(threads * 500):
        cycle: list[Any] = [ring.lease(leases.mapping, 0, 8, leases.books, slot)]
        cycle.append(cycle)
        made[slot % threads].append(cycle)
    del cycle

    def free(leases_of_thread: list[Any]) -> None:
        while leases_of_thread:
            leases_of_thread.pop()
            if len(leases_of_thread) % 50 == 0:
                gc.collect()

    running = [threading.Thread(target=free, args=(each,)) for each in made]
    seen: list[tuple[Any, ...]] = []
    for thread in running:
        thread.start()
    for thread in running:
        while thread.is_alive():
            seen += [slot for packet in freed(theirs) for slot in packet]
            thread.join(0.001)
    gc.collect()
    leases.books.queue.clear()
    while leases.books.unsent:
        ring.flush(ours, leases.books.unsent)
        seen += [slot for packet in freed(theirs) for slot in packet]
    seen += [slot for packet in freed(theirs) for slot in packet]
    assert sorted(slot for _, _, slot in seen) == list(range(threads * 500))
