"""Values travel in shared memory that is used again only when nobody sees it any more; else through the socket."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.resources import result_memory
from feedline.resources.result_memory import empty, lay_results
from feedline.service.pool.segments import HEAD, LOST, Packed, Reader, Segments, Writer, unpack


class Link:
    """A writer and its reader."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self.theirs = theirs
        self.writer, self.reader = Writer(theirs), Reader(ours)

    def send(self, value: object) -> Any:
        """Send a value, and receive it."""
        sender = threading.Thread(target=self.writer.send, args=(b"R", value))
        sender.start()
        arrival = None
        while arrival is None:
            arrival = self.reader.receive()
        sender.join()
        return arrival[1]

    def release(self) -> list[int]:
        """Tell the writer which segments are free; returns them."""
        released, self.reader.released[:] = list(self.reader.released), []
        self.writer.segments.release(released)
        return released

    def close(self) -> None:
        self.reader.close()
        self.theirs.close()


@pytest.fixture
def link() -> Iterator[Link]:
    with closing(Link()) as link:
        yield link


def mapped() -> int:
    """Segments that are mapped, by the writer and by the reader."""
    return Path("/proc/self/maps").read_text().count("memfd:feedline-block")


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(max_size=20),
        st.lists(st.integers(0, 255), max_size=300).map(lambda values: np.array(values, np.uint8)),
        st.lists(st.floats(width=32), max_size=40).map(lambda values: np.array(values, np.float32)),
        st.lists(st.text(max_size=5) | st.none(), max_size=20).map(lambda values: pa.array(values, pa.string())),
    ),
    lambda each: st.lists(each, max_size=4) | st.tuples(each, each),
    max_leaves=12,
)


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.tobytes() == two.tobytes()
    if isinstance(one, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(equal, one, two))
    return bool(one == two)


@given(VALUES)
def test_a_value_is_the_same_after_packing(value: Any):
    packed = Packed.of(value)
    memory = np.full(packed.nbytes + 100, 255, np.uint8)
    packed.write(memory)
    assert equal(unpack(pa.py_buffer(memory), packed.nbytes, len(packed.buffers) - 2), value)


def test_arrays_are_views_of_a_segment_that_is_used_again(link: Link):
    first = link.send(np.arange(10_000))
    second = link.send(np.arange(10_000) + 1)
    assert (first.sum(), second.sum()) == (49_995_000, 50_005_000)
    assert not first.flags.owndata
    assert link.release() == []
    del first
    assert link.release() == [0]
    third = link.send(np.arange(9_000))
    assert (third.sum(), second.sum()) == (40_495_500, 50_005_000)
    assert mapped() == 4, "the third value is in the first one's segment"


def test_a_segment_is_kept_by_any_view_of_any_array_in_it(link: Link):
    values = pa.array(["x" * 70_000, "yy"])
    value = link.send({"a": np.arange(10_000), "b": (np.arange(20_000.0), values)})
    views = [value["a"][2:4].reshape(2, 1), value["b"][0].view(np.uint8), value["b"][1].slice(1)]
    del value
    for kept in range(3, 0, -1):
        assert link.release() == [], f"{kept} views are left"
        views.pop()
    assert link.release() == [0]


def test_small_arrays_are_copies_that_keep_no_segment(link: Link):
    counts = link.send((np.arange(10_000), np.arange(100)))[1]
    assert link.release() == [0]
    assert link.send(np.ones(10_000)).sum() == 10_000
    assert counts.sum() == 4_950


@pytest.fixture
def laid(link: Link) -> Iterator[Link]:
    """A link whose writer knows how large values are, and in whose segments this thread makes the arrays of results."""
    link.send(np.zeros(50_000))
    link.release()
    lay_results(link.writer.memory)
    yield link
    result_memory._thread.memory = None


def filled(shape: int | tuple[int, ...], value: float) -> np.ndarray:
    array = empty(shape, np.float32)
    array[:] = value
    return array


def test_arrays_of_results_are_in_the_segment_from_the_outset(laid: Link, monkeypatch: pytest.MonkeyPatch):
    """Before arrays that are not, and those that are too small; where arrays do not come, their places stay empty."""
    copied: list[int] = []
    write = Packed.write

    def count(self: Packed, target: np.ndarray) -> None:
        copied.extend(each.nbytes for start, each in zip(self.starts, self.buffers, strict=True) if start >= self.laid)
        write(self, target)

    monkeypatch.setattr(Packed, "write", count)
    for round in range(3):
        value = (filled((250, 100), 1.5), np.arange(20_000), filled(30_000, round), filled(30, 7))
        assert empty(20_000, np.float32).base is not None, "it is in the segment, and not of the value"
        assert equal(laid.send(value), value)
        del value
        assert laid.release() == [0]
    assert sum(copied) < 3 * (160_000 + 5_000), "the arrays that were laid are not copied"
    assert mapped() == 2


def test_results_that_outgrow_their_segment_are_moved(laid: Link):
    value = [filled(60_000, number) for number in range(40)]
    assert value[0].base is not None
    assert value[-1].flags.owndata, "the segment is full"
    assert equal(laid.send(value), value)
    again = [filled(60_000, number) for number in range(40)]
    assert not again[-1].flags.owndata
    assert equal(laid.send(again), again)


def test_a_segment_of_which_the_writer_keeps_an_array_is_not_written_again(laid: Link):
    kept = filled(40_000, 1)[:5]
    laid.send(kept)
    assert laid.release() == [0]
    other = filled(40_000, 2)
    assert laid.send(other).sum() == 80_000
    assert kept.tolist() == [1] * 5


def test_results_without_room_travel_through_the_socket(laid: Link):
    value = [filled(40_000, 3)]
    laid.writer.inline = "no descriptors"
    assert equal(laid.send(value), value)
    assert filled(40_000, 4).flags.owndata


def test_too_small_segments_are_given_back(link: Link):
    mib = 2**20
    for size in (1 * mib, 3 * mib, 9 * mib):
        value = link.send(np.ones(size, np.uint8))
        assert value.sum() == size
        del value
        link.release()
    assert mapped() == 3, "the reader hears of it with the next value"
    assert link.send(np.ones(2 * mib, np.uint8)).sum() == 2 * mib
    assert mapped() == 2


def test_what_was_received_outlives_the_writer(link: Link):
    value = link.send(np.arange(100_000))
    link.theirs.close()
    link.writer.segments = Segments()
    with pytest.raises(EOFError):
        link.reader.receive()
    link.reader.close()
    assert value.sum() == 4_999_950_000


def test_without_shared_memory_the_bytes_are_sent(link: Link, monkeypatch: pytest.MonkeyPatch):
    def forbidden(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    values = np.arange(1_000_000)
    for _ in range(2):
        assert np.array_equal(link.send((values, "text"))[0], values)
    assert "Operation not permitted" in str(link.writer.inline)


def test_a_descriptor_that_finds_no_room_loses_its_value_only(link: Link):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = link.send(np.arange(7))
    filled: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):  # too many open files
            while True:
                filled.append(os.open(os.devnull, os.O_RDONLY))
        os.close(filled.pop())  # for the writer's own
        link.writer.send(b"R", np.arange(8))
        filled.append(os.open(os.devnull, os.O_RDONLY))
        assert link.reader.receive() == (b"R", LOST)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filled:
            os.close(descriptor)
    assert link.reader.refused
    link.writer.inline = link.reader.refused
    assert link.send(np.arange(9)).sum() == 36
    assert kept.sum() == 21


@pytest.mark.parametrize("sent", [0, 5, HEAD.size, HEAD.size + 3])
def test_a_process_that_dies_in_a_value_has_ended(sent: int):
    """Also with a request that it has not read, by which its connection is reset."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        reader = Reader(ours)
        ours.setblocking(False)
        ours.send(b"a request")
        theirs.send((HEAD.pack(b"R", 0, 0, 8, 1, 100) + bytes(100))[:sent])
        theirs.close()
        with pytest.raises(EOFError):
            reader.receive()
