"""Guard Feedline's patches of Dask: each is for the versions of distributed that `SUPPORTED` names.

Runs in: every process with a Dask node or client. A patch that correctness needs is refused for another version; one
that only saves time, memory or repeated work is left out, with one warning. pyproject.toml asks for the same versions.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import re

from feedline.errors import ClusterError

logger = logging.getLogger(__name__)

SUPPORTED = ">=2026.8,<2027"
_FIRST, _END = (2026, 8), (2027,)
INSTALLED = importlib.metadata.version("distributed")


def require(change: str) -> None:
    """Raise ClusterError unless the version of distributed is supported. change: what the patch makes of Dask."""
    if not _is_supported(INSTALLED):
        raise ClusterError(
            f"distributed {INSTALLED} is not supported: expected {SUPPORTED}, of which Feedline knows how to make "
            f"{change}. Install one of them (pip install 'distributed{SUPPORTED}')"
        )


def allow(change: str) -> bool:
    """Whether a patch may be applied that Feedline can do without; warns once if not."""
    if not _is_supported(INSTALLED):
        _warn(INSTALLED, change)
        return False
    return True


@functools.cache
def _is_supported(version: str) -> bool:
    return _FIRST <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _END


@functools.cache
def _warn(version: str, change: str) -> None:
    logger.warning(
        "distributed %s is not supported, expected %s: Feedline works without %s. Install one of them (pip install "
        "'distributed%s')",
        version,
        SUPPORTED,
        change,
        SUPPORTED,
    )
