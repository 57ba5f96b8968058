"""Is the ring's memory pinned? Registers a mapping with CUDA once, in the trainer's process.

Runs in: the trainer. Memory registered with `cudaHostRegister` counts as pinned for every tensor that views it, so a
copy to the GPU is asynchronous and needs no staging copy. Without CUDA nothing is registered, which is said once.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)

# cudaHostRegisterPortable: pinned for every CUDA context of this process, not only the current device's.
_PORTABLE = 1

_said = False


def register(address: int, nbytes: int) -> bool:
    """Pin a mapping; False (said once per process) where there is no CUDA to pin it for."""
    global _said
    if not torch.cuda.is_available():
        if not _said:
            _said = True
            logger.info("pinning is off: this process has no CUDA device")
        return False
    status = int(_runtime().cudaHostRegister(address, nbytes, _PORTABLE))
    if status != 0:
        logger.warning(
            "the ring could not be pinned: cudaHostRegister of %s bytes returned error %s. Copies to the GPU will be "
            "synchronous; raise the limit of locked memory (ulimit -l)",
            f"{nbytes:,}",
            status,
        )
        return False
    return True


def unregister(address: int) -> None:
    """Undo `register`; the caller has seen to it that no copy from the mapping is under way."""
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
