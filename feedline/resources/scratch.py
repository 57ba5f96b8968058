"""The scratch folder of a feeder's Dask workers."""

from __future__ import annotations

import tempfile

SCRATCH_VARIABLE = "DASK_TEMPORARY_DIRECTORY"


def make_scratch() -> str:
    """Make a folder for what a feeder's Dask workers keep on disk. Feeder and parent both remove it."""
    return tempfile.mkdtemp(prefix="feedline-")
