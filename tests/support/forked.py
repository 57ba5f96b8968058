"""Child processes for tests that need many, forked from a server that has only imported what they run."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

import pytest

PRELOADED = [
    "cache_entries",
    "collection_reader",
    "column_sources",
    "deleted_rows",
    "interrupted_build",
    "killed_build",
    "killed_optimize",
]  # one server serves all tests of a process


def forked(run: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Start a child process that calls a function of one of the preloaded modules."""
    context = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:  # a fork server finds modules to preload only here
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        context.set_forkserver_preload(PRELOADED)
        multiprocessing.forkserver.ensure_running()
    process = context.Process(target=run, args=arguments, daemon=True)
    process.start()
    return process
