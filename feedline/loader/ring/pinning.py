"""Pin the ring's memory for copies to a GPU, and fence slots that a GPU still reads.

Runs in: the trainer. Memory registered with `cudaHostRegister` counts as pinned for every tensor that views it, so a
copy to the GPU is asynchronous and needs no staging copy. Without CUDA nothing is registered, which is said once.

A process has a CUDA context on each device that it uses, which takes hundreds of megabytes there. Nothing here makes
one on a device that the trainer does not use: registering happens under the device that it chose, and events are
recorded on devices that have a context.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.loader.ring.slots import Event

logger = logging.getLogger(__name__)

# cudaHostRegisterPortable: pinned for every CUDA context of this process, not only the current device's.
_PORTABLE = 1

_said = False


class Pinning:
    """Registers mappings under one device, and unregisters them there."""

    def __init__(self, local_rank: int | None) -> None:
        self._local_rank = local_rank
        self._device: int | None = None
        self._registered: dict[int, int] = {}  # address -> the process that registered it

    def choose(self) -> None:
        """Take the trainer's device. Called in its thread: the current device is a thread's own."""
        if self._device is None and torch.cuda.is_available():
            count = torch.cuda.device_count()
            self._device = device_to_pin_under(
                torch.cuda.current_device(), devices_in_use(), local_rank=self._local_rank, count=count
            )

    def register(self, address: int, nbytes: int) -> bool:
        """Pin a mapping; False (said once per process) where there is no CUDA to pin it for."""
        global _said
        if not torch.cuda.is_available():
            if not _said:
                _said = True
                logger.info("pinning is off: this process has no CUDA device")
            return False
        self.choose()
        self._registered[address] = os.getpid()  # before it is true: an interrupt may come in between
        with torch.cuda.device(self._device):
            status = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
            if status != 0:
                _clear_error()
        if status != 0:
            del self._registered[address]
            logger.warning(
                "the ring could not be pinned: cudaHostRegister of %s bytes returned error %s. Copies to the GPU will "
                "be synchronous; raise the limit of locked memory (ulimit -l)",
                f"{nbytes:,}",
                status,
            )
        return status == 0

    def unregister(self, address: int) -> None:
        """Undo `register`, in the process that did it; the caller has seen to it that no copy is under way."""
        if self._registered.pop(address, None) != os.getpid() or sys.is_finalizing():
            return
        with torch.cuda.device(self._device):
            if int(_runtime().cudaHostUnregister(address)) != 0:
                _clear_error()


def device_to_pin_under(current: int, in_use: Sequence[int], *, local_rank: int | None, count: int) -> int:
    """The device whose context registers memory: the current one where the trainer chose or uses it; 0 is also what is
    current by default, so before it comes one that is in use already, and LOCAL_RANK's. Pure."""
    if current != 0 or current in in_use:
        return current
    if in_use:
        return in_use[0]
    return local_rank if local_rank is not None and local_rank < count else current


def devices_in_use() -> list[int]:
    """Devices on which this process has a context."""
    has_context: Callable[[int], bool] | None = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    devices = range(torch.cuda.device_count())
    if has_context is None:  # a device without a context has no memory of torch's
        return [device for device in devices if torch.cuda.memory_reserved(device)]
    return [device for device in devices if has_context(device)]


def event_on(device: torch.device | int) -> Event:
    """The work queued on a device's current stream up to now, which may read the slot's bytes."""
    event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))  # type: ignore[attr-defined]
    return event


def events_on_all() -> list[Event]:
    """The same on every device in use: nobody knows which of them a tensor was copied to."""
    return [event_on(device) for device in devices_in_use()]


def _clear_error() -> None:
    """A call that failed leaves its error to whoever launches the next kernel: launch one."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
