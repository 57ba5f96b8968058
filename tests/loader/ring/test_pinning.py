"""The device under which memory is pinned, and the devices whose events fence a slot; CUDA's calls are recorded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pipelines import Place, furnished

from feedline import Pipeline
from feedline.loader.batch import Batch
from feedline.loader.ring.pinning import Pinning, device_to_pin_under, events_on_all
from feedline.loader.ring.slots import Event


class FakeCuda:
    """Four devices; `calls` are (name, current device, argument)."""

    def __init__(self, patch: pytest.MonkeyPatch, *, in_use: set[int], current: int = 0, status: int = 0) -> None:
        self.in_use, self.current, self.status = in_use, current, status
        self.calls: list[tuple[Any, ...]] = []
        for name in ("is_available", "device_count", "current_device", "current_stream", "device", "cudart"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Event", lambda: FakeEvent(self))
        patch.setattr(torch._C, "_cuda_hasPrimaryContext", self.in_use.__contains__, raising=False)
        patch.setattr(torch, "ones", lambda *_, **__: self.calls.append(("launch", self.current)))

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 4

    def current_device(self) -> int:
        return self.current

    def current_stream(self, device: int) -> str:
        return f"stream of {device}"

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, address: int, _nbytes: int, flags: int) -> int:  # noqa: N802 -- CUDA's name
        self.calls.append(("register", self.current, address, flags))
        self.in_use.add(self.current)
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append(("unregister", self.current, address))
        return self.status


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def record(self, stream: str) -> None:
        self._cuda.calls.append(("record", stream))


@pytest.mark.parametrize(
    ("current", "in_use", "local_rank", "device"),
    [
        (0, [], None, 0),  # one process, one device
        (0, [], 3, 3),  # a rank that has not touched CUDA yet
        (2, [], 3, 2),  # torch.cuda.set_device(2)
        (2, [0, 2], 3, 2),
        (0, [0], 3, 0),  # a rank that does use device 0
        (0, [3], None, 3),  # tensor.to("cuda:3") without set_device
        (0, [3], 1, 3),
        (0, [], 5, 0),  # CUDA_VISIBLE_DEVICES shows each rank its own device
    ],
)
def test_the_device_to_pin_under(current: int, in_use: list[int], local_rank: int | None, device: int):
    assert device_to_pin_under(current, in_use, local_rank=local_rank, count=4) == device


def test_memory_is_pinned_and_unpinned_under_one_device_only(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch, in_use=set())
    pinning = Pinning(local_rank=3)
    pinning.choose()
    cuda.current = 1  # another thread's
    assert pinning.register(4096, 100)
    pinning.unregister(4096)
    pinning.unregister(4096)
    assert cuda.calls == [("register", 3, 4096, 1), ("unregister", 3, 4096)]
    assert cuda.in_use == {3}
    assert cuda.current == 1


def test_memory_pinned_by_another_process_is_not_unpinned(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch, in_use={0})
    pinning = Pinning(local_rank=None)
    assert pinning.register(4096, 100)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a forked child
    pinning.unregister(4096)
    assert [name for name, *_ in cuda.calls] == ["register"]


def test_a_failed_registration_does_not_fail_the_next_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cuda = FakeCuda(monkeypatch, in_use={0}, status=2)
    pinning = Pinning(local_rank=None)
    assert not pinning.register(4096, 100)
    assert "cudaHostRegister of 100 bytes returned error 2" in caplog.text
    assert cuda.calls[1:] == [("launch", 0)]
    pinning.unregister(4096)
    assert len(cuda.calls) == 2


def test_events_are_recorded_on_devices_with_a_context(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch, in_use={1, 3})
    assert len(events_on_all()) == 2
    assert cuda.calls == [("record", "stream of 1"), ("record", "stream of 3")]


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


class PinnedLease(np.ndarray):
    generation = SimpleNamespace(pinned=True)
    fences: list[Callable[[], Sequence[Event]]]


def test_an_exposed_view_is_fenced_on_all_devices(place: Place, monkeypatch: pytest.MonkeyPatch):
    """He may have copied it to a device that is not current, and to one that he has used since."""
    made = next(Pipeline.from_yaml(place.write()).batches())
    lease = made._root.view(PinnedLease)
    lease.fences = []
    batch = Batch.over(made._layout, lease)
    assert lease.fences == []
    assert batch.dense.shape == (256, 2)
    assert batch.labels.shape == (256, 1)
    cuda = FakeCuda(monkeypatch, in_use={0})
    cuda.in_use.add(3)
    assert [len(fence()) for fence in lease.fences] == [2]
    assert cuda.calls == [("record", "stream of 0"), ("record", "stream of 3")]
