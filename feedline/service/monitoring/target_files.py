"""Write the file by which Prometheus finds a process: a target of its file_sd, in a folder that processes share.

Runs in: feeders, workers and schedulers whose metrics have a folder. Each process locks its file while it lives; the
next process that starts removes the files of those that died. Hosts may share the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from feedline.errors import ClusterError

_PREFIX = "feedline-"
# A file that is being written is locked a moment after it is made.
_WRITTEN_S = 60.0


def target_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels of a target. Those of the metrics themselves (`pipeline`, `rank`, `role`) are not among them: Prometheus
    would rename the metrics' own."""
    return {"host": platform.node(), **{name: value for name, value in labels.items() if value}}


class MetricsTarget:
    """The file of this process. Raises ClusterError if the folder cannot be written."""

    def __init__(self, folder: str, address: str, labels: Mapping[str, str]) -> None:
        role = re.sub(r"[^A-Za-z0-9_]", "_", labels.get("feedline_role", "process"))
        host = re.sub(r"[^A-Za-z0-9_.]", "_", labels.get("host", ""))
        name = f"{_PREFIX}{role}-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.path = Path(folder) / f"{name}.json"
        content = json.dumps([{"targets": [address], "labels": dict(labels)}])
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            sweep_targets(folder)
            self._lock = _write(self.path, content)
        except OSError as error:
            raise ClusterError(
                f"the folder of metrics cannot be written: {folder}: {error.strerror or error}. Name a folder that "
                "this user may write (`metrics: DIR`), or an address (`metrics: HOST:PORT`)"
            ) from error

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _write(path: Path, content: str) -> int:
    """Write a file that appears at once and whole; returns the descriptor that holds its lock."""
    partial = path.with_suffix(".tmp")
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes files there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, content.encode())
        partial.rename(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def sweep_targets(folder: str) -> None:
    """Remove the files of processes that have died."""
    for path in (*Path(folder).glob(f"{_PREFIX}*.json"), *Path(folder).glob(f"{_PREFIX}*.tmp")):
        with contextlib.suppress(OSError):  # locked: it lives; gone: another has removed it
            if path.suffix == ".tmp" and time.time() - path.stat().st_mtime < _WRITTEN_S:
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)
