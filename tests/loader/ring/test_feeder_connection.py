"""The trainer's end of the connection to a feeder, whose end is in this process, too."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from feedline.errors import FeederError
from feedline.loader.ring import feeder_connection
from feedline.loader.ring.channel import adopt, pair
from feedline.loader.ring.feeder_connection import FeederConnection
from feedline.loader.wire.codec import WIRE_VERSION
from feedline.loader.wire.facts import Hello
from feedline.loader.wire.ring_messages import FeederFailure, GrowRing


@pytest.mark.parametrize("version", ["", '"wire": 99, '])
def test_a_feeder_of_another_wire_version_is_refused_before_its_facts_are_read(
    version: str, monkeypatch: pytest.MonkeyPatch
):
    ours, theirs = pair()
    feeder = SimpleNamespace(channel=ours, pid=os.getpid(), end=lambda: None)
    access: Any = SimpleNamespace(host=None, attach_paths=())
    connection = FeederConnection(access, pin=lambda *_: False, unpin=lambda _: None)
    monkeypatch.setattr(connection._source, "find", lambda: feeder)
    connection.start()
    other = adopt(theirs.detach())
    other.send(f'J{{{version}"type": "facts", "number": 1, "facts": "of another form"}}'.encode())
    found = "99" if version else "None"
    with pytest.raises(FeederError, match=rf"wire version {found}, expected {WIRE_VERSION}\. Install one version"):
        connection.ask(Hello(rank=0, world_size=1), timeout_s=10.0)
    assert not connection.is_torn
    connection.leave()
    other.close()


def test_a_feeder_that_ended_with_the_error_of_an_earlier_hello_has_not_died(monkeypatch: pytest.MonkeyPatch):
    """Its log is closed when it is left, which was read all the same."""
    ours, theirs = pair()
    ended: list[str] = []
    feeder = SimpleNamespace(channel=ours, pid=os.getpid(), end=lambda: ended.append("left"))
    access: Any = SimpleNamespace(host=None, attach_paths=())
    connection = FeederConnection(access, pin=lambda *_: False, unpin=lambda _: None)
    monkeypatch.setattr(connection._source, "find", lambda: feeder)
    monkeypatch.setattr(connection._source, "record_death", lambda *_: ended.append("died"))
    connection.start()
    connection._hello_number = 2
    other = adopt(theirs.detach())
    other.send_message(FeederFailure(name="TableChangedError", message="a file", number=1))
    other.close()
    connection.abandon()
    assert ended == ["left"]
    assert not connection.is_torn


def test_waiting_ticks_until_a_message_comes():
    ours, theirs = pair()
    other = adopt(theirs.detach())
    watch = feeder_connection.Watch(ours, 0)
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 2:
            other.send_message(GrowRing())

    assert watch.wait(60.0, tick)
    assert len(ticks) == 2
    watch.close()
    ours.close()
    other.close()
