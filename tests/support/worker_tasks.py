"""What worker processes do in tests of how they start: answer requests, until the connection ends."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

_PR_GET_PDEATHSIG, _PR_GET_THP_DISABLE = 2, 42


def work(descriptors: Sequence[int]) -> None:
    """Answer the requests on the first descriptor."""
    with socket.socket(fileno=descriptors[0]) as seat:
        while request := seat.recv(2**16):
            name, *arguments = json.loads(request)
            seat.send(json.dumps(TASKS[name](*arguments)).encode())


def facts() -> dict[str, Any]:
    """What a worker has of its own, and what it has inherited."""
    libc = ctypes.CDLL(None)
    death = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0)
    return {
        "name": Path("/proc/self/comm").read_text().strip(),
        "parent": os.getppid(),
        "numpy": np.random.rand(),
        "random": random.random(),
        "has huge pages": not libc.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0),
        "descriptors": descriptors(),
        "death signal": death.value,
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "collects": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
        "rows": len(pl.LazyFrame({"a": range(1000)}).filter(pl.col("a") % 2 == 0).collect()),
        "polars": pl.thread_pool_size(),
    }


def descriptors() -> dict[str, str]:
    """What this process's descriptors lead to, by number."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except FileNotFoundError:
            continue  # of the listing itself
    return found


def read(path: str, endpoint: str, key: str) -> list[int]:
    """The sum of a column `a`, read in four ways from a file and from its copy in S3."""
    store = pyarrow.fs.S3FileSystem(endpoint_override=endpoint, scheme="http", region="us-east-1")
    return [
        sum(pq.read_table(path)["a"].to_pylist()),
        sum(ds.dataset(path).to_table(filter=ds.field("a") >= 0)["a"].to_pylist()),
        pl.scan_parquet(path).select(pl.col("a").sum()).collect().item(),
        sum(pq.read_table(key, filesystem=store)["a"].to_pylist()),
    ]


def fail() -> None:
    raise ValueError("a task fails")


def stay() -> None:
    threading.Event().wait()


TASKS = {
    "facts": facts,
    "read": read,
    "fail": fail,
    "stay": stay,
    "exit": lambda status: os._exit(status),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
