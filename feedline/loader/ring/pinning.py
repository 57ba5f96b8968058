"""Pin the ring's memory for copies to a GPU, and fence slots that a GPU still reads.

Runs in: the trainer. Copies from memory registered with `cudaHostRegister` are asynchronous. A CUDA context takes
hundreds of megabytes: none is created on a device that the trainer does not use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from feedline.loader.ring.numa import node_of_device
from feedline.loader.ring.slots import Event

logger = logging.getLogger(__name__)

# cudaHostRegisterPortable: pinned for every CUDA context of this process, not only the current device's.
_PORTABLE = 1

_logged_no_cuda = False


class Pinning:
    """Registers and unregisters mappings under one device."""

    def __init__(self, local_rank: int | None) -> None:
        self._local_rank = local_rank
        self._device: int | None = None
        self._registered: dict[int, int] = {}  # address -> the process that registered it

    def choose(self) -> None:
        """Choose the trainer's device. Call it in the trainer's thread: the current device is per thread."""
        if self._device is None and torch.cuda.is_available():
            count = torch.cuda.device_count()
            self._device = device_to_pin_under(
                torch.cuda.current_device(), devices_in_use(), local_rank=self._local_rank, count=count
            )

    def numa_node(self) -> int | None:
        """The NUMA node of the chosen device; None without one, or on a machine with one node."""
        if self._device is None:
            return None
        properties: Any = torch.cuda.get_device_properties(self._device)
        if not hasattr(properties, "pci_bus_id"):  # an older torch
            return None
        domain, bus, device = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
        return node_of_device(f"{domain:04x}:{bus:02x}:{device:02x}.0")

    def register(self, address: int, nbytes: int) -> bool:
        """Pin a mapping. Returns False without CUDA (logged once per process) or if registering fails."""
        global _logged_no_cuda
        if not torch.cuda.is_available():
            if not _logged_no_cuda:
                _logged_no_cuda = True
                logger.info("pinning is off: this process has no CUDA device")
            return False
        self.choose()
        self._registered[address] = os.getpid()  # before registering: an interrupt may come in between
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
        """Undo `register`, in the process that called it. The caller makes sure that no copy is under way."""
        if self._registered.pop(address, None) != os.getpid() or sys.is_finalizing():
            return
        with torch.cuda.device(self._device):
            if int(_runtime().cudaHostUnregister(address)) != 0:
                _clear_error()


def device_to_pin_under(current: int, in_use: Sequence[int], *, local_rank: int | None, count: int) -> int:
    """The device whose context registers memory: the current one if it is in use or not 0, the default; else the first
    one in use, else LOCAL_RANK's. Pure."""
    if current != 0 or current in in_use:
        return current
    if in_use:
        return in_use[0]
    return local_rank if local_rank is not None and local_rank < count else current


def devices_in_use() -> list[int]:
    """Devices on which this process has a context."""
    has_context: Callable[[int], bool] | None = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    devices = range(torch.cuda.device_count())
    if has_context is None:  # torch has no memory on a device without a context
        return [device for device in devices if torch.cuda.memory_reserved(device)]
    return [device for device in devices if has_context(device)]


def event_on(device: torch.device | int) -> Event:
    """An event after the work queued so far on a device's current stream, which may read a slot."""
    event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))  # type: ignore[attr-defined]
    return event


def events_on_all() -> list[Event]:
    """Such an event for every device in use: a tensor may have been copied to any of them."""
    return [event_on(device) for device in devices_in_use()]


def _clear_error() -> None:
    """Clear the error of a failed call by launching a kernel, which would otherwise fail later with that error."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
