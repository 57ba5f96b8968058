"""Take a ring's memory from the NUMA node of the trainer's GPU.

Runs in: the trainer (`node_of_device`) and the feeder (`preferred_node`). Copies to a GPU from another node's memory
pass the link between the nodes. On a machine with one node, nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import platform
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

# The number of the system call set_mempolicy(2), which has no function in glibc.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_DEFAULT, _PREFERRED = 0, 1
_WORD_BITS = 64


def node_of_device(address: str, system: Path = Path("/sys")) -> int | None:
    """The NUMA node of a PCI device ("0000:3b:00.0"); None if unknown, or if only one node has memory."""
    try:
        if (system / "devices/system/node/has_memory").read_text().strip().isdigit():
            return None  # a single number, not a list
        node = int((system / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


@contextlib.contextmanager
def preferred_node(node: int | None) -> Iterator[None]:
    """Memory that this thread allocates in the block comes from a node, while there is room; None changes nothing."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if node is None or number is None:
        yield
        return
    mask = (ctypes.c_ulong * (node // _WORD_BITS + 1))()
    mask[node // _WORD_BITS] = 1 << node % _WORD_BITS
    call = ctypes.CDLL(None, use_errno=True).syscall
    # The kernel reads one bit less than it is told.
    if call(number, _PREFERRED, ctypes.byref(mask), ctypes.c_ulong(len(mask) * _WORD_BITS + 1)) != 0:
        logger.warning("the ring is not bound to NUMA node %s: error %s", node, ctypes.get_errno())
        yield
        return
    try:
        yield
    finally:
        call(number, _DEFAULT, None, ctypes.c_ulong(0))
