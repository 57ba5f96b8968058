"""A run of `build` in a child process that kills itself just before the n-th of the events that change something."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from sample_logs import END_NS

from feedline.config.build_spec import load_build_spec
from feedline.warehouse.building import build, joins, partition, rows
from feedline.warehouse.optimize import landing
from feedline.warehouse.optimize.optimize import TaskRunner
from feedline.warehouse.parquet.writer import TableWriter
from feedline.warehouse.storage.claim import Claim

# Whatever writes or moves a file, by where it is called from.
EVENTS: dict[str, list[tuple[Any, str]]] = {
    "spill": [(joins, "write_buckets"), (rows, "write_buckets")],
    "file": [(TableWriter, "_write_group"), (TableWriter, "_end_file")],
    "land": [(partition, "upload"), (landing.Target, "land"), (landing, "exchange"), (landing.Target, "remove")],
    "claim": [(Claim, "take"), (Claim, "move"), (Claim, "release"), (build, "put")],
}


def killed_build(folder: str, where: tuple[str, ...], turn: int, without_exchange: bool = False) -> None:
    """Build the table of `folder`/samples.yaml, and die before the n-th event of these kinds."""
    if without_exchange:
        landing.exchange = lambda one, other: False
    calls: list[int] = []
    for kind in where:
        for owner, name in EVENTS[kind]:
            _count(owner, name, calls, turn)
    spec = load_build_spec(Path(folder) / "samples.yaml")
    build.build(spec, now_ns=END_NS, until_ns=END_NS, runner=TaskRunner(threads=1, memory_bytes=1 << 30))


def _count(owner: Any, name: str, calls: list[int], turn: int) -> None:
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    setattr(owner, name, call)
