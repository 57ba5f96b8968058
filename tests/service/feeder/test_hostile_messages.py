"""A connection that sends anything at all ends, with an error or by itself, and the feeder serves the others."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import PATIENCE_S
from ringless_trainers import write_pipeline

from feedline import Pipeline
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import FeederError
from feedline.loader.ring import channel as channel_module
from feedline.loader.ring.channel import END, REPORT, Channel, ChannelClosedError, pair
from feedline.loader.wire.codec import pack
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.loader.wire.ring_messages import (
    KINDS,
    BeginStream,
    Diagnose,
    Diagnosis,
    EpochDone,
    FeederFailure,
    GrowRing,
    PlanAnswer,
    PlanRequest,
    StallReport,
)
from feedline.native.ring import FREE, READY
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import SessionSetup, TrainerSession

NUMBERS = st.integers(0, 2**32 - 1) | st.integers(0, 5)
LONG_NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-1, 5)
FORMS = {"R": READY, "F": FREE, "E": END, "S": REPORT}


@st.composite
def packed(draw: Any) -> bytes:
    """Packets of structs, some of them cut, some with other fields than a trainer sends."""
    kind = draw(st.sampled_from(sorted(FORMS)))
    form = FORMS[kind]
    fields = len(form.format) - 2  # without "<" and the kind
    packets = [form.pack(kind.encode(), *draw(st.tuples(*[NUMBERS] * fields))) for _ in range(draw(st.integers(1, 3)))]
    content = b"".join(packets)
    return content[: draw(st.integers(1, len(content)))] if draw(st.booleans()) else content


def message(value: Any) -> bytes:
    return b"J" + pack(value, KINDS[type(value)])


@st.composite
def messages(draw: Any) -> bytes:
    """Messages of a trainer whose numbers are any, some of them damaged."""
    content = message(
        draw(
            st.one_of(
                st.builds(
                    BeginStream,
                    stream=LONG_NUMBERS,
                    epoch=LONG_NUMBERS,
                    step=LONG_NUMBERS,
                    last=st.booleans(),
                    seen=st.none() | st.binary(max_size=60),
                    node=st.none() | st.integers(-5, 3000),
                ),
                st.builds(
                    PlanRequest,
                    number=LONG_NUMBERS,
                    hello=st.builds(
                        Hello,
                        rank=LONG_NUMBERS,
                        world_size=LONG_NUMBERS,
                        trainer=st.none() | LONG_NUMBERS,
                        snapshot=st.none() | st.text(max_size=5),
                        lanes=st.none() | LONG_NUMBERS,
                        rebase=st.none() | st.dictionaries(st.text(max_size=3), LONG_NUMBERS, max_size=2),
                        epoch=st.none() | LONG_NUMBERS,
                    ),
                    watched=st.booleans(),
                ),
                st.builds(PlanRequest, number=NUMBERS, hello=st.just(Hello(rank=0, world_size=1))),
                st.builds(StallReport, seconds=st.floats(allow_nan=False, allow_infinity=False)),
                st.builds(EpochDone, epoch=LONG_NUMBERS),
                st.just(GrowRing()),
            )
        )
    )
    if draw(st.booleans()):
        place = draw(st.integers(0, len(content) - 1))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place + draw(st.integers(0, 3)) :]
    return content


class Door:
    """Where the test's connections come in."""

    def __init__(self) -> None:
        self.waiting: deque[TrainerSession] = deque()
        self._readable = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)

    def fileno(self) -> int:
        return self._readable

    def put(self, session: TrainerSession) -> None:
        self.waiting.append(session)
        os.eventfd_write(self._readable, 1)

    def accept(self) -> TrainerSession:
        os.eventfd_read(self._readable)
        return self.waiting.popleft()

    def close(self) -> None:
        os.close(self._readable)


class Served:
    """A feeder in a thread, and an honest connection to it."""

    def __init__(self, folder: Path) -> None:
        pipeline = Pipeline.from_yaml(write_pipeline(folder, steps=3))
        self.cluster = open_cluster(ClusterRequest(ClusterSpec(threads=1, dashboard=False), threads=1))
        self.planner = Planner(lambda hello, start, plans: pipeline.resolve(hello, job="j" * 64), job="j" * 64)
        about = FeederFacts(imports_s=0.0, log=None, dashboard=None, live_page=None, feeder=os.getpid())
        self._setup = SessionSetup(
            cluster=self.cluster, planner=self.planner, world_size=1, memory_bytes=64 << 20, about=about
        )
        self.door = Door()
        self._is_over = False
        self.feeder = Feeder(self.cluster, doors=[self.door])
        self._thread = threading.Thread(target=lambda: self.feeder.serve(until=lambda: self._is_over))
        self._thread.start()
        self.honest = self.connect()

    def connect(self) -> Channel:
        ours, theirs = pair()
        self.door.put(TrainerSession(Channel(theirs), self._setup, rank=0, wake=self.feeder.wake))
        return ours

    def check(self) -> None:
        """The honest connection is answered."""
        self.honest.send_message(Diagnose())
        assert self.honest.await_packet(PATIENCE_S), "the feeder does not answer"
        assert isinstance(self.honest.receive()[1], Diagnosis)

    def close(self) -> None:
        self._is_over = True
        self.honest.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self.planner.close()
        self.cluster.close()
        self.door.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("hostile"))
    yield served
    served.close()


def answers(channel: Channel) -> list[Any]:
    """What comes until the connection ends, or nothing has come for a moment."""
    found: list[Any] = []
    try:
        while channel.await_packet(0.02):
            arrival = channel.receive()
            found.append(arrival[1] if arrival[0] == b"J" else arrival)
            if arrival[0] == b"J" and arrival[2] is not None:
                arrival[2].close()
    except ChannelClosedError:
        found.append(None)
    return found


@examples(60)
@given(
    st.lists(st.binary(min_size=1, max_size=80) | packed() | messages(), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_packets_end_their_connection_at_most(served: Served, packets: list[bytes], is_begun: bool) -> None:
    channel = served.connect()
    try:
        if is_begun:
            channel.send_message(PlanRequest(number=1, hello=Hello(rank=0, world_size=1)))
            assert channel.await_packet(PATIENCE_S)
            assert isinstance(channel.receive()[1], PlanAnswer)
            begin = BeginStream(stream=1, epoch=0, step=0, last=True, seen=None)
            channel.send_message(begin)
        for packet in packets:
            try:
                channel.send(packet)
            except ChannelClosedError:
                break
        found = answers(channel)
        if found and found[-1] is None and len(found) > 1:
            assert isinstance(found[-2], FeederFailure), found[-2]
    finally:
        channel.close()
    served.check()


def test_a_message_longer_than_any_is_refused_unread(served: Served) -> None:
    """Its memory has a size, but no pages: reading it would fill those of the feeder."""
    channel = served.connect()
    blob = os.memfd_create("hostile", os.MFD_CLOEXEC)
    try:
        os.ftruncate(blob, 1 << 40)
        channel.send(b"L", blob)
        assert channel.await_packet(PATIENCE_S)
        failure = channel.receive()[1]
        assert isinstance(failure, FeederFailure)
        assert failure.name == "FeederError"
        assert "a message is too long: got 1,099,511,627,776 bytes, expected at most" in failure.message
    finally:
        os.close(blob)
        channel.close()
    served.check()


def test_a_long_message_without_its_memory_is_malformed(served: Served) -> None:
    channel = served.connect()
    try:
        channel.send(b"L")
        assert channel.await_packet(PATIENCE_S)
        failure = channel.receive()[1]
        assert isinstance(failure, FeederFailure)
        assert (failure.name, "without its memory" in failure.message) == ("FeederError", True)
    finally:
        channel.close()
    served.check()


@pytest.mark.parametrize("packet", [b"E", b"E" + bytes(11), b"Z" * 40, b"J", b"S"])
def test_a_malformed_packet_is_refused_by_its_kind(packet: bytes) -> None:
    """What a trainer gets, too: a FeederError, never one of `struct`."""
    try:
        arrival = channel_module._parse(packet, None)
    except FeederError as error:
        assert "malformed" in str(error)  # noqa: PT017
    else:
        assert arrival == (packet[:1], packet)
