"""Packets over a socket pair: last packets before an end, full buffers, and waiting without a deadlock."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from ring_forms import use

from feedline.loader.ring.channel import Channel, ChannelClosedError, adopt, pair
from feedline.loader.wire.ring_messages import Diagnose, Diagnosis, EpochDone, FeederFailure, GrowRing, NewGeneration


@pytest.fixture(params=["compiled", "python"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, Channel]]:
    """Both ends of a connection."""
    use(request.param, monkeypatch)
    ours, theirs = pair()
    other = adopt(theirs.detach())
    yield ours, other
    ours.close()
    other.close()


def test_last_packets_arrive_from_a_side_that_ended_with_unread_ones(ends: tuple[Channel, Channel]):
    """The kernel says "connection reset" once, before it hands out what was sent: that is not the end."""
    ours, other = ends
    ours.send_message(GrowRing())
    other.send_message(FeederFailure(name="ClusterError", message="no workers"))
    other.close()
    assert ours.receive(wait=False)[1] == FeederFailure(name="ClusterError", message="no workers")
    for _ in range(2):
        with pytest.raises(ChannelClosedError):
            ours.receive(wait=False)
    with pytest.raises(ChannelClosedError):
        ours.send_message(GrowRing(), wait=False)


def test_without_room_a_message_is_not_sent(ends: tuple[Channel, Channel]):
    ours, other = ends
    sent = 0
    while ours.send_message(EpochDone(epoch=sent), wait=False):
        sent += 1
    assert sent > 100
    long = Diagnosis(text="x" * 100_000)
    assert not ours.send_message(long, wait=False)
    seen = [other.receive()[1].epoch for _ in range(sent)]
    assert seen == list(range(sent))
    assert other.receive(wait=False) is None
    assert ours.send_message(long, wait=False)
    assert other.receive()[1] == long


def test_readiness_is_room_or_a_packet(ends: tuple[Channel, Channel]):
    ours, other = ends
    while ours.send_message(GrowRing(), wait=False):
        pass
    other.send_message(Diagnose())
    ours.await_readiness()
    assert ours.receive()[1] == Diagnose()
    while other.receive(wait=False) is not None:  # the kernel says "room" once most of it is free
        pass
    ours.await_readiness()
    assert ours.send_message(GrowRing(), wait=False)
    other.close()
    ours.await_readiness()


def test_free_slots_that_find_no_room_are_reported_later(ends: tuple[Channel, Channel]):
    ours, other = ends
    for slot in range(1000):
        ours.free(7, slot)
    freed = []
    while len(freed) < 1000:
        ours.flush()
        while (received := other.receive(wait=False)) is not None:
            freed.append(received[1:])
    assert len(set(freed)) == 1000
    other.close()
    ours.free(7, 0)  # nobody needs to know any more


def test_shutting_down_wakes_a_waiting_thread(ends: tuple[Channel, Channel]):
    ours, other = ends
    met: list[BaseException] = []

    def wait() -> None:
        try:
            ours.receive()
        except ChannelClosedError as error:
            met.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ours.shut_down()
    waiting.join(30)
    assert len(met) == 1
    with pytest.raises(ChannelClosedError):
        other.receive()
    ours.shut_down()


def test_a_report_of_a_free_slot_may_come_between_a_descriptor_and_its_announcement(ends: tuple[Channel, Channel]):
    """A finalizer sends it, in any thread; and there may be no room for the packet with the descriptor."""
    ours, other = ends
    read, write = os.pipe()
    ours._socket.send(b"D")
    ours._announced_descriptor = True
    ours.free(3, 5)
    assert other.receive(wait=False) == (b"F", 3, 5)
    assert other.receive(wait=False) is None
    ours.send_message(NewGeneration(generation=0, slots=1, slot_bytes=1), read)
    os.close(read)
    kind, message, descriptor = other.receive()
    assert (kind, message) == (b"J", NewGeneration(generation=0, slots=1, slot_bytes=1))
    os.write(write, b"x")
    os.close(write)
    with open(descriptor.number, "rb", closefd=False) as pipe:
        assert pipe.read() == b"x"
    ours.free(3, 6)
    assert other.receive(wait=False) == (b"F", 3, 6)


def test_posted_packets_arrive_in_order_once_there_is_room(ends: tuple[Channel, Channel]):
    """Short and long ones, with a descriptor and without; the sender may close its own descriptor at once."""
    ours, other = ends
    messages = [Diagnosis(text=f"{n} " + "x" * (100_000 if n % 7 == 3 else 10)) for n in range(1000)]
    for n, message in enumerate(messages):
        if n % 5 == 1:
            fd = os.memfd_create("test")
            os.write(fd, str(n).encode())
            ours.post_message(EpochDone(epoch=n), fd)
            os.close(fd)
        else:
            ours.post_message(message)
    assert ours.has_posted
    for n, message in enumerate(messages):
        ours.deliver()
        _, arrived, descriptor = other.receive(wait=False)
        assert (descriptor is not None) == (n % 5 == 1)
        if descriptor is not None:
            assert arrived == EpochDone(epoch=n)
            assert os.pread(descriptor.number, 9, 0) == str(n).encode()
            descriptor.close()
        else:
            assert arrived == message
    assert not ours.has_posted
    other.close()
    with pytest.raises(ChannelClosedError):
        ours.post(b"J{}")
