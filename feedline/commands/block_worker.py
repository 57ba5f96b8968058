"""Run a worker process that imports for itself: its function, threads, parent and descriptors.

Runs in: the worker, `python -m feedline block-worker`, which a feeder starts where it does not fork.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NoReturn

from feedline.service.pool.spawner import run_worker


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a worker as `ImportingSpawner` starts it."""
    try:
        name, *numbers = arguments
        threads, parent, *descriptors = map(int, numbers)
        module, _, function = name.partition(":")
    except ValueError:
        raise SystemExit("error: `feedline block-worker` is internal: feeders start it. Use `feedline run`") from None
    run = getattr(importlib.import_module(module), function)
    run_worker(run, descriptors, threads=threads, parent=parent)
