"""One generation of the ring's memory: a memfd of slots, mapped into the feeder and the trainer.

Runs in: both. A memfd has no name, so it cannot leak or collide: the kernel frees it with its last descriptor and
mapping.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from feedline.errors import RingError
from feedline.loader.ring.numa import preferred_node
from feedline.resources.cgroups import available_memory_bytes

PAGE_BYTES = mmap.PAGESIZE
_BYTE = np.dtype(np.uint8)
# Memory left free for other processes when a generation is allocated.
_RESERVE_BYTES = 64 * 1024 * 1024


class _Mapping(mmap.mmap):
    """A mapping that calls `before_unmapping` after its last view; a weakref callback would run after unmapping."""

    before_unmapping: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()


class RingMemory:
    """One generation: a memfd with `slots` slots of `slot_bytes` bytes, mapped into this process."""

    def __init__(self, fd: int, *, generation: int, slots: int, slot_bytes: int) -> None:
        self.fd = fd
        self.generation = generation
        self.slots = slots
        self.slot_bytes = slot_bytes
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.map = _Mapping(fd, slots * slot_bytes, flags=flags)

    @classmethod
    def create(cls, *, generation: int, slots: int, slot_bytes: int, node: int | None = None) -> RingMemory:
        """Allocate the pages of a generation, on a NUMA node if it is given.

        Raises RingError with needed and available bytes if memory is short.
        """
        nbytes, available = slots * slot_bytes, available_memory_bytes()
        if nbytes + _RESERVE_BYTES > available:
            raise RingError(
                f"no memory for the ring: needed {nbytes:,} bytes ({slots} slots of {slot_bytes:,}), available "
                f"{available:,}. Lower batch.size or free memory on this host"
            )
        fd = os.memfd_create("feedline-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with preferred_node(node):
                os.posix_fallocate(fd, 0, nbytes)  # raises here rather than SIGBUS on a later write
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, generation=generation, slots=slots, slot_bytes=slot_bytes)
        except OSError as error:
            os.close(fd)
            raise RingError(
                f"no memory for the ring: needed {nbytes:,} bytes, available {available:,} ({error})"
            ) from error

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, index: int, nbytes: int | None = None) -> NDArray[np.uint8]:
        """The bytes of one slot, as an array over the mapping, which therefore lives as long as any view."""
        count = self.slot_bytes if nbytes is None else nbytes
        return np.ndarray((count,), _BYTE, self.map, index * self.slot_bytes)

    @property
    def address(self) -> int:
        """The address of the first slot in this process."""
        return int(self.slot(0).__array_interface__["data"][0])

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays until its last view is gone."""
        os.close(self.fd)
