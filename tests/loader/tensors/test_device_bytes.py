"""Pieces of a slot's bytes on a device: where sections lie in them, and on which stream they are copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import FeedlineError
from feedline.loader.tensors.slot_tensors import DeviceBytes, copy_pieces, cut_pieces


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.data())
def test_sections_are_found_in_their_piece(sizes: list[int], data: st.DataObject):
    whole = torch.arange(sum(sizes), dtype=torch.uint8)
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes) - 1)]
    pieces = cut_pieces(whole, ends)
    assert [len(piece) for piece in pieces] == [size for size in sizes if size]
    if not pieces:
        return
    held = DeviceBytes([piece.clone() for piece in pieces])
    assert torch.equal(held.whole(), whole)
    assert held.lists_apart == (len(pieces) > 1)
    number = data.draw(st.integers(0, len(pieces) - 1))
    first = data.draw(st.integers(0, len(pieces[number]) - 1))
    count = data.draw(st.integers(1, len(pieces[number]) - first))
    start = sum(len(piece) for piece in pieces[:number]) + first
    assert torch.equal(held.at(start, count), whole[start : start + count])


def test_memory_that_was_freed_is_not_read():
    held = DeviceBytes([torch.ones(4, dtype=torch.uint8), torch.ones(4, dtype=torch.uint8)])
    held.pieces[1].untyped_storage().resize_(0)
    assert held.at(0, 4).tolist() == [1] * 4
    device = torch.device("cpu")
    for read in (
        lambda: held.at(4, 1),
        held.whole,
        held.clone,
        lambda: copy_pieces(held.pieces, device, non_blocking=False, stream=None),
    ):
        with pytest.raises(FeedlineError, match="the batch's lists are gone: torchrec's train pipeline has freed"):
            read()


class RecordedStreams:
    """The streams of a device: `log` has what happens, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.running = "current"

    def current_stream(self, device: torch.device) -> str:
        assert device.type == "cpu"
        return self.running

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.running = str(stream)
        yield
        self.running = "current"

    def wait_stream(self, other: str) -> None:
        self.log.append(f"{self.running} waits for {other}")

    def __str__(self) -> str:
        return "copies"


def test_copies_run_on_the_given_stream_into_memory_of_the_current_one(monkeypatch: pytest.MonkeyPatch):
    """Else an allocator would hand out the memory of one stream for use on another, of which it does not know."""
    streams = RecordedStreams()
    empty_like, copy = torch.empty_like, torch.Tensor.copy_
    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)

    def allocate(*arguments: Any, **options: Any) -> torch.Tensor:
        streams.log.append(f"allocated on {streams.running}")
        return empty_like(*arguments, **options)

    def fill(self: torch.Tensor, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        streams.log.append(f"copied on {streams.running}, {non_blocking}")
        return copy(self, other)

    monkeypatch.setattr(torch, "empty_like", allocate)
    monkeypatch.setattr(torch.Tensor, "copy_", fill)
    pieces = [torch.arange(3, dtype=torch.uint8), torch.arange(2, dtype=torch.uint8)]
    moved = copy_pieces(pieces, torch.device("cpu"), non_blocking=True, stream=streams)  # type: ignore[arg-type]
    assert streams.log == ["allocated on current"] * 2 + ["copies waits for current"] + ["copied on copies, True"] * 2
    monkeypatch.undo()
    assert moved.whole().tolist() == [0, 1, 2, 0, 1]
